"""Candidates of next_item: which items they are, their features, and that no feature depends on later events."""

import dataclasses
import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ranked
import tree_members
from hypothesis import example, given
from hypothesis import strategies as st

from ensemble import folders, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictor import members
from ensemble.recipes.next_item import item_ranks, rankings
from ensemble.recipes.next_item import prepare as sequences
from ensemble.recipes.next_item.candidates import baselines
from ensemble.recipes.next_item.candidates import features as candidate_features
from ensemble.recipes.next_item.candidates import prepare as candidates
from ensemble.recipes.next_item.candidates.features import PastEvents
from ensemble.recipes.next_item.candidates.settings import PrepareConfig
from ensemble.recipes.next_item.settings import PrepareConfig as SequencesConfig
from ensemble.trees import predict, train

NUM_USERS, NUM_ITEMS, NUM_DAYS = 90, 30, 200
DAY_MS = 86_400_000
FIRST_DAY = 15_000  # since 1970
BY_TIME = {"split": "time", "validation_from": "2011-06-01", "test_from": "2011-07-10"}
MEMBERS = ("net-a", "net b")


def raw(folder: Path, kind: str) -> Path:
    """Users who take 5 to 12 of 30 items, whole days apart, often two on one day; user 0 takes an item again at the end."""
    generator = np.random.default_rng(0)
    lines = []
    for user in range(NUM_USERS):
        items = generator.permutation(NUM_ITEMS)[: generator.integers(5, 13)] + 1
        if user == 0:
            items[-1] = items[0]
        days = FIRST_DAY + np.sort(generator.integers(0, NUM_DAYS, len(items)))
        if kind == "gaps":
            gaps = 86_400 * np.diff(days, prepend=days[0])
            lines.append(f"{user} {' '.join(map(str, items))}\t{' '.join(map(str, gaps))}")
        elif kind == "pairs":
            lines += [f"{user} {item}" for item in items]
        else:
            lines += [f"{user}::{item}::3::{86_400 * day}" for item, day in zip(items, days, strict=True)]
    file = folder / f"{kind}.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def prepared(folder: Path, kind: str = "ratings", **settings: Any) -> tuple[Path, Path]:
    """Data of next_item, and a folder with the ranking files of two members with random scores."""
    data = folder / "prepared"
    sequences.prepare(SequencesConfig(**{"source": (str(raw(folder, kind)),), "out": str(data), "core": 1, **settings}))
    generator = np.random.default_rng(1)
    for member in MEMBERS:
        ranked.write(folder / "rankings", data, member, generator.normal(size=shape_of_scores(data)))
    return data, folder / "rankings"


def shape_of_scores(data: Path) -> tuple[int, int]:
    """The number of sequences of validation, test and forecast, and the number of items."""
    manifest = folders.read_manifest(data)
    return sum(manifest["splits"][split]["rows"] for split in ("validation", "test", "forecast")), manifest["items"]


def prepare(data: Path, folder: Path, **settings: Any) -> tuple[dict[str, Any], Path]:
    out = folder / "candidates"
    given = {"data": str(data), "rankings": (str(folder / "rankings"),), "out": str(out), "num_candidates": 12, "seed": 3}
    return candidates.prepare(PrepareConfig(**{**given, **settings})), out


