"""Folds forward in time: a row is predicted once, by a copy that learned nothing of its future, and is stored once."""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folded import content, prepare_changed, week_of
from hypothesis import given
from hypothesis import strategies as st
from small_market import market_config

from ensemble import arrow, folders
from ensemble.arrow import open_table
from ensemble.data import staging
from ensemble.data.folds import folder_of
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import folds
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.settings import PanelConfig

LEARNED = ("train", "validation")
HORIZON = PanelConfig().horizon_weeks


# ------------------------------------------------------------------------------------------------ which weeks


@given(
    rows=st.lists(st.integers(0, 30), min_size=4, max_size=90),
    horizon=st.integers(1, 6),
    num_folds=st.integers(1, 6),
    data=st.data(),
)
def test_weeks_go_forward_with_an_embargo(rows: list[int], horizon: int, num_folds: int, data: st.DataObject) -> None:
    """A training label of a copy would depend on its block, or a week would be predicted by two folds or by none."""
    first = data.draw(st.integers(0, 2000))
    past_end = first + data.draw(st.integers(2, len(rows) - 1))
    whole = {"train": (first, first), "blend": (first, past_end), "test": (past_end + horizon + 1, past_end + horizon + 9)}
    settings = PanelConfig(horizon_weeks=horizon, folds=num_folds)
    try:
        all_folds = folds.fold_weeks(whole, np.array(rows), settings)
    except UserError:
        assert past_end - first < 2 * (2 * horizon + 2 * num_folds) or 0 in rows
        return
    assert len(all_folds) == num_folds + 1
    for fold in all_folds:
        assert fold["train"][0] == first
        assert list(fold)[-1] == "test"
        assert fold["test"] == whole["test"]
        for before, after in itertools.pairwise(fold.values()):
            assert before[0] <= before[1] < after[0] - horizon
    blocks = [fold["blend"] for fold in all_folds[:-1]]
    for block, fold in zip(blocks, all_folds[:-1], strict=True):
        assert block[0] <= block[1]
        assert fold["validation"][1] == block[0] - horizon - 1
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(blocks))
    assert blocks[-1][1] == past_end
    assert list(all_folds[-1]) == ["train", "validation", "test"]
    assert all_folds[-1]["validation"][1] == past_end
    before_blocks = sum(rows[: all_folds[0]["blend"][0] - first])
    assert before_blocks >= sum(rows[: past_end - first + 1]) / 2


def test_blocks_and_shares_are_even() -> None:
    """The first copy would learn from hardly a week, or one block hold nearly all the rows."""
    whole = {"train": (100, 120), "blend": (100, 299), "test": (312, 330)}
    all_folds = folds.fold_weeks(whole, np.full(240, 10), PanelConfig(horizon_weeks=12, folds=4))
    assert [fold["blend"] for fold in all_folds[:-1]] == [(200, 224), (225, 249), (250, 274), (275, 299)]
    for fold in all_folds:
        num = {split: last - first + 1 for split, (first, last) in fold.items()}
        assert num["validation"] / (num["train"] + num["validation"]) == pytest.approx(15 / 70, abs=0.01)
    assert folds.fold_weeks(whole, np.full(240, 10), PanelConfig()) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))), min_size=1))
def test_pieces_make_up_every_range(ranges: list[tuple[int, int]]) -> None:
    """A row would be stored twice, or be missing in a split."""
    pieces = folds.pieces(ranges)
    weeks = [week for begin, end in pieces for week in range(begin, end + 1)]
    assert weeks == sorted(set(weeks))
    assert set(weeks) == {week for begin, end in ranges for week in range(begin, end + 1)}
    for begin, end in ranges:
        assert all((begin <= first and last <= end) or last < begin or end < first for first, last in pieces)


# ------------------------------------------------------------------------------------------------ which rows


def test_every_row_is_out_of_one_fold(folded: Path, raw_market: tuple[Path, Path]) -> None:
    """Some rows would have two out-of-fold predictions, and others none."""
    raw = [json.loads(line) for line in raw_market[0].read_text(encoding="utf-8").splitlines()]
    reviewed = {(review["parent_asin"], week_of(review["timestamp"])) for review in raw}
    out_of_fold = [key for number in range(4) for key in content(folded / f"folds/{number}", "blend")]
    first = min(week for _, week in out_of_fold)
    last = min(week for _, week in content(folded, "test")) - HORIZON - 1
    labelled = {(product, week + late) for product, week in reviewed for late in range(4) if first <= week + late <= last}
    assert sorted(out_of_fold) == sorted(labelled)
    assert last - first > 30


