"""Targets that compare the rows of a group, such as the top 5 % of each week: an ensemble gives groups their known share."""

import numpy as np
import pytest
from blends import expit, loss
from sklearn.metrics import average_precision_score

from ensemble import combine
from ensemble.combine import diversity
from ensemble.combine.losses import levelled

SHARE = 0.05
NUM_WEEKS = 30
ROWS_OF_A_WEEK = 200
NAMES = ["trees", "net"]


def weeks(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, predictions of two members, and weeks. The top 5 % of each week are positive, and the level of the members'
    logits changes from week to week."""
    generator = np.random.default_rng(seed)
    demand = generator.normal(size=(NUM_WEEKS, ROWS_OF_A_WEEK))
    target = demand >= np.sort(demand, axis=1)[:, [-round(SHARE * ROWS_OF_A_WEEK)]]
    seen = demand[..., None] + generator.normal(size=(NUM_WEEKS, ROWS_OF_A_WEEK, 2))
    level = generator.normal(size=(NUM_WEEKS, 1, 1))
    predictions = expit(2 * seen - 4 + level).reshape(-1, 2)
    return target.ravel().astype(float), predictions, np.repeat(np.arange(NUM_WEEKS), ROWS_OF_A_WEEK)


def test_groups_get_their_share_and_keep_their_order() -> None:
    """A week would keep its level, or another product would be first."""
    generator = np.random.default_rng(0)
    group = generator.permutation(np.repeat(np.arange(40), 100))
    for spread in (1e-3, 1.0, 10.0, 100.0):
        logit = spread * generator.normal(size=4000) + 5 * group
        result = levelled(logit, group, SHARE)
        for number in range(40):
            rows = group == number
            assert expit(np.clip(result[rows], -700, 700)).mean() == pytest.approx(SHARE, abs=1e-9)
            assert np.ptp(result[rows] - logit[rows]) < 1e-9
        backwards = levelled(logit[::-1], group[::-1], SHARE)[::-1]
        assert np.array_equal(backwards, result), "the bits depend on the order of the rows"


def test_groups_of_few_or_equal_rows_stay() -> None:
    """The only product of a small week would get the share of all; a constant member would not be constant any more."""
    group = np.repeat([0, 1, 2], [19, 20, 30])
    logit = np.where(group == 2, 1.0, np.random.default_rng(0).normal(size=69))
    result = levelled(logit, group, SHARE)
    stays = [bool((result[group == number] == logit[group == number]).all()) for number in range(3)]
    assert stays == [True, False, True]


def test_an_ensemble_of_a_relative_target_follows_the_level_of_each_week() -> None:
    """The known share of each week would not be used, and products of weeks with a high level would be first."""
    target, predictions, group = weeks(0)
    new_target, new, new_group = weeks(1)
    result = {}
    for is_relative in (False, True):
        options = {"is_relative": is_relative, "combiner": "equal"}
        ensemble, cross_fitted = combine.fit_cross_fitted(target, predictions, group, NAMES, **options)
        prediction = ensemble.predict(new, NAMES, new_group)
        known = np.isfinite(cross_fitted)
        result[is_relative] = [
            (loss(target[known], cross_fitted[known]), -average_precision_score(target[known], cross_fitted[known])),
            (loss(new_target, prediction), -average_precision_score(new_target, prediction)),
        ]
    assert (np.array(result[True]) < np.array(result[False]) - 0.01).all()
    assert prediction.reshape(NUM_WEEKS, -1).mean(axis=1) == pytest.approx([SHARE] * NUM_WEEKS)
    again = combine.Ensemble.from_dict(ensemble.to_dict())
    assert np.array_equal(again.predict(new, NAMES, new_group), prediction)


def test_what_members_add_is_measured_with_levelled_groups() -> None:
    """The report would say what a member adds to another ensemble."""
    target, predictions, group = weeks(0)
    columns = target, predictions, group, np.tile(np.arange(ROWS_OF_A_WEEK), NUM_WEEKS)
    correlations = []
    for is_relative in (False, True):
        ensemble = combine.fit(target, predictions, group, NAMES, combiner="equal", is_relative=is_relative)
        measured = diversity.measure(ensemble, *columns, np.random.default_rng(0), num_draws=2)
        correlations.append(measured["error_correlation"]["trees"]["net"])
    assert correlations[1] < correlations[0] - 0.05  # the level of a week is no common error
    alone = combine.fit(target, predictions[:, :1], group, NAMES[:1], is_relative=True)
    change = alone.cross_fitted["equal"]["log_loss"] - ensemble.cross_fitted["equal"]["log_loss"]
    assert measured["without"]["net"]["log_loss"] == pytest.approx(change, rel=1e-6)


def test_without_calibration_groups_keep_their_level() -> None:
    """`calibration=none` is for a share of positives that changes."""
    target, predictions, group = weeks(0)
    options = {"combiner": "equal", "calibration": "none"}
    results = [combine.fit(target, predictions, group, NAMES, is_relative=each, **options) for each in (False, True)]
    first, second = (ensemble.predict(predictions, NAMES, group) for ensemble in results)
    assert np.array_equal(first, second)


def test_groups_of_different_shares_keep_their_level() -> None:
    """A season in which more products are hot would be levelled away, though the members know it."""
    target, predictions, group = weeks(0)
    target = np.where((group == 0) | (group == 20), np.arange(len(target)) % 2, target)
    options = {"combiner": "equal", "calibration": "platt"}
    results = [combine.fit(target, predictions, group, NAMES, is_relative=each, **options) for each in (False, True)]
    first, second = (ensemble.predict(predictions, NAMES, group) for ensemble in results)
    assert np.array_equal(first, second)
