"""The folds of a table: which rows each copy learns from and which it predicts, for tables of all kinds."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tables import prepare, rows_of

from ensemble.data.census import Census
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.predictor.scoring import LEAST_SLICES
from ensemble.recipes.table import splits
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.splits import FORECAST, TEST, TRAIN, Splits, split_rows

SETTINGS: dict[str, Any] = {"out": "", "target": "y", "time": "day", "group": "household"}
BINARY = np.arange(200) % 4 == 0


def split(
    target: Any,
    *,
    kind: str = "regression",
    time: Any = None,
    unit: Any = None,
    census: Census | None = None,
    weight: Any = None,
    **settings: Any,
) -> Splits:
    """`split_rows` of a target alone, or with times and groups."""
    target = np.asarray(target, np.float64)
    given = {"time": "day" if time is not None else "", "group": "household" if unit is not None else ""}
    census = census or Census()
    census.read(len(target))
    return split_rows(
        PrepareConfig(**{**SETTINGS, **given, **settings}),
        kind,
        target,
        None if time is None else np.asarray(time, np.float64),
        np.arange(len(target)) if unit is None else np.asarray(unit),
        census,
        weight,
    )


def sizes(assigned: Splits, rows: np.ndarray | None = None) -> np.ndarray:
    """The rows of each fold, of those in `rows`."""
    taken = assigned.fold[assigned.split == TRAIN] if rows is None else assigned.fold[rows & (assigned.split == TRAIN)]
    return np.bincount(taken, minlength=assigned.cross_validation.num_folds)


# ------------------------------------------------------------------------------------------------ rows in no order


@given(
    st.integers(20, 150),
    st.sampled_from(["regression", "binary", "multiclass"]),
    st.sampled_from([0, 3, 5]),
    st.integers(0, 3),
    st.floats(0, 0.2),
)
def test_each_labelled_row_is_in_one_fold(num_rows: int, kind: str, num_folds: int, seed: int, empty: float) -> None:
    """A row would have no out-of-fold prediction, a row to forecast would be learned, or folds would have unequal sizes."""
    generator = np.random.default_rng(seed)
    target = {
        "regression": generator.normal(size=num_rows).round(1),
        "binary": np.arange(num_rows) % 3 == 0,
        "multiclass": generator.integers(0, 4, num_rows),
    }[kind].astype(float)
    target[: int(empty * (num_rows - 20))] = np.nan
    assigned = split(target, kind=kind, num_folds=num_folds, seed=seed)
    cv = assigned.cross_validation
    assert (assigned.split == np.where(np.isnan(target), FORECAST, TRAIN)).all()
    assert set(assigned.fold[assigned.split == TRAIN]) == set(range(cv.num_folds))
    assert (assigned.fold[assigned.split != TRAIN] == -1).all()
    assert cv.scheme == "random"
    assert cv.num_folds == (num_folds or min(8, int((target == 1).sum()) if kind == "binary" else num_rows))
    assert np.ptp(sizes(assigned)) <= 1
    for value in np.unique(target[~np.isnan(target)]) if kind != "regression" else ():
        assert np.ptp(sizes(assigned, target == value)) <= 2  # stratified
    again = split(target, kind=kind, num_folds=num_folds, seed=seed)
    assert np.array_equal(again.fold, assigned.fold)
    assert np.array_equal(again.group, assigned.group)


def test_folds_have_the_same_range_of_numbers() -> None:
    """With few rows one fold would have the largest targets, and the score would depend on chance."""
    target = np.random.default_rng(1).lognormal(0, 2, 80)
    assigned = split(target)
    means = [np.log(target[assigned.fold == number]).mean() for number in range(8)]
    assert np.std(means) < 0.25 * np.std(np.log(target)) / np.sqrt(10)


def test_another_seed_gives_other_folds() -> None:
    """Repeated fits would all have the same folds."""
    folds = [split(BINARY, kind="binary", seed=seed).fold for seed in range(3)]
    assert not np.array_equal(folds[0], folds[1])
    assert not np.array_equal(folds[1], folds[2])


@pytest.mark.parametrize(("num_rows", "scheme", "num_folds"), [(40, "random", 8), (41, "random", 5), (61, "holdout", 1)])
def test_larger_tables_have_fewer_folds(num_rows: int, scheme: str, num_folds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight copies on a million rows would take the whole time of a fit."""
    assert (splits.MANY_FOLDS_UNTIL, splits.FOLDS_UNTIL) == (10_000, 200_000)
    monkeypatch.setattr(splits, "MANY_FOLDS_UNTIL", 40)
    monkeypatch.setattr(splits, "FOLDS_UNTIL", 60)
    cv = split(np.arange(num_rows)).cross_validation
    assert (cv.scheme, cv.num_folds) == (scheme, num_folds)