def test_what_a_copy_learns_ends_before_its_block(folded: Path, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """A feature or label of a copy's training rows would contain the future of the rows that it predicts."""
    for number in range(4):
        fold = folded / f"folds/{number}"
        first = open_table(fold / "rows/blend")["week"].to_numpy().min()
        for split in LEARNED:
            assert open_table(fold / "rows" / split)["week"].to_numpy().max() + HORIZON < first
    begin = open_table(folded / "folds/2/rows/blend")["week"].to_numpy().min()
    changed = prepare_changed(folded, raw_market, tmp_path / "changed", after=begin - 1)
    for split in LEARNED:
        assert content(changed / "folds/2", split) == content(folded / "folds/2", split)
    assert content(changed / "folds/3", "validation") != content(folded / "folds/3", "validation"), "nothing was changed"


def test_folds_change_nothing_of_the_whole(folded: Path, prepared: Path) -> None:
    """A member trained on all data would be different if a bag is trained too, and scores could not be compared."""
    with_folds, without = folders.read_manifest(folded), folders.read_manifest(prepared)
    assert with_folds["splits"] == without["splits"]
    for split in without["splits"]:
        assert content(folded, split) == content(prepared, split)


def test_a_row_has_one_id_everywhere(folded: Path) -> None:
    """Predictions out of fold could not be joined with anything, or would be joined with other rows."""
    row_of: dict[int, tuple[int, int]] = {}
    for folder in (folded, *sorted((folded / "folds").iterdir())):
        seen = set()
        for rows in sorted((folder / "rows").iterdir()):
            table = open_table(rows).select(["row_id", "product", "week"])
            for row_id, product, week in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
                assert row_of.setdefault(row_id, (product, week)) == (product, week)
                assert row_id not in seen
                seen.add(row_id)
    assert len(set(row_of.values())) == len(row_of)


# ------------------------------------------------------------------------------------------------ the folders


def test_every_byte_is_stored_once(folded: Path, prepared: Path) -> None:
    """Folds would multiply the size of the data on disk."""

    def stored(folder: Path) -> int:
        return sum({file.stat().st_ino: file.stat().st_size for file in folder.rglob("*.arrow")}.values())

    assert stored(prepared) < stored(folded) < 1.5 * stored(prepared)  # the embargoes' rows are new
    assert sum(file.stat().st_size for file in folded.rglob("*.arrow")) > 3 * stored(folded)


def test_without_links_the_files_are_copied(
    folded: Path, raw_market: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared data could not be written to a file system without hard links."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    settings = PanelConfig(**folders.read_manifest(folded)["config"])
    manifest = panel.prepare(market_config(raw_market, tmp_path / "out", settings))
    assert all(file.stat().st_nlink == 1 for file in (tmp_path / "out").rglob("*.arrow"))
    assert manifest["fingerprint"] == folders.read_manifest(folded)["fingerprint"]
    arrow.link(tmp_path / "out/manifest.json", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out/manifest.json").read_bytes()


def test_a_fold_is_prepared_data_like_any_other(folded: Path, tmp_path: Path) -> None:
    """A copy could not be trained where the data are copied to first, or on data that were damaged."""
    manifest = folders.verify(folded)
    assert not [name for name in manifest["files"] if name.startswith("folds")]
    for number, entry in enumerate(manifest["folds"]):
        fold = folder_of(folded, manifest, number)
        manifest_of_fold = folders.verify(fold)
        assert (manifest_of_fold["fingerprint"], manifest_of_fold["splits"], manifest_of_fold["fold"]) == (
            entry["fingerprint"],
            entry["splits"],
            number,
        )
        for split, facts in manifest_of_fold["splits"].items():
            assert open_table(fold / "rows" / split).num_rows == facts["rows"]
            assert len(manifest_of_fold["files"]) > 10
    (tmp_path / "staged").mkdir()  # an empty folder is used as it is
    staging.stage(folded / "folds/1", tmp_path / "staged")
    assert content(tmp_path / "staged", "blend") == content(folded / "folds/1", "blend")
    assert folders.verify(tmp_path / "staged")["fingerprint"] == manifest["folds"][1]["fingerprint"]
    assert staging.stage(folded, tmp_path / "whole")[1]  # with its folds, which a bag is trained on
    on_disk = [
        {file.stat().st_ino: file.stat().st_size for file in path.rglob("*")} for path in (tmp_path / "whole", folded)
    ]
    assert sum(on_disk[0].values()) <= sum(on_disk[1].values()), "files that folds share need the disk several times"
    assert content(tmp_path / "whole/folds/1", "blend") == content(folded / "folds/1", "blend")
    assert staging.stage(folded, tmp_path / "whole")[1] is False


def test_a_swapped_fold_is_refused(folded: Path, tmp_path: Path) -> None:
    """Copies would predict weeks that they were trained on."""
    copy = Path(shutil.copytree(folded, tmp_path / "copy"))
    manifest = folders.read_manifest(copy)
    (copy / "folds/1").rename(copy / "folds/x")
    (copy / "folds/2").rename(copy / "folds/1")
    fingerprint = manifest["folds"][2]["fingerprint"]
    with pytest.raises(
        UserError,
        match=rf"folds/1 has the fingerprint {fingerprint}, but the manifest of .*copy lists .*: prepare both again",
    ):
        folder_of(copy, manifest, 1)
    with pytest.raises(UserError, match=r"there is no prepared data at .*folds/2"):
        folder_of(copy, manifest, 2)


def test_impossible_folds_are_refused(raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """The result would be a traceback, or a copy without training rows."""

    def prepare(**settings: Any) -> None:
        panel.prepare(market_config(raw_market, tmp_path / "out", PanelConfig(**settings)))

    with pytest.raises(UserError, match=r"panel\.folds=-1"):
        prepare(folds=-1)
    with pytest.raises(
        UserError, match=r"panel\.folds=52 is too many for the .* weeks before test, with a horizon of 12 weeks"
    ):
        prepare(folds=52)
    with pytest.raises(
        UserError, match=r"fold 0's train split has \d+ rows but no hot product.*or choose fewer panel.folds"
    ):
        prepare(folds=4, top_fraction=0.0175)
    assert not list(tmp_path.iterdir())
