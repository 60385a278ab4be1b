"""The calibrators: they find the line or curve from which the targets were drawn."""

import json

import numpy as np
import pytest
from blends import NAMES, expit, loss, market, softmax

from ensemble.combine import Ensemble, fit
from ensemble.combine.scales import CALIBRATORS, ISOTONIC_LEAST, platt_scale, rank_scale
from ensemble.errors import UserError


def test_platt_scaling_recovers_the_line() -> None:
    """Calibrated probabilities would differ from those from which the targets were drawn."""
    generator = np.random.default_rng(0)
    logit = generator.normal(size=50_000)
    target = (generator.random(50_000) < expit(1.7 * logit - 2)).astype(float)
    line = platt_scale(target, logit)
    assert (line.slope, line.intercept) == pytest.approx((1.7, -2), abs=0.06)
    backwards = platt_scale(target, -logit)
    assert backwards.slope == 0
    assert expit(backwards.intercept) == pytest.approx(target.mean(), abs=1e-4)


def test_equal_logits_keep_their_order_on_other_rows() -> None:
    """Predictions can be equal on blend and differ on later rows, where a slope of 0 would make them equal too."""
    target = np.repeat([0.0, 1.0], [90, 10])
    line = platt_scale(target, np.full(100, -7.3))
    assert line.slope == 1
    assert expit(line(np.array(-7.3))) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("calibration", CALIBRATORS["binary"])
def test_calibrators_calibrate(calibration: str) -> None:
    """Calibrated probabilities would differ from the frequencies of positives."""
    generator = np.random.default_rng(0)
    logit = np.sort(generator.normal(size=40_000))
    target = (generator.random(40_000) < expit(1.7 * logit)).astype(float)
    scale = CALIBRATORS["binary"][calibration](target, logit)
    result = expit(scale(logit))
    np.testing.assert_allclose(result[400:-400], expit(1.7 * logit)[400:-400], atol=0.05)
    assert (np.diff(result) >= 0).all()
    assert np.isfinite(scale(np.array([-1e9, 1e9]))).all()
    if calibration == "temperature":
        assert scale(np.zeros(1)) == 0


def test_isotonic_needs_many_rows() -> None:
    """The curve would have a step at each of a few positives, and overfit."""
    target, predictions, group = market()
    num_positive = int(target.sum())
    assert num_positive < ISOTONIC_LEAST
    with pytest.raises(UserError, match=f"isotonic needs 1,000 rows of the rarer class, and there are {num_positive}: use"):
        fit(target, predictions, group, NAMES, calibration="isotonic")
    target, predictions, group = market(12_000)
    ensemble = fit(target, predictions, group, NAMES, calibration="isotonic")
    assert ensemble.calibrator == "isotonic"
    assert set(ensemble.cross_fitted_calibrators) == {*CALIBRATORS["binary"], "auto"}
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble


def test_ranks_are_as_fine_as_a_forecast_needs() -> None:
    """The curve would give equal predictions to the highest rows, which matter most in a forecast."""
    generator = np.random.default_rng(0)
    score = generator.normal(size=50_000)
    target = (generator.random(50_000) < expit(2 * score - 4)).astype(float)
    curve = rank_scale(target, score)
    assert len(curve.at) <= 1000
    top = np.sort(score)[-2500:]
    assert (np.diff(curve(top)) > 0).all()
    assert loss(target, expit(curve(score))) < loss(target, expit(platt_scale(target, score)(score))) + 0.002


def test_scaling_of_two_classes_is_that_of_a_yes_or_no() -> None:
    """A multiclass task with two classes would be calibrated otherwise than the same task as a binary one."""
    generator = np.random.default_rng(0)
    logit = generator.normal(size=4000)
    target = (generator.random(4000) < expit(1.7 * logit - 2)).astype(float)
    logs = np.log(np.stack([1 - expit(logit), expit(logit)], axis=1))
    line = platt_scale(target, logit)
    for scale, expected in (
        (CALIBRATORS["multiclass"]["platt"], line),
        (CALIBRATORS["multiclass"]["temperature"], CALIBRATORS["binary"]["temperature"](target, logit)),
    ):
        scaled = scale(target, logs)(logs)
        np.testing.assert_allclose(scaled[:, 1] - scaled[:, 0], expected(logit), atol=1e-4)
    backwards = CALIBRATORS["multiclass"]["platt"](target, -logs)
    assert backwards.slope == 0
    assert expit(np.diff(backwards.intercepts))[0] == pytest.approx(target.mean(), abs=1e-3)


def test_scaling_of_classes_recovers_what_was_planted() -> None:
    """Calibrated probabilities would be wrong, or be 0 for a class without rows."""
    generator = np.random.default_rng(0)
    logs = generator.normal(size=(50_000, 4))
    planted = np.array([0.5, -0.2, 0.4, -0.7])
    target = (softmax(1.7 * logs + planted).cumsum(1) < generator.random((50_000, 1))).sum(1).astype(float)
    result = CALIBRATORS["multiclass"]["platt"](target, logs)
    assert result.slope == pytest.approx(1.7, abs=0.05)
    np.testing.assert_allclose(result.intercepts, planted, atol=0.05)
    assert CALIBRATORS["multiclass"]["temperature"](target, logs).slope == pytest.approx(1.6, abs=0.15)
    few = CALIBRATORS["multiclass"]["platt"](np.array([0.0, 1.0, 0.0, 1.0]), np.log(softmax(logs[:4])))
    assert softmax(few(logs[:4])).min() > 0


def test_few_rows_without_a_mistake_do_not_sharpen_without_end() -> None:
    """The first mistake on new rows would cost more than all that the ensemble gains."""
    target = np.arange(60) % 3.0
    logs = np.log(np.where(np.eye(3)[target.astype(int)] == 1, 0.8, 0.1))
    assert 1 < CALIBRATORS["multiclass"]["temperature"](target, logs).slope < 4
    many = np.tile(target, 1000), np.tile(logs, (1000, 1))
    assert CALIBRATORS["multiclass"]["temperature"](*many).slope > 4


def test_logistic_weights_without_calibration_have_the_level_of_the_target() -> None:
    """Weights with a sum above 1 move all logits away from 0: an ensemble of rare positives would predict hardly any."""
    parts = np.random.default_rng(0).normal(size=(4000, 3))
    target = (np.random.default_rng(1).random(4000) < expit(parts.sum(1) - 3)).astype(float)
    members, options = expit(parts - 2.25), {"combiner": "logistic", "calibration": "none", "compare": False}
    for weight in (None, 1.0 + (np.arange(4000) % 3)):
        ensemble = fit(target, members, np.arange(4000) % 5, NAMES, weight=weight, **options)
        predicted = ensemble.predict(members, NAMES)
        assert np.average(predicted, weights=weight) == pytest.approx(np.average(target, weights=weight), abs=1e-6)
        assert loss(target, predicted) < loss(target, np.full(4000, target.mean())) - 0.05