@pytest.mark.parametrize(("num_positives", "stop_share"), [(99, 1.0), (100, 0.2), (10_001, 0.2)])
def test_rare_positives_reach_early_stopping(num_positives: int, stop_share: float) -> None:
    """A copy would stop by one positive or none, since a fifth of a fold is enough for frequent ones."""
    target = np.arange(20_002) < num_positives
    assert split(target, kind="binary").cross_validation.stop_share == stop_share


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass"])
def test_a_holdout_is_like_the_rest(kind: str) -> None:
    """The part that is held out would lack the rare class: nothing could be calibrated, after hours of training."""
    target = np.r_[np.zeros(980), np.ones(3), np.full(17, 2 if kind == "multiclass" else 0)]
    if kind == "regression":
        target = np.random.default_rng(0).permutation(1000)
    assigned = split(target, kind=kind, num_folds=1)
    assert assigned.cross_validation.scheme == "holdout"
    share = np.array([(assigned.fold == number).mean() for number in (0, 1, -1)])
    assert share == pytest.approx([0.15, 0.15, 0.7], abs=0.005)
    if kind == "regression":
        means = [target[assigned.fold == number].mean() for number in (0, 1, -1)]
        assert means == pytest.approx([500] * 3, rel=0.02)
    else:
        for value in np.unique(target):
            assert set(assigned.fold[target == value]) == {0, 1, -1}
    others = [split(target, kind=kind, num_folds=1, seed=seed).fold for seed in (1, 2, 3)]
    assert not all(np.array_equal(other, assigned.fold) for other in others)


@pytest.mark.parametrize(("num_positives", "step"), [(90_000, 10), (8_000, 8), (300, 6)])
def test_a_large_table_trains_on_nearly_all_rows(num_positives: int, step: int) -> None:
    """Of millions of rows, a third would train no copy, or the part that is held out would have ten fraudulent rows."""
    target = np.arange(300_000) < num_positives
    assigned = split(target, kind="binary")
    cv = assigned.cross_validation
    assert (cv.scheme, cv.num_folds, cv.stop_share) == ("holdout", 1, 0.5)
    for value in (False, True):
        share = np.array([(assigned.fold[target == value] == number).mean() for number in (0, 1, -1)])
        assert share == pytest.approx([1 / step, 0.5 / step, 1 - 1.5 / step], rel=0.01)


@pytest.mark.parametrize(("num_rows", "settings"), [(300_000, {}), (1_000, {"num_folds": 1})])
def test_a_class_with_one_or_two_rows_is_learned(num_rows: int, settings: dict[str, int]) -> None:
    """With a single holdout no copy would know a class whose only row is held out."""
    target = np.r_[np.arange(num_rows) % 2, 2, 3, 3]
    assert (split(target, kind="multiclass", **settings).fold[-3:] == -1).all()


def test_a_large_table_with_copies_of_rows_is_trained_once() -> None:
    """For the few rows that are held out, half of the time would be spent on a second training."""
    unit = np.arange(300_000)
    unit[1::10] = unit[::10]
    assigned = split(unit, unit=unit, group="")
    assert assigned.cross_validation == CrossValidation(scheme="holdout", num_folds=1, stop_share=0.5)
    assert not np.isin(unit[assigned.fold == 0], unit[assigned.fold != 0]).any()


