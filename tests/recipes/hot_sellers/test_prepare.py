"""The panel: labels and splits as defined, and a folder that is complete or absent."""

import collections
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_market import (
    FIRST_MS,
    SUNDAY,
    config_for,
    gather,
    prepare_every_week,
    review,
    steady_market,
    write_metadata,
    write_raw,
)

from ensemble import arrow, folders
from ensemble.arrow import open_table
from ensemble.data import reviews
from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import features, folds, text, weekly
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.prepare import FORECAST, SPLITS, TARGETS
from ensemble.recipes.hot_sellers.settings import MarketConfig, PanelConfig, PrepareConfig
from ensemble.recipes.hot_sellers.splits import split_weeks

# ------------------------------------------------------------------------------------------------ labels and rows


@pytest.fixture(scope="module")
def market(prepared: Path, raw_market: tuple[Path, Path]) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """The raw reviews of `prepared` by product and week number, in order of time; later copies of a review left out."""
    by_week: dict[str, dict[int, list[dict[str, Any]]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    known = set()
    for one in sorted(map(json.loads, raw_market[0].read_text().splitlines()), key=lambda one: one["timestamp"]):
        key = (one["parent_asin"], one["user_id"], one["timestamp"])
        if key not in known:
            known.add(key)
            by_week[one["parent_asin"]][(one["timestamp"] - weekly.FIRST_MONDAY_MS) // weekly.WEEK_MS].append(one)
    return by_week


def within(by_week: dict[int, list[dict[str, Any]]], begin: int, end: int) -> list[dict[str, Any]]:
    """The reviews of the weeks in (begin, end]."""
    return [one for week in range(begin + 1, end + 1) for one in by_week.get(week, [])]


def week_number(day: str) -> int:
    return (datetime.date.fromisoformat(day) - weekly.FIRST_MONDAY).days // 7


def test_labels_by_brute_force(prepared: Path, market: dict[str, dict[int, list[dict[str, Any]]]]) -> None:
    """The members would be trained on labels other than those in the README."""
    manifest = folders.read_manifest(prepared)
    ids = open_table(prepared / "products")["product_id"].to_pylist()
    for split in SPLITS:
        first, last = (week_number(manifest["splits"][split][end]) for end in ("first_week", "last_week"))
        rows = {(ids[row["product"]], row["week"]): row for row in open_table(prepared / "rows" / split).to_pylist()}
        base = {
            (product, week): len(within(by_week, week - 4, week))
            for product, by_week in market.items()
            for week in range(first, last + 1)
        }
        assert set(rows) == {key for key, count in base.items() if count >= 1}
        growth_of_week = collections.defaultdict(list)
        for (product, week), row in rows.items():
            ahead = within(market[product], week, week + 12)
            assert row["growth"] == np.float32(len(ahead) / (base[product, week] + 1))
            rating, votes = ([one[name] for one in ahead] for name in ("rating", "helpful_vote"))
            assert row["rating_next"] == pytest.approx(np.mean(rating) if ahead else np.nan, nan_ok=True)
            assert row["engagement"] == pytest.approx(np.mean(votes) if ahead else np.nan, nan_ok=True)
            growth_of_week[week].append((row["growth"], row["hot"]))
        for rows_of_week in growth_of_week.values():
            ranked = sorted((growth for growth, _ in rows_of_week), reverse=True)
            allowed = math.floor(0.1 * len(ranked) + 1e-9)
            assert all(hot == (growth > ranked[allowed]) for growth, hot in rows_of_week)
            assert sum(hot for _, hot in rows_of_week) <= allowed
        assert manifest["splits"][split]["rows"] == len(rows)
        assert manifest["splits"][split]["hot"] == sum(row["hot"] for row in rows.values()) > 0


def test_rows_address_their_weeks_and_reviews(prepared: Path, market: dict[str, dict[int, list[dict[str, Any]]]]) -> None:
    """A member would read another product's weeks or texts."""
    products, weeks, read = (open_table(prepared / name).to_pylist() for name in ("products", "weeks", "reviews"))
    row_ids = []
    for split in (*SPLITS, FORECAST):
        rows = open_table(prepared / "rows" / split).to_pylist()
        row_ids += [row["row_id"] for row in rows]
        for row in rows[::23]:
            by_week, week = market[products[row["product"]]["product_id"]], row["week"]
            active = weeks[row["weeks_begin"] : row["weeks_end"]]
            assert [(one["week"], one["reviews"]) for one in active] == [
                (week - ago, len(by_week[week - ago])) for ago in range(51, -1, -1) if by_week.get(week - ago)
            ]
            addressed, expected = read[row["reviews_begin"] : row["reviews_end"]], within(by_week, min(by_week) - 1, week)
            assert [one["rating"] for one in addressed] == [one["rating"] for one in expected]
            if addressed:
                words = pl.Series([f"{expected[-1]['title']}\n{expected[-1]['text']}"])
                assert addressed[-1]["tokens"] == text.tokenize(words, 24, 8192)[0][0].tolist()
    assert sorted(row_ids) == list(range(len(row_ids)))


def test_a_forecast_is_of_the_last_complete_week(prepared: Path, raw_market: tuple[Path, Path]) -> None:
    """The forecast would be of a past week, or have targets that are not known yet."""
    manifest = folders.read_manifest(prepared)
    rows = open_table(prepared / "rows" / FORECAST).to_pydict()
    last_ms = max(json.loads(line)["timestamp"] for line in raw_market[0].read_text().splitlines())
    assert set(rows["week"]) == {weekly.last_complete_week(last_ms)} == {week_number(manifest["last_week"])}
    assert all(np.isnan(rows[name]).all() for name in TARGETS)
    assert manifest["splits"]["forecast"]["hot"] == 0


def test_min_reviews_and_base_weeks_make_the_rows(tmp_path: Path) -> None:
    """A product with too few recent reviews would be a row, or one with just enough would not."""
    content = [*steady_market(), review("F", 3), review("F", 5), review("F", 5, user_id="another")]
    config = config_for(tmp_path, content, PanelConfig(horizon_weeks=2, top_fraction=0.4, base_weeks=3, min_reviews=3))
    manifest = prepare_every_week(config)
    rows = gather(tmp_path / "out", "train")
    assert {week for product, week in rows if product == "F"} == {5}
    assert {week for product, week in rows if product == "A"} == set(range(2, 18))
    assert manifest["splits"]["forecast"]["rows"] == 5


growths = st.lists(st.tuples(st.integers(100, 103), st.sampled_from([0.0, 0.5, 1.0, 1.5, 7.0])), min_size=1, max_size=80)


@given(rows=growths, top_fraction=st.sampled_from([0.01, 0.05, 0.1, 1 / 3, 0.5, 0.99]))
def test_hot_is_never_more_than_the_top_fraction(rows: list[tuple[int, float]], top_fraction: float) -> None:
    """Ties at the threshold would be hot, weeks would share a threshold, or fewer rows than possible would be hot."""
    week, growth = np.array([row[0] for row in rows], np.int16), np.array([row[1] for row in rows], np.float32)
    thresholds = panel.growth_thresholds(week, growth, top_fraction)
    assert set(thresholds) == set(week.tolist())
    for number, threshold in thresholds.items():
        here = growth[week == number]
        room = math.floor(top_fraction * len(here) + 1e-9)
        assert (here > threshold).sum() <= room
        assert (here >= threshold).sum() > room


def test_a_threshold_is_exact() -> None:
    """0.05 × 60 would be 2 instead of 3, by the rounding of floating-point numbers."""
    week, growth = np.zeros(60, np.int16), np.arange(60, dtype=np.float32)
    assert (growth > panel.growth_thresholds(week, growth, 0.05)[0]).sum() == 3
    assert panel.growth_thresholds(week[:9], growth[:9], 1 - 1e-11)[0] == 0, "at most 8 of 9 rows are hot"
    growth[-4:] = 99
    assert (growth > panel.growth_thresholds(week, growth, 0.05)[0]).sum() == 0


# ------------------------------------------------------------------------------------------------ splits


@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=120),
    horizon=st.integers(1, 13),
    shares=st.tuples(*[st.floats(0.01, 10)] * 4),
)
def test_splits_go_forward_with_an_embargo(rows: list[int], horizon: int, shares: Any) -> None:
    """A label of one split would depend on weeks of the next split, and the score on test would be too good."""
    config = PanelConfig(horizon_weeks=horizon, shares=shares)
    if len(rows) < 3 * (horizon + 1) + 1:
        with pytest.raises(UserError, match=rf"the data cover {len(rows) + horizon} complete weeks, but four splits"):
            split_weeks(2600, 2600 + len(rows) + horizon - 1, np.array(rows), config)
        return
    ranges = split_weeks(2600, 2600 + len(rows) + horizon - 1, np.array(rows), config)
    assert tuple(ranges) == SPLITS
    assert ranges["train"][0] == 2600
    assert ranges["test"][1] == 2600 + len(rows) - 1
    for (begin, end), (next_begin, _) in zip(list(ranges.values())[:-1], list(ranges.values())[1:], strict=True):
        assert begin <= end
        assert next_begin == end + horizon + 1, "exactly the horizon between two splits"


@given(num_weeks=st.integers(60, 200), per_week=st.integers(1, 1000), more=st.booleans())
def test_splits_have_their_shares_of_the_rows(num_weeks: int, per_week: int, more: bool) -> None:
    """A split would be far smaller than its share, as by weeks in a market that grows."""
    rows = per_week * (1 + more * np.arange(num_weeks))
    ranges = split_weeks(0, num_weeks + 3, rows, PanelConfig(horizon_weeks=4))
    num_rows = np.array([rows[begin : end + 1].sum() for begin, end in ranges.values()])
    expected = num_rows.sum() * np.array(PanelConfig().shares)
    assert (abs(num_rows - expected) <= 2 * rows.max()).all(), (num_rows, expected)


def test_data_that_are_too_short(tmp_path: Path) -> None:
    """A short file would end in a traceback, or in splits without an embargo."""
    for num_weeks, fits in ((11, False), (12, True)):
        config = config_for(tmp_path, steady_market(num_weeks), overwrite=True)
        if fits:
            assert panel.prepare(config)["splits"].keys() == {*SPLITS, FORECAST}
            continue
        with pytest.raises(
            UserError, match=r"cover 11 complete weeks, but four splits with a horizon of 2 weeks need.* 12:"
        ):
            panel.prepare(config)
    for part_of_week, num in ((0.3, 0), (SUNDAY, 1)):
        config = config_for(tmp_path / f"{num}", [review("A", 0, part_of_week)])
        with pytest.raises(UserError, match=f"the data cover {num} complete weeks, but"):
            panel.prepare(config)


def test_a_split_without_rows_or_hot_rows(tmp_path: Path) -> None:
    """A member would be trained, or scored, on nothing."""
    with pytest.raises(
        UserError,
        match=r"the train split has .* rows but no hot product.*panel.top_fraction=0.05: raise panel.top_fraction",
    ):
        panel.prepare(config_for(tmp_path, steady_market(), PanelConfig(horizon_weeks=2)))
    gap = [one for one in steady_market(60) if not 2 * weekly.WEEK_MS < one["timestamp"] - FIRST_MS < 58 * weekly.WEEK_MS]
    with pytest.raises(UserError, match=r"the validation split has no rows: lower panel.min_reviews, or give more data"):
        panel.prepare(config_for(tmp_path, gap, PanelConfig(horizon_weeks=2, top_fraction=0.4, base_weeks=1)))
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


# ------------------------------------------------------------------------------------------------ the folder

STAGES = [
    (panel, "raw_files"),
    (reviews, "read_products"),
    (reviews, "read_reviews"),
    (text, "tokenize"),
    (weekly, "sum_by_week"),
    (folds, "split_weeks"),
    (panel, "growth_thresholds"),
    (features, "compute"),
    (arrow.TableWriter, "write"),
    (arrow, "write_description"),
    (folders, "sha256"),
    (folders, "sync"),
]


@pytest.mark.parametrize(("module", "name"), STAGES)
@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_at_any_stage_leaves_nothing(
    module: Any, name: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete folder would look complete, or a failed second run would destroy the result of the first."""
    config = config_for(tmp_path, steady_market(), metadata=(write_metadata(tmp_path / "raw"),), overwrite=exists)
    before = panel.prepare(config)["fingerprint"] if exists else None

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(OSError, match="no space left"):
        panel.prepare(config)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out", "raw"] if exists else ["raw"])
    if exists:
        assert folders.verify(tmp_path / "out")["fingerprint"] == before


def test_the_same_raw_files_give_the_same_fingerprint(tmp_path: Path) -> None:
    """Members trained in two places on the same data could not be joined, or those on different data could."""
    content = [*steady_market(), review("B", 4, rating=0.0)]
    fingerprints = {
        name: panel.prepare(config_for(tmp_path / name, content, max_bad_fraction=0.5, **changes))["fingerprint"]
        for name, changes in {
            "here": {},
            "there": {},
            "horizon": {"panel": PanelConfig(horizon_weeks=3, top_fraction=0.4)},
            "metadata": {"metadata": (write_metadata(tmp_path / "raw"),)},
        }.items()
    }
    changed = [*content[:-2], content[-2] | {"rating": 3.5}, content[-1]]
    fingerprints["rating"] = panel.prepare(config_for(tmp_path / "rating", changed, max_bad_fraction=0.5))["fingerprint"]
    assert fingerprints["here"] == fingerprints["there"]
    assert len(set(fingerprints.values())) == 4


def test_a_path_may_look_like_a_pattern(tmp_path: Path) -> None:
    """Data could not be prepared in a folder such as runs[2], of which the brackets would be read as a pattern."""
    assert panel.prepare(config_for(tmp_path / "runs[2]" / "*", steady_market()))["splits"]


def test_the_entries_of_the_manifest(prepared: Path, raw_market: tuple[Path, Path]) -> None:
    """The manifest would not show from which files the data were prepared, or what a column means."""
    manifest = folders.read_manifest(prepared)
    assert manifest["recipe"] == "hot_sellers"
    assert [(source["name"], source["sha256"]) for source in manifest["sources"]] == [
        (file.name, folders.sha256(file)) for file in raw_market
    ]
    assert [feature["name"] for feature in manifest["features"]] == [f.name for f in features.selection(False)]
    columns = open_table(prepared / "rows" / "train").column_names
    assert columns == [*panel.INDEX_COLUMNS, *TARGETS, *(feature["name"] for feature in manifest["features"])]
    assert manifest["products"] == open_table(prepared / "products").num_rows
    assert manifest["categories"][0] == ""
    assert manifest["categories"][1:] == sorted(set(manifest["categories"][1:]))
    assert manifest["product_census"]["rows_kept"] > 0
    assert not list(prepared.rglob("*spill*"))


def test_raw_data_inside_out_are_refused(tmp_path: Path) -> None:
    """Replacing `out` would delete the user's own reviews."""
    (tmp_path / "out").mkdir()
    inside = write_raw(tmp_path / "out", steady_market())
    (tmp_path / "out" / "manifest.json").write_text('{"kind": "prepared data"}')
    for changes in (
        {"source": (inside,)},
        {"metadata": (write_metadata(tmp_path / "out" / "deep"),)},
        {"source": (), "raw": str(tmp_path / "out" / "raw")},
    ):
        with pytest.raises(
            UserError, match=r"lies inside out=.*out, which is replaced as a whole|which its manifest does not list"
        ):
            panel.prepare(config_for(tmp_path, steady_market(), overwrite=True, **changes))
    assert Path(inside).exists()
    assert not (tmp_path / "out" / "raw").exists()


@pytest.mark.parametrize("source", [(), ("hub:All_Beauty",)], ids=["generated", "downloaded"])
def test_raw_data_inside_prepared_data_are_refused(prepared: Path, tmp_path: Path, source: tuple[str, ...]) -> None:
    """Prepared data would contain files that their manifest does not list, and could not be replaced any more."""
    with pytest.raises(UserError, match=r"lies inside .* which is prepared data"):
        panel.prepare(PrepareConfig(out=str(tmp_path / "out"), raw=str(prepared / "raw"), source=source))
    assert not (prepared / "raw").exists()


def test_metadata_without_reviews_is_refused(tmp_path: Path) -> None:
    """The generated market would be joined with the products of another one."""
    with pytest.raises(UserError, match="metadata is given without source: name the review files too, or leave both out"):
        panel.prepare(PrepareConfig(out=str(tmp_path / "out"), metadata=(write_metadata(tmp_path / "raw"),)))


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_without_text(tmp_path: Path, num_tokens: int) -> None:
    """Data without text, or with one word of it, could not be prepared."""
    config = config_for(tmp_path, steady_market(), PanelConfig(horizon_weeks=2, top_fraction=0.4, num_tokens=num_tokens))
    manifest = panel.prepare(config)
    assert manifest["has_text"] == bool(num_tokens)
    read = open_table(tmp_path / "out" / "reviews")
    assert read.num_rows == (manifest["census"]["rows_kept"] if num_tokens else 0)
    assert read.schema.field("tokens").type == pa.list_(pa.uint16(), 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"horizon_weeks": 0}, "panel.horizon_weeks=0 is impossible: it must be between 1 and 520 weeks"),
        ({"horizon_weeks": -3}, "panel.horizon_weeks=-3 is impossible: it must be between 1 and 520 weeks"),
        ({"base_weeks": 0}, "panel.base_weeks=0 is impossible: it must be between 1 and 52 weeks"),
        ({"base_weeks": 53}, "panel.base_weeks=53 is impossible: it must be between 1 and 52 weeks"),
        ({"top_fraction": 0.0}, "panel.top_fraction=0.0 is impossible: it must be more than 0 and below 1"),
        ({"top_fraction": 1.0}, "panel.top_fraction=1.0 is impossible: it must be more than 0 and below 1"),
        ({"top_fraction": math.nan}, "panel.top_fraction=nan is impossible: it must be more than 0 and below 1"),
        ({"min_reviews": 0}, "panel.min_reviews=0 is impossible: it must be at least 1"),
        ({"shares": (1, 1, 1)}, "panel.shares=[1, 1, 1] is impossible: it must be four positive numbers"),
        ({"shares": (1, 0, 1, 1)}, "panel.shares=[1, 0, 1, 1] is impossible: it must be four positive numbers"),
        ({"shares": (1, 1, 1, math.inf)}, "panel.shares=[1, 1, 1, inf] is impossible: it must be four positive numbers"),
        ({"shares": (1, 1, 1, math.nan)}, "panel.shares=[1, 1, 1, nan] is impossible: it must be four positive numbers"),
        ({"num_tokens": -1}, "panel.num_tokens=-1 is impossible: it must be between 0 and 4096"),
        ({"num_tokens": 5000}, "panel.num_tokens=5000 is impossible: it must be between 0 and 4096"),
        ({"vocabulary_size": 1}, "panel.vocabulary_size=1 is impossible: it must be between 2 and 65536"),
        ({"vocabulary_size": 65537}, "panel.vocabulary_size=65537 is impossible: it must be between 2 and 65536"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """An impossible setting would run for an hour and then fail, or give nonsense."""
    with pytest.raises(UserError) as error:
        panel.prepare(PrepareConfig(out=str(tmp_path / "out"), panel=PanelConfig(**changes)))
    assert str(error.value) == sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fraction", [-0.1, 5, math.nan])
def test_a_bad_fraction_that_is_none(tmp_path: Path, fraction: float) -> None:
    """Five, meant as per cent, would let every bad row pass."""
    with pytest.raises(UserError, match=f"max_bad_fraction={fraction} is impossible: it must be between 0 and 1"):
        panel.prepare(PrepareConfig(out=str(tmp_path / "out"), max_bad_fraction=fraction))


def test_reviews_of_the_users_are_not_replaced_by_a_generated_market(tmp_path: Path) -> None:
    """overwrite=true, which job scripts give, would replace real reviews that lie in the folder `raw`."""
    market = MarketConfig(num_products=5, num_reviews=10)
    config = PrepareConfig(out=str(tmp_path / "out"), raw=str(tmp_path / "raw"), overwrite=True, market=market)
    panel.raw_files(config)
    panel.raw_files(config)  # its own files are replaced
    reviews_file = tmp_path / "raw/reviews.jsonl"
    reviews_file.write_text('{"precious": 1}\n')
    with pytest.raises(UserError, match=r"raw holds raw files that were not generated here: choose another raw=FOLDER"):
        panel.raw_files(config)
    assert reviews_file.read_text() == '{"precious": 1}\n'


def test_a_kill_between_the_two_files_of_a_market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that was stopped there could not be continued: one file would be there, and not be known as generated."""
    market = MarketConfig(num_products=5, num_reviews=10)
    config = PrepareConfig(out=str(tmp_path / "out"), raw=str(tmp_path / "raw"), overwrite=True, market=market)
    sync = folders.sync

    def stopped(path: Path) -> None:
        if path.name.startswith(".reviews.jsonl"):
            raise KeyboardInterrupt
        sync(path)

    monkeypatch.setattr(folders, "sync", stopped)
    with pytest.raises(KeyboardInterrupt):
        panel.raw_files(config)
    monkeypatch.undo()
    assert (tmp_path / "raw/meta.jsonl").exists()
    assert not (tmp_path / "raw/reviews.jsonl").exists()
    files = panel.raw_files(config)
    assert all(file.exists() for (file,) in files)
