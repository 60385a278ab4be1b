"""Prediction intervals: nine of ten targets are within them, both for small and for large predictions."""

import dataclasses
import json

import numpy as np
import pytest

from ensemble.predictions import Predictions
from ensemble.predictor import intervals, scoring
from ensemble.predictor.intervals import Intervals


def values(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions, and targets whose errors grow with the value and are larger above than below."""
    generator = np.random.default_rng(seed)
    prediction = generator.uniform(1, 100, num_rows)
    return prediction, prediction + 0.1 * prediction * (generator.exponential(size=num_rows) - 1)


def test_nine_of_ten_new_targets_are_within() -> None:
    """The intervals would be too narrow for large values and too wide for small ones."""
    prediction, target = values(4000, 0)
    result = Intervals.from_dict(json.loads(json.dumps(dataclasses.asdict(intervals.fit(target, prediction)))))
    prediction, target = values(4000, 1)
    low, high = result(prediction)
    is_within = (low <= target) & (target <= high)
    for part in (prediction < 30, prediction > 70):
        assert is_within[part].mean() == pytest.approx(0.9, abs=0.03)
    assert np.median((high - low)[prediction > 70]) > 2 * np.median((high - low)[prediction < 30])


def test_the_coverage_is_of_rows_that_gave_no_quantiles() -> None:
    """With few rows the coverage would be that of the rows themselves, which is too high."""
    prediction, target = values(60, 0)
    group = np.arange(60) % 10
    within = []
    for block in range(5):
        held = group // 2 == block
        low, high = intervals.fit(target[~held], prediction[~held])(prediction[held])
        within += ((low <= target[held]) & (target[held] <= high)).tolist()
    result = intervals.cross_fitted(target, prediction, group, False)
    assert result is not None
    assert (result["rows"], result["coverage"]) == (60, pytest.approx(np.mean(within)))
    forward = intervals.cross_fitted(target, prediction, group, True)
    assert forward is not None
    assert forward["rows"] < 60  # the first block has no rows before it
    assert intervals.cross_fitted(target, prediction, np.zeros(60), False) is None


def test_the_coverage_is_of_rows_with_weight() -> None:
    """Rows of weight 0, which no score counts, would be counted."""
    prediction, target = values(60, 0)
    ids = np.arange(60)
    columns = {"row_id": ids, "group": ids, "cluster": ids, "recipe": "r", "member": "m", "fingerprint": "f"}
    blend = Predictions(target=target, prediction=prediction, split="blend", **columns)
    far = np.where(ids % 2, target, 1e9)
    test = Predictions(target=far, prediction=prediction, split="test", weight=ids % 2.0, **columns)
    result, _ = scoring.intervals_of("regression", blend, prediction, test, prediction, False)
    assert result is not None
    assert result["rows"] == 30
    assert result["coverage"] > 0.8


def test_few_rows_and_equal_predictions_have_intervals() -> None:
    """A fit would fail on a table of twenty rows, or where a model predicts one value."""
    target = np.arange(20.0)
    low, high = intervals.fit(target, np.full(20, 10.0))(np.array([10.0, 3.0]))
    assert low.tolist() == [0, -7]
    assert high.tolist() == [19, 12]
    same = intervals.fit(np.tile(target, 100), np.full(2000, 10.0))
    assert same.begins == ()
    two = intervals.fit(np.tile(target, 100), np.repeat([0.0, 1.0], [200, 1800]))  # the first cut is at 0.9
    assert two.begins == (1.0,)


def test_the_quantiles_leave_out_a_twentieth_of_the_rows_on_each_side() -> None:
    """0.05 (n + 1) as a float is just below a whole number: an end would be that of one row farther out."""
    for num_rows, left_out in ((39, 2), (59, 3), (199, 10)):
        ends = intervals.fit(np.arange(num_rows) - num_rows // 2, np.zeros(num_rows))
        assert -ends.low[0] == ends.high[0] == num_rows // 2 - (left_out - 1)


def test_a_bin_has_many_rows_where_predictions_are_equal() -> None:
    """The quantiles of a few residuals would hold far fewer than nine of ten new targets."""
    generator = np.random.default_rng(0)
    prediction = np.concatenate([[-3.0, -2.0, -1.0], np.zeros(1500), np.linspace(0.1, 1, 497)])
    ends = intervals.fit(prediction + generator.normal(size=2000), prediction)
    sizes = np.bincount(np.searchsorted(ends.begins, prediction, side="right"))
    assert sizes.min() >= intervals.LEAST_ROWS
    assert len(sizes) > 2


def test_large_predictions_of_a_small_table_have_wider_intervals() -> None:
    """With the residuals of all rows, a quarter of the largest new values would be outside, in a table of 240 rows."""
    shares = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        prediction = generator.uniform(0.1, 1, size=(2, 240))
        target = prediction * (1 + 0.3 * generator.normal(size=prediction.shape))
        low, high = intervals.fit(target[0], prediction[0])(prediction[1])
        is_large = prediction[1] > 0.775
        shares.append(((low <= target[1]) & (target[1] <= high))[is_large].mean())
    assert np.mean(shares) > 0.87


def test_an_interval_holds_its_prediction() -> None:
    """If most targets are 5 stars, a prediction above 5 would lie above its own interval."""
    generator = np.random.default_rng(0)
    target = np.where(generator.random(2000) < 0.97, 5.0, 1.0)
    prediction = generator.uniform(4.8, 5.1, 2000)
    ends = intervals.fit(target, prediction)
    assert max(ends.low) <= 0 <= min(ends.high)


def test_rounding_moves_no_target_out_of_its_interval() -> None:
    """If most targets are 0, trees that minimise the absolute error predict 0 for many rows, but for the rounding of 32-bit
    floats. Ends as near as that would miss the zeros of many rows. In time, the errors of later blocks would be many times
    those of earlier ones, and all intervals would be wider."""
    generator = np.random.default_rng(0)
    target = np.where(generator.random(4000) < 0.75, 0.0, np.exp(5 + generator.normal(size=4000)))
    target[2000:] = generator.permutation(target[:2000])  # so that later values are those of earlier rows
    block = np.arange(4000) // 400
    rounding = 1e-6 * generator.normal(size=10)[block]  # each block is predicted by another copy
    for group, is_forward in ((generator.permutation(block), False), (block, True)):
        for prediction in (np.zeros(4000), rounding):
            result = intervals.cross_fitted(target, prediction, group, is_forward)
            assert result is not None
            assert result["coverage"] == pytest.approx(0.95, abs=0.02)  # no value is below 0
    exact, rounded = (intervals.fit(target, prediction, group=block) for prediction in (np.zeros(4000), rounding))
    assert np.mean(rounded.high) == pytest.approx(exact.high[0], rel=0.2)


def test_rows_count_by_their_weights() -> None:
    """Where the few rows of large weight have large errors, far fewer than nine of ten targets by weight would be within."""
    generator = np.random.default_rng(0)
    is_heavy = generator.random(8000) < 0.05
    weight = np.where(is_heavy, 20.0, 1.0)
    target = generator.normal(size=8000) * np.where(is_heavy, 10, 1)
    prediction, fitted = np.zeros(8000), slice(0, 4000)
    ends = intervals.fit(target[fitted], prediction[fitted], weight[fitted])
    result = intervals.coverage(*ends(prediction[4000:]), target[4000:], weight[4000:])
    assert result["coverage"] == pytest.approx(0.9, abs=0.03)
    crossed = intervals.cross_fitted(target, prediction, np.arange(8000) % 10, False, weight)
    assert crossed is not None
    assert crossed["coverage"] == pytest.approx(0.9, abs=0.03)
    ones = np.ones(4000)
    assert intervals.fit(target[fitted], prediction[fitted], ones) == intervals.fit(target[fitted], prediction[fitted])


def test_half_of_the_weight_has_wider_intervals() -> None:
    """The width beside a weighted coverage would be that of the many rows that hardly count."""
    low, high, target = np.zeros(5), np.array([1.0, 2, 3, 4, 50]), np.zeros(5)
    assert intervals.coverage(low, high, target, np.array([1.0, 1, 1, 1, 9]))["median_width"] == 50
    assert intervals.coverage(low[:4], high[:4], target[:4])["median_width"] == 2.5


def test_intervals_hold_the_values_of_new_clusters() -> None:
    """Rows of one fold of whole groups have nearly the same prediction. A bin would have the residuals of a few groups, and
    intervals would be too narrow for new groups."""
    coverages = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        group = np.repeat(np.arange(30), 40)
        effect, fold = generator.normal(size=30), group % 8
        target = effect[group] + generator.normal(size=1200)
        mean_of_others = (target.sum() - np.bincount(fold, target)[fold]) / (1200 - np.bincount(fold)[fold])
        fitted = intervals.fit(target, mean_of_others + 0.01 * generator.normal(size=1200), cluster=group)
        new_value = np.sqrt(2) * generator.normal(size=4000)
        coverages.append(intervals.coverage(*fitted(np.full(4000, target.mean())), new_value)["coverage"])
    assert np.mean(coverages) > 0.885


def test_intervals_hold_later_values_where_errors_grow() -> None:
    """Quantiles of earlier errors would be too small for later rows. Of the last quarter of 42 tables in time, 81 % of the
    values were within, and 84 % with intervals that later blocks have widened."""
    shares = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        time = np.arange(600)
        prediction = generator.normal(size=600)
        target = prediction + (1 + time / 100) * generator.normal(size=600)
        seen, later = time < 500, time >= 500
        columns = target[seen], prediction[seen]
        group = time[seen] // 50
        for rows in (None, group):
            low, high = intervals.fit(*columns, group=rows)(prediction[later])
            shares.append(intervals.coverage(low, high, target[later])["coverage"])
    assert np.mean(shares[::2]) < 0.8
    assert np.mean(shares[1::2]) == pytest.approx(0.9, abs=0.03)


def test_no_interval_is_wider_than_the_largest_errors() -> None:
    """If the first blocks are predicted nearly without error, the last ones would widen the intervals a million times. If
    there is no error in them, the ends would not be numbers."""
    generator = np.random.default_rng(0)
    for smallest in (1e-9, 0.0):
        target = np.concatenate([smallest * generator.normal(size=200), generator.normal(size=200)])
        result = intervals.fit(target, np.zeros(400), group=np.arange(400) // 40)
        assert target.min() <= result.low[0] < -1
        assert 1 < result.high[0] <= target.max()


def test_intervals_do_not_shrink() -> None:
    """A quiet last block would make the intervals too narrow."""
    target = np.random.default_rng(0).normal(size=400) * np.repeat([10, 1], 200)
    columns = target, np.zeros(400)
    assert intervals.fit(*columns, group=np.arange(400) // 40) == intervals.fit(*columns)


def test_the_ensemble_gives_the_groups_in_time() -> None:
    """Forecasts in time would have the intervals of rows without an order."""
    generator = np.random.default_rng(0)
    ids = np.arange(600)
    target = (1 + ids / 100) * generator.normal(size=600)
    columns = {"row_id": ids, "group": ids // 60, "cluster": ids, "recipe": "r", "member": "m", "fingerprint": "f"}
    rows = Predictions(target=target, prediction=np.zeros(600), split="oof", **columns)
    for is_forward, group in ((True, ids // 60), (False, None)):
        _, fitted = scoring.intervals_of("regression", rows, rows.prediction, None, rows.prediction, is_forward)
        assert fitted == intervals.fit(target, rows.prediction, cluster=ids, group=group)