@pytest.fixture(scope="module", params=["ratings", "by time", "gaps", "pairs"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data of next_item, and candidates made from it."""
    folder = tmp_path_factory.mktemp("candidates")
    kind, settings = ("ratings", BY_TIME) if request.param == "by time" else (request.param, {})
    data, _ = prepared(folder, kind, **settings)
    return data, prepare(data, folder, num_learned=8)[1]


def rows_of(folder: Path, split: str) -> dict[str, np.ndarray]:
    table = open_table(folder / "rows" / split)
    return {name: table[name].to_numpy() for name in table.column_names}


def sequences_of(data: Path, split: str) -> dict[int, tuple[int, list[int], list[int], int]]:
    """By row id: the user, the items before the target and their times, and the target, 0 in forecast."""
    events = open_table(data / "events").to_pydict()
    known = {}
    for row in open_table(data / "rows" / split).to_pylist():
        last = row["end"] - (split != "forecast")
        items, times = (events[name][row["begin"] : last] for name in ("item", "time"))
        known[row["row_id"]] = (row["user"], items, times, 0 if split == "forecast" else events["item"][last])
    return known


def source_of(split: str) -> str:
    """The split of next_item whose sequences a split of candidates has."""
    return split if split in ("test", "forecast") else "validation"


def test_candidates_are_what_the_members_show(made: tuple[Path, Path]) -> None:
    """An item would be missing, occur twice, or be one that was taken before, which reveals that it is the target."""
    data, out = made
    assert list(folders.read_manifest(out)["splits"]) == ["train", "validation", "blend", "test", "forecast"]
    for split in folders.read_manifest(out)["splits"]:
        source = source_of(split)
        files = [rankings.read(data.parent / "rankings" / f"{member}.{source}.parquet") for member in MEMBERS]
        of_row = {row: place for place, row in enumerate(files[0].row_id)}
        known, rows = sequences_of(data, source), rows_of(out, split)
        assert len(np.unique(rows["group"])) == len(np.unique(rows["sequence"]))
        assert (np.diff(rows["group"]) >= 0).all()
        for sequence in np.unique(rows["sequence"]):
            here = rows["sequence"] == sequence
            user, items, _, target = known[sequence]
            shown = set().union(*(set(file.items[of_row[sequence], :12].tolist()) for file in files)) - {0} - set(items)
            candidate_items = rows["item"][here].tolist()
            assert len(set(candidate_items)) == len(candidate_items)
            assert (rows["cluster"][here] == user).all()
            assert np.array_equal(rows["target"][here] == 1, rows["item"][here] == target)
            assert np.isnan(rows["target"][here]).all() == (split == "forecast")
            if split in candidates.LEARNED:
                assert target in candidate_items
                assert set(candidate_items) <= shown
                assert len(candidate_items) == min(8, len(shown))
            else:
                assert set(candidate_items) == shown
                assert split in ("test", "forecast") or target in candidate_items


def test_scores_stand_beside_their_items(made: tuple[Path, Path]) -> None:
    """A score would be that of another item, or of an item that is not in the ranking file."""
    data, out = made
    file = rankings.read(data.parent / "rankings" / "net b.test.parquet")
    rows = rows_of(out, "test")
    of_row = {row: place for place, row in enumerate(file.row_id)}
    for row in range(0, len(rows["item"]), 7):
        place = of_row[rows["sequence"][row]]
        shown = file.items[place, :12].tolist()
        if rows["item"][row] in shown:
            at = shown.index(rows["item"][row])
            assert rows["net_b_place"][row] == at + 1
            assert rows["net_b_score"][row] == file.scores[place, at]
            assert rows["net_b_less_best"][row] == file.scores[place, at] - file.scores[place, 0]
        else:
            assert np.isnan([rows[f"net_b_{name}"][row] for name in ("place", "score", "less_best")]).all()
    places = np.stack([rows["net_a_place"], rows["net_b_place"]])
    assert np.array_equal(rows["num_rankings"], np.isfinite(places).sum(0))
    np.testing.assert_allclose(rows["fused"], np.nansum(1 / (60 + places), axis=0), rtol=1e-6)


def test_splits_keep_users_or_moments_apart(made: tuple[Path, Path]) -> None:
    """The ensemble would be fitted on rows that its members were trained on, or on earlier ones."""
    data, out = made
    manifest = folders.read_manifest(out)
    parts = {split: rows_of(out, split) for split in manifest["splits"]}
    groups = [set(rows["group"]) for rows in parts.values()]
    assert all(not one & other for one, other in itertools.combinations(groups, 2))
    ids = np.concatenate([rows["row_id"] for rows in parts.values()])
    assert np.array_equal(ids, np.arange(len(ids)))
    assert manifest["splits"]["test"]["sequences"] == folders.read_manifest(data)["splits"]["test"]["rows"]
    num_sequences = [manifest["splits"][split]["sequences"] for split in ("train", "validation", "blend")]
    assert sum(num_sequences) == folders.read_manifest(data)["splits"]["validation"]["rows"]
    np.testing.assert_allclose(np.array(num_sequences) / sum(num_sequences), [0.6, 0.15, 0.25], atol=0.06)
    if folders.read_manifest(data)["config"]["split"] == "time":
        events = open_table(data / "events")["time"].to_numpy()
        at = {
            row["row_id"]: events[row["end"] - 1]
            for split in ("validation", "test")
            for row in open_table(data / "rows" / split).to_pylist()
        }
        of_forecast = parts.pop("forecast")["sequence"]
        last = {row_id: times[-1] for row_id, (_, _, times, _) in sequences_of(data, "forecast").items()}
        assert (np.diff([last[sequence] for sequence in of_forecast]) >= 0).all()
        times = [np.array([at[sequence] for sequence in rows["sequence"]]) for rows in parts.values()]
        assert all(one.max() < other.min() for one, other in itertools.pairwise(times))
        assert all((np.diff(of) >= 0).all() for of in times)
    else:
        users = [set(parts[split]["cluster"]) for split in ("train", "validation", "blend")]
        assert all(not one & other for one, other in itertools.combinations(users, 2))


def plain(data: Path, sequence: int, split: str, candidate: int, common_clock: bool) -> dict[str, float]:
    """Every feature of an item by plain loops over all events."""
    events = open_table(data / "events").to_pydict()
    rows = {name: open_table(data / "rows" / name).to_pylist() for name in ("train", "validation", "test")}
    _, items, times, _ = sequences_of(data, split)[sequence]
    whole: dict[int, tuple[int, int]] = {}
    for row_ in itertools.chain(*rows.values()):
        begin, end = whole.get(row_["user"], (row_["begin"], 0))
        whole[row_["user"]] = (begin, max(end, row_["end"]))
    if not common_clock:
        whole = {row_["user"]: (row_["begin"], row_["end"]) for row_ in rows["train"]}
    moment = times[-1] if common_clock else math.inf
    walks = [
        [(item, time) for item, time in zip(events["item"][a:b], events["time"][a:b], strict=True) if time < moment]
        for a, b in whole.values()
    ]

    def taken(item: int) -> list[int]:
        return sorted(time for walk in walks for other, time in walk if other == item)

    def near(one: int, other: int) -> int:
        return sum(
            {walk[i][0], walk[j][0]} == {one, other}
            for walk in walks
            for i in range(len(walk))
            for j in range(i + 1, min(i + 4, len(walk)))
        )

    moments = taken(candidate)
    recent = items[-20:]
    usual = sum(math.log1p(len(taken(item))) for item in recent) / len(recent)
    last = items[::-1][:3]
    cosines = [near(item, candidate) / math.sqrt(max(1, len(taken(item))) * max(1, len(moments))) for item in last]
    features = {
        "popularity": math.log1p(len(moments)),
        "popularity_less_usual": math.log1p(len(moments)) - usual,
        "next_last": math.log1p(
            sum(a[0] == items[-1] and b[0] == candidate for walk in walks for a, b in itertools.pairwise(walk))
        ),
        "near_last": math.log1p(near(items[-1], candidate)),
        "near_last_3": math.log1p(sum(near(item, candidate) for item in last)),
        "cosine_last": cosines[0],
        "cosine_last_3": sum(cosines),
        "length": len(items),
        "usual_popularity": usual,
        "days_since_previous": (times[-1] - times[-2]) / DAY_MS if len(times) > 1 else math.nan,
    }
    if common_clock:
        short, long = (sum(time >= moment - days * DAY_MS for time in moments) for days in (30, 90))
        features |= {
            "popularity_30": math.log1p(short),
            "popularity_90": math.log1p(long),
            "trend": math.log((short + 1) / (long / 3 + 1)),
            "age": (moment - moments[0]) / DAY_MS if moments else math.nan,
            "days_since_taken": (moment - moments[-1]) / DAY_MS if moments else math.nan,
        }
    return features


def test_features_are_those_of_plain_loops(made: tuple[Path, Path]) -> None:
    """A count would be of another item, window or time, and nobody would notice."""
    data, out = made
    manifest = folders.read_manifest(data)
    names = candidate_features.meanings(manifest["has_time"], manifest["common_clock"])
    assert manifest["common_clock"] == (data.parent / "ratings.txt").exists() == ("popularity_30" in names)
    for split in ("train", "test", "forecast"):
        rows = rows_of(out, split)
        for row in range(0, len(rows["item"]), len(rows["item"]) // 12):
            wanted = plain(data, rows["sequence"][row], source_of(split), rows["item"][row], manifest["common_clock"])
            for name in names:
                assert rows[name][row] == pytest.approx(wanted[name], rel=1e-5, abs=1e-6, nan_ok=True), name
    listed = [feature["name"] for feature in folders.read_manifest(out)["features"]]
    assert set(listed) == {*rows, "row_id"} - {*candidates.ID_COLUMNS, "target"}


@example(5241)  # asks for items above all that were taken before
@given(st.integers(0, 10_000))
def test_nothing_comes_from_later(seed: int) -> None:
    """A feature would depend on the target or on later events, so that validation scores would be too high."""
    generator = np.random.default_rng(seed)
    user = np.sort(generator.integers(0, 8, 60))
    item = generator.integers(1, 10, 60).astype(np.int32)
    time = np.empty(60, np.int64)
    for number in range(8):
        time[user == number] = DAY_MS * np.sort(generator.integers(0, 40, (user == number).sum()))
    first = int(generator.integers(60))
    begin, end = np.searchsorted(user, user[first]), first + 1
    own = np.zeros(60, bool)
    own[begin:end] = True
    known = own | (time < time[first])
    asked = np.arange(1, 10)

    def features(kept: np.ndarray, item: np.ndarray, time: np.ndarray) -> list[bytes]:
        past = PastEvents(item[kept], time[kept], user[kept], np.zeros(kept.sum(), bool), has_time=True, common_clock=True)
        begins, ends = (np.array([kept[:at].sum()]) for at in (begin, end))
        return [values.tobytes() for values in past.features(begins, ends, np.zeros(9, int), asked).values()]

    everything = np.ones(60, bool)
    whole = features(everything, item, time)
    assert features(known, item, time) == whole
    other_item = np.where(known, item, generator.integers(1, 10, 60)).astype(np.int32)
    assert features(everything, other_item, np.where(known, time, time + 7 * DAY_MS)) == whole


def test_a_ranking_file_is_a_member(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Ranking files could not be members on candidates, or items that are not in the file would tie with those that are."""
    _, out = made
    columns = baselines.predict(out, "test", "net-a")
    rows = rows_of(out, "test")
    assert np.array_equal(columns["row_id"], rows["row_id"])
    for group in np.unique(rows["group"])[::5]:
        here = rows["group"] == group
        shown = here & np.isfinite(rows["net_a_score"])
        assert np.array_equal(columns["prediction"][shown], rows["net_a_score"][shown])
        assert (columns["prediction"][here & ~shown] == rows["net_a_score"][shown].min() - np.float64(1)).all()
    predictions.write(tmp_path / "net-a.test.parquet", predictions.Predictions(**columns, split="test", member="net-a"))
    manifest = folders.read_manifest(out)
    assert members.baselines(manifest)["net-a"] == "ranking"
    assert "net_a" not in members.baselines(manifest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return prepared(tmp_path_factory.mktemp("whole"))


def test_only_rows_of_the_forecast_are_explained(
    whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the rows with reasons would not be among the ten best of a user, and so in no forecast."""
    data, folder = whole
    _, out = prepare(data, tmp_path, rankings=(str(folder),))
    train.train(tree_members.config_of("lightgbm", out, tmp_path / "member", num_rounds=3))
    monkeypatch.setattr(predict, "EXPLAINED_ROWS", (50, 50))
    result = predict.TreeMember(tmp_path / "member").predict(out, "forecast")
    explained = np.flatnonzero([bool(reasons) for reasons in result["reasons"]])
    assert len(np.unique(result["group"][explained])) == 5
    for row in explained:
        own = result["prediction"][result["group"] == result["group"][row]]
        assert (own > result["prediction"][row]).sum() < 10


def test_tied_items_of_the_forecast_are_in_one_random_order(made: tuple[Path, Path]) -> None:
    """Of items with equal predictions, the first ones of the raw file would be in the forecast, not random ones."""
    rows = rows_of(made[1], "forecast")
    assert (np.diff(rows["row_id"]) == 1).all()
    expected = np.lexsort((item_ranks.tie_key(rows["item"]), rows["group"]))
    assert np.array_equal(rows["item"], rows["item"][expected])


def test_without_a_forecast_of_a_member_there_is_none(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """A member's scores would be missing in the forecast alone, or ranking files of an older version would be refused."""
    data, folder = whole
    shutil.copytree(folder, tmp_path / "rankings")
    (tmp_path / "rankings/net b.forecast.parquet").unlink()
    manifest, _ = prepare(data, tmp_path)
    assert list(manifest["splits"]) == ["train", "validation", "blend", "test"]


def test_the_same_seed_gives_the_same_bits(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """A run could not be reproduced, or the seed would have no effect."""
    data, folder = whole
    given = {"rankings": (str(folder),), "num_learned": 4}
    first, again, other = (
        prepare(data, tmp_path / str(number), seed=seed, **given)[0] for number, seed in enumerate((1, 1, 2))
    )
    assert first["fingerprint"] == again["fingerprint"] != other["fingerprint"]


def test_pieces_give_the_same_table(whole: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large set, which is prepared in blocks, would have other features than a small one."""
    data, folder = whole
    given = {"rankings": (str(folder),), "num_learned": 1000}
    at_once = rows_of(prepare(data, tmp_path / "whole", **given)[1], "blend")
    monkeypatch.setattr(candidates, "ROWS_AT_ONCE", 100)
    in_pieces = rows_of(prepare(data, tmp_path / "pieces", **given)[1], "blend")
    for name, values in at_once.items():
        np.testing.assert_array_equal(in_pieces[name], values)


def test_a_member_named_best_keeps_its_place(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """Its place would be replaced by the best place in any ranking file, without a message."""
    data, _ = whole
    ranked.write(tmp_path / "rankings", data, "best", np.random.default_rng(2).normal(size=shape_of_scores(data)))
    about, _ = prepare(data, tmp_path, num_candidates=NUM_ITEMS)
    meanings = {feature["meaning"] for feature in about["features"]}
    assert {"place by best", "best place of the item in any ranking file"} <= meanings


def no_test_file(folder: Path, data: Path) -> None:
    (folder / "net b.test.parquet").unlink()


def other_data(folder: Path, data: Path) -> None:
    nothing(folder, data)
    ranked.write(folder, data, "alone", np.zeros(shape_of_scores(data)), fingerprint="f00d")


def no_ranking(folder: Path, data: Path) -> None:
    (folder / "net b.test.parquet").unlink()
    pq.write_table(pa.table({"row_id": [1]}), folder / "net b.validation.parquet")


def misnamed(folder: Path, data: Path) -> None:
    (folder / "net b.test.parquet").write_bytes((folder / "net b.validation.parquet").read_bytes())
    (folder / "net-a.test.parquet").write_bytes((folder / "net-a.validation.parquet").read_bytes())


def of_two_models(folder: Path, data: Path) -> None:
    for split in ("validation", "test"):
        file = rankings.read(folder / f"net b.{split}.parquet")
        config = {**file.config, "model": f"the one that predicted {split}"}
        rankings.write(folder / f"net b.{split}.parquet", dataclasses.replace(file, config=config))


def unknown_item(folder: Path, data: Path) -> None:
    file = rankings.read(folder / "net b.test.parquet")
    items = np.where(file.items == 1, 1000, file.items)
    rankings.write(folder / "net b.test.parquet", dataclasses.replace(file, items=items))


def repeated_item(folder: Path, data: Path) -> None:
    file = rankings.read(folder / "net b.test.parquet")
    items = np.where(np.arange(file.items.shape[1]) == 5, file.items[:, 1:2], file.items)
    rankings.write(folder / "net b.test.parquet", dataclasses.replace(file, items=items))


def nothing(folder: Path, data: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def short_lists(folder: Path, data: Path) -> None:
    ranked.write(folder, data, "short", np.zeros(shape_of_scores(data)), num_top=5)


@pytest.mark.parametrize(
    ("spoil", "settings", "sentence"),
    [
        (no_test_file, {}, "member net b has no ranking file of test: predict again with splits=\\[valid"),
        (no_ranking, {}, "net b.validation.parquet"),
        (other_data, {}, "the ranking files are of data with the fingerprint f00d, but .* has the"),
        (misnamed, {}, "net b.test.parquet holds a ranking of validation|net-a.test.parquet holds a ranking of validation"),
        (of_two_models, {}, "ranking files of net b for validation and test are of different models, .*: predict both"),
        (unknown_item, {}, "net b ranks the item 1000 for test, but the data have .* items, numbered from 1 on"),
        (repeated_item, {}, "net b ranks the item .* twice in row .* of test: write each item of a row once"),
        (nothing, {}, "there is no ranking file in .*: write some with scripts/predict.py"),
        (short_lists, {}, "num_candidates=12 is more than the 5 items of each row"),
        (None, {"rankings": ()}, "there is no ranking file in rankings=\\[\\]"),
        (None, {"rankings": ("nowhere",)}, "there is no folder nowhere"),
        (None, {"num_learned": 1}, "num_learned=1 is impossible: .* at least 2"),
        (None, {"shares": (0.98, 0.01, 0.01)}, "the validation split has . sequences whose next item .* fewer than 10"),
    ],
)
def test_mistakes(whole: tuple[Path, Path], tmp_path: Path, spoil: Any, settings: dict[str, Any], sentence: str) -> None:
    """The user would see a traceback, or an incomplete folder would be left."""
    data, folder = whole
    own = tmp_path / "rankings"
    own.mkdir()
    for file in folder.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    if spoil:
        spoil(own, data)
    with pytest.raises(UserError, match=sentence):
        prepare(data, tmp_path, **settings)
    assert not list(tmp_path.glob("*candidates*"))


def test_two_members_with_one_name_are_refused(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """The member of the last folder would replace the other, even in one split alone, without a message."""
    data, folder = whole
    other = tmp_path / "other"
    both = (str(folder), str(other))
    other.mkdir()
    shutil.copy(folder / "net b.validation.parquet", other)
    assert set(prepare(data, tmp_path / "copies", rankings=both)[0]["rankings"]) == set(MEMBERS)
    ranked.write(other, data, "net b", np.random.default_rng(5).normal(size=shape_of_scores(data)))
    for split in ("validation", "test"):
        with pytest.raises(UserError, match=rf"net b.{split}.parquet and .*{other}/net b.{split}.parquet are different"):
            prepare(data, tmp_path / "different", rankings=both)
        (other / f"net b.{split}.parquet").unlink()


def test_shares_of_empty_splits_are_refused(tmp_path: Path) -> None:
    """Forward in time, a last share that is too small for one sequence would raise an IndexError."""
    data, _ = prepared(tmp_path, **BY_TIME)
    with pytest.raises(UserError, match=r"the blend split has . sequences whose next item"):
        prepare(data, tmp_path, shares=(0.6, 0.4, 1e-17))


def test_other_data_are_refused(whole: tuple[Path, Path], tmp_path: Path) -> None:
    """A table, or candidates themselves, would cause a traceback."""
    data, folder = whole
    _, out = prepare(data, tmp_path, rankings=(str(folder),))
    with pytest.raises(UserError, match="was prepared for the recipe candidates: set data= to data of next_item"):
        prepare(out, tmp_path / "again", rankings=(str(folder),))