@pytest.mark.parametrize("rare", [3, 5, 8, 20])
def test_few_rows_of_the_rarer_class_make_few_folds(rare: int) -> None:
    """A fold without a positive row has no score, so it could not stop a copy early."""
    target = np.arange(100) < rare
    assigned = split(target, kind="binary")
    assert assigned.cross_validation.num_folds == min(rare, 8)
    assert (sizes(assigned, target) >= 1).all()


def test_a_class_with_one_row_is_no_reason_to_stop() -> None:
    """Tables with a class of a single row, which are common, would be refused."""
    target = np.r_[np.zeros(40), np.ones(40), [2.0]]
    assert split(target, kind="multiclass").cross_validation.num_folds == 8


@pytest.mark.parametrize(
    ("target", "settings", "sentence"),
    [
        (np.arange(19), {}, "19 rows have a target, and at least 20 are needed: give more"),
        (np.full(50, np.nan), {}, "0 rows have a target, and at least 20 are needed: give more"),
        (np.arange(50), {"unit": np.full(50, -1)}, "0 rows have a target and a value of group=household, and"),
        (np.arange(30) < 2, {"kind": "binary"}, "3 folds and as many rows of the rarer value of y, but there are 2"),
        (np.arange(30) < 4, {"kind": "binary", "num_folds": 5}, "as many rows of the rarer value of y, but there are 4"),
        (np.arange(30), {"num_folds": 40}, "num_folds=40 needs as many rows, but there are 30: lower it, or leave it out"),
        (np.arange(30), {"unit": np.arange(30) % 2}, "as many different values of group=household, but there are 2"),
        (np.arange(30), {"unit": np.arange(30) % 2, "num_folds": 5}, "a fit needs 3 folds and as many different values of "),
        (np.arange(30), {"unit": np.arange(30) % 4, "num_folds": 5}, "values of group=household, but there are 4"),
        (np.arange(30), {"test": 0.5}, "test=0.5 leaves 15 rows for train and 15 for test, but train needs 20"),
        (np.arange(30), {"test": 0.2, "time": np.arange(30), "unit": np.arange(30) % 7, "embargo": 3.0},
         " for test, and 3 are left out (embargo before the test), and 18 are left out (group of the test), but train needs "
         "20 and test 1: leave group=household out, change test, or give more rows"),
        (np.arange(30), {"test": 0.001, "unit": [0] * 29 + [1]},
         " for test (the 2 values of group=household are not divided), but train needs 20 and test 1: leave group=household "
         "out, change test, or give more rows"),
        (np.arange(30), {"time": [1.0] * 30}, "time=day has 1 different value, and folds forward in time need 3"),
        (np.arange(30), {"time": np.arange(30) % 4, "num_folds": 3}, "has 4 different values, and 3 folds forward in time"),
        (np.arange(30), {"time": np.full(30, np.nan)}, "0 rows have a target and a value of time=day, and at"),
        (np.arange(30), {"time": np.arange(30), "embargo": 12.0}, "no row is left to train the model that predicts fold 0:"),
        (np.arange(30), {"time": np.arange(30), "unit": np.arange(30) % 3}, "no row is left to train the model that pred"),
        (np.arange(60) < 20, {"time": np.arange(60), "kind": "binary"}, "target=y is the same in all 28 rows that are"),
        (np.arange(60) // 12 == 4, {"unit": np.arange(60) // 12, "kind": "binary", "test": 0.2},
         "is the same in all 48 rows that are predicted out of fold: give more rows, or choose another seed"),
    ],
)  # fmt: skip
def test_too_little_is_refused(target: np.ndarray, settings: dict[str, Any], sentence: str) -> None:
    """A library would end with a traceback, or members train for hours for an ensemble that cannot be fitted."""
    with pytest.raises(UserError) as caught:
        split(target, **settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ groups


@given(st.lists(st.integers(1, 20), min_size=3, max_size=40), st.sampled_from([0, 3]), st.integers(0, 3))
def test_whole_groups_are_in_one_fold(group_sizes: list[int], num_folds: int, seed: int) -> None:
    """Rows of one person would be fitted and held out, and the score would be too good."""
    group_sizes = [*group_sizes, 20]
    unit = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(group_sizes)), group_sizes))
    assigned = split(np.arange(len(unit)), unit=unit, num_folds=num_folds, seed=seed)
    assert assigned.cross_validation.scheme == "groups"
    assert assigned.cross_validation.num_folds == (num_folds or min(8, len(group_sizes)))
    assert (sizes(assigned) > 0).all()
    assert np.ptp(sizes(assigned)) <= max(group_sizes)
    for number in range(len(group_sizes)):
        assert len(set(assigned.fold[unit == number])) == 1
        assert len(set(assigned.group[unit == number])) == 1


def test_rows_without_a_group_are_left_out_of_training_alone() -> None:
    """Rows with an empty group would form one large group, or those to forecast would be missing from the forecast."""
    unit = np.r_[np.full(5, -1), np.arange(60) % 12]
    census = Census()
    target = np.r_[np.nan, np.arange(64)]
    assigned = split(target, unit=unit, census=census)
    assert assigned.split[0] == FORECAST
    assert (assigned.split[1:] == np.where(unit[1:] < 0, -1, TRAIN)).all()
    assert census.to_dict()["dropped"][splits.NO_GROUP]["count"] == 4


def test_queries_are_numbered_in_ranking() -> None:
    """Documents of two queries would be ranked as one."""
    unit = np.random.default_rng(0).integers(0, 30, 200)
    assigned = split(np.arange(200) % 3, kind="ranking", unit=unit, test=0.2)
    assert len(np.unique(assigned.group)) == 30
    assert len(np.unique(np.stack([assigned.group, unit]), axis=1).T) == 30
    assert assigned.group[assigned.split == TRAIN].max() < assigned.group[assigned.split == TEST].min()


@pytest.mark.parametrize("time", [None, np.arange(200)[::-1]])
def test_queries_of_the_forecast_are_numbered_like_new_rows(time: np.ndarray | None) -> None:
    """The same rows as new rows would be in another order, and others of them would have reasons."""
    unit = np.r_[np.arange(190) // 10, [7, 7, -1, 12, 7, 3, -1, 12, 3, 20]]
    target = np.where(np.arange(200) < 190, np.arange(200) % 3, np.nan)
    assigned = split(target, kind="ranking", unit=unit, time=time)
    forecast = assigned.group[assigned.split == FORECAST]
    assert (forecast - forecast.min()).tolist() == [0, 0, 4, 1, 0, 2, 4, 1, 2, 3]
    assert forecast.min() > assigned.group[assigned.split == TRAIN].max()


# ------------------------------------------------------------------------------------------------ time


@given(
    st.lists(st.integers(0, 60), min_size=25, max_size=90),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from([0.0, 0.2]),
)
def test_folds_go_forward_in_time(times: list[int], num_folds: int, embargo: float, test: float) -> None:
    """A copy would learn from rows later than those that it predicts, or rows of equal time would be in both parts."""
    time = np.array([*times, *range(0, 60, 2)], float)
    try:
        assigned = split(np.arange(len(time)), time=time, num_folds=num_folds, embargo=embargo, test=test)
    except UserError:
        assert embargo  # no row was left before it
        return
    cv = assigned.cross_validation
    assert (cv.scheme, cv.num_folds, cv.embargo) == ("forward", num_folds or 4, embargo)
    train = assigned.split == TRAIN
    assert set(assigned.fold[train]) == set(range(-2, cv.num_folds))
    order = np.argsort(time[train], kind="stable")
    assert (np.diff(assigned.fold[train][order]) >= 0).all()
    assert (np.diff(assigned.group[train][order]) >= 0).all()
    for value in np.unique(time[train]):
        assert len(set(assigned.fold[train & (time == value)])) == len(set(assigned.group[train & (time == value)])) == 1
    assert list(cv.begins) == [time[train & (assigned.fold == number)].min() for number in range(-1, cv.num_folds)]
    if test:
        assert time[train].max() + embargo < time[assigned.split == TEST].min()
        begin = time[assigned.split == TEST].min()
        assert (assigned.split == -1).sum() == ((time + embargo >= begin) & (time < begin)).sum()
    for number in range(cv.num_folds):
        rows = cv.fold(number, assigned.fold, time, np.arange(len(time)))
        assert rows.fit.size
        assert rows.stop.size
        assert time[rows.fit].max() + embargo < time[rows.stop].min()
        assert time[rows.stop].max() + embargo < time[rows.held].min()


def test_most_rows_are_predicted_when_times_are_even() -> None:
    """The first part only trains: much more than needed, and the ensemble is fitted on few rows."""
    assigned = split(np.arange(1000), time=np.arange(1000))
    assert (assigned.fold >= 0).mean() == pytest.approx(0.48, abs=0.01)
    assert (assigned.fold == -2).mean() == pytest.approx(0.4, abs=0.01)


def test_few_times_make_few_folds() -> None:
    """A table of five years would be refused."""
    assigned = split(np.arange(50), time=np.arange(50) % 5)
    assert assigned.cross_validation.num_folds == 3
    assert assigned.cross_validation.begins == (1.0, 2.0, 3.0, 4.0)


def test_one_time_with_most_rows_leaves_each_fold_its_own() -> None:
    """A fold would be empty where one day has most of the rows."""
    time = np.r_[np.zeros(3), np.full(90, 1.0), np.arange(2, 9)]
    assigned = split(np.arange(100), time=time)
    assert [int((assigned.fold == number).sum()) for number in range(-2, 4)] == [93, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    "time", [np.arange(60) % 3, np.r_[np.zeros(3), np.ones(393), np.arange(8) % 4 + 2]], ids=["years", "day"]
)
def test_one_time_that_is_predicted_out_of_fold_makes_several_groups(time: np.ndarray) -> None:
    """A fit of three years would end with an error after all members are trained: weights are compared on several groups."""
    assigned = split(np.arange(len(time)), time=time)
    held_out = assigned.fold >= 0
    groups = assigned.group[held_out]
    assert len(np.unique(groups)) > 1
    assert not set(groups) & set(assigned.group[~held_out])
    if len(np.unique(time[held_out])) > 1:
        assert (np.diff(groups[np.argsort(time[held_out])]) >= 0).all(), "rows would be weighted by later rows"
    else:
        assert len(np.unique(groups)) < LEAST_SLICES, "the bootstrap would draw the blocks as slices of time"


def test_one_time_and_one_unit_are_refused() -> None:
    """The fit would end with an error after all members are trained."""
    time, unit = np.repeat([0, 1, 2], 30), np.r_[np.arange(60), np.full(30, 60)]
    with pytest.raises(
        UserError, match="predicted out of fold have the same day and have one household: leave time or group"
    ):
        split(np.arange(90), time=time, unit=unit)


def test_rows_of_weight_0_are_left_out() -> None:
    """The first model forward in time would be fitted on old rows of weight 0 only, which is an error of the fit."""
    census, weight = Census(), np.r_[np.zeros(40), np.ones(60)].astype(np.float32)
    target = np.r_[np.nan, np.arange(99)]
    assigned = split(target, time=np.arange(100), census=census, weight=weight)
    assert (assigned.split == -1).tolist() == [False] + [True] * 39 + [False] * 60
    assert census.to_dict()["dropped"][splits.NO_WEIGHT]["count"] == 39


def test_a_group_across_the_test_is_left_out() -> None:
    """Early rows of a household would be in train and its late rows in test."""
    time, unit = np.arange(100), np.r_[np.arange(95), np.arange(5)]
    census = Census()
    assigned = split(np.arange(100), time=time, unit=unit, test=0.1, census=census)
    assert set(np.flatnonzero(assigned.split == -1)) == set(range(5))
    assert census.to_dict()["dropped"][splits.ACROSS]["count"] == 5


def test_rows_without_a_time_are_left_out_unless_they_are_to_be_forecast() -> None:
    """A row without a time would be the first or the last of all, or its forecast would be missing."""
    time = np.r_[np.full(4, np.nan), np.arange(60)]
    target = np.r_[[np.nan, np.nan], np.arange(62)]
    assigned = split(target, time=time)
    assert assigned.split[:4].tolist() == [FORECAST, FORECAST, -1, -1]


# ------------------------------------------------------------------------------------------------ test


@pytest.mark.parametrize("unit", [None, np.arange(210) // 2])
def test_no_class_is_in_the_test_only(unit: Any) -> None:
    """With some classes of one row, a fit with a test would be refused for most seeds."""
    target = np.append(np.arange(200) % 4, np.arange(4, 14))
    for seed in range(10):
        assigned = split(target, kind="multiclass", unit=unit, test=0.2, seed=seed)
        assert set(target[assigned.split == TRAIN]) == set(target)
        assert (assigned.split == TEST).mean() == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("unit", [None, np.repeat(np.arange(100), 4)])
def test_the_test_has_its_share(unit: Any) -> None:
    """The test split would not have its share of the rows, or a person would be in train and test."""
    assigned = split(np.arange(400), unit=unit, test=0.25)
    assert (assigned.split == TEST).mean() == pytest.approx(0.25, abs=0.01)
    assert (assigned.fold[assigned.split == TEST] == -1).all()
    if unit is not None:
        assert not set(unit[assigned.split == TEST]) & set(unit[assigned.split == TRAIN])
    assert not np.array_equal(split(np.arange(400), unit=unit, test=0.25, seed=1).split, assigned.split)


def test_groups_that_recur_over_time_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The copies, and so the scores and intervals, would be of a fraction of the rows, without a message."""
    day = np.arange(400)
    split(np.sin(day), time=day, unit=day // 20)
    assert "warning" not in capsys.readouterr().err
    split(np.sin(day), time=day, unit=np.random.default_rng(0).integers(0, 60, 400))
    assert "warning: groups of household recur over time" in capsys.readouterr().err


def test_the_cause_of_an_empty_fold_is_named() -> None:
    """The advice would be to lower an embargo that changes nothing."""
    day, unit = np.arange(400), np.tile([1, 2], 200)
    for embargo in (0.0, 30.0):
        with pytest.raises(UserError, match=r"no row is left .*: leave group=household out, or give more rows"):
            split(np.sin(day), time=day, unit=unit, embargo=embargo)
    with pytest.raises(UserError, match=r"no row is left .*: lower embargo=300, or give more rows"):
        split(np.sin(day), time=day, unit=day, embargo=300.0)


@pytest.mark.parametrize(("num_unlike", "is_together"), [(0, True), (2, True), (30, False)])
def test_rows_that_are_equal_but_for_the_target_are_not_divided_by_it(
    num_unlike: int, is_together: bool, tmp_path: Path
) -> None:
    """Copies would be fitted on the other rows of a product only, which have the other target: the members would learn, and
    predict for new rows, the opposite of what is true."""
    product = np.repeat(np.arange(100), 6)
    target = product % 2
    target[: 6 * num_unlike : 6] = 1 - target[: 6 * num_unlike : 6]
    frame = pl.DataFrame({"product": [f"p{number}" for number in product], "price": product * 1.5, "y": target})
    frame.write_parquet(tmp_path / "table.parquet")
    manifest = prepare(tmp_path, tmp_path / "table.parquet", task="binary")
    rows = rows_of(tmp_path, manifest)
    assert rows["cluster"].n_unique() == (100 if is_together else 600)
    num_folds = rows.group_by("price").agg(pl.col("fold").n_unique())["fold"].to_numpy()
    assert num_folds.max() == 1 if is_together else num_folds.min() > 1
    assert any("copies stay in one fold" in note for note in manifest["notes"]) == is_together
