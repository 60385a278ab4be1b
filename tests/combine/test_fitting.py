"""The fitted ensemble: what must not change it, and rows and members for which it must not fail."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from blends import NAMES, expit, loss, market, scaled_logits

from ensemble.combine import Ensemble, base_rate_prediction, fit
from ensemble.combine.fitting import fit_cross_fitted
from ensemble.combine.weights import COMBINERS
from ensemble.errors import UserError
from ensemble.metrics import average_precision


def test_ensemble_beats_its_members_on_new_rows() -> None:
    """The combination would be of no use."""
    target, predictions, group = market()
    new_target, new_predictions, _ = market(20_000, seed=1)
    ensemble = fit(target, predictions, group, NAMES)
    forecast = ensemble.predict(new_predictions, NAMES)
    best = min(loss(new_target, expit(column)) for column in scaled_logits(new_target, new_predictions).T)
    assert loss(new_target, forecast) < best - 0.01
    assert forecast.mean() == pytest.approx(new_target.mean(), abs=0.01)
    assert ensemble.num_folds == 5


def test_row_order_changes_nothing() -> None:
    """The weights would depend on how the rows of blend are sorted."""
    target, predictions, group = market()
    shuffle = np.random.default_rng(0).permutation(len(target))
    one = fit(target, predictions, group, NAMES)
    other = fit(target[shuffle], predictions[shuffle], group[shuffle], NAMES)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions, NAMES), rtol=1e-4)
    assert one == other


def test_member_order_changes_nothing() -> None:
    """The order of files on the command line would change the forecast, or columns would be joined by position."""
    target, predictions, group = market()
    order = [2, 0, 1]
    names = [NAMES[member] for member in order]
    one, other = fit(target, predictions, group, NAMES), fit(target, predictions[:, order], group, names)
    np.testing.assert_allclose(np.array(one.weights)[order], other.weights, atol=1e-3)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions[:, order], names), rtol=1e-3)
    np.testing.assert_array_equal(one.predict(predictions, NAMES), one.predict(predictions[:, order], names))


def test_scale_of_a_member_changes_nothing() -> None:
    """A member trained with focal loss or class weights would be weighted by its scale instead of by its quality."""
    target, predictions, group = market()
    logits = np.log(predictions / (1 - predictions))
    rescaled = expit(logits * [1.0, 0.2, 1.3] + [-1.0, 2.0, 0.5])
    one, other = fit(target, predictions, group, NAMES), fit(target, rescaled, group, NAMES)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-3)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(rescaled, NAMES), rtol=1e-2)


def test_duplicated_member_changes_nothing() -> None:
    """A member that is given twice would count twice."""
    target, predictions, group = market()
    once = fit(target, predictions, group, NAMES)
    doubled = predictions[:, [0, 1, 2, 0]]
    twice = fit(target, doubled, group, [*NAMES, "again"])
    for method, scores in once.cross_fitted.items():
        assert twice.cross_fitted[method] == pytest.approx(scores, rel=1e-9), method
    forecasts = once.predict(predictions, NAMES), twice.predict(doubled, [*NAMES, "again"])
    assert loss(target, forecasts[0]) == pytest.approx(loss(target, forecasts[1]), abs=1e-5)


@pytest.mark.parametrize("useless", ["constant", "backwards", "random"])
def test_useless_member_does_no_harm(useless: str) -> None:
    """A member that broke in training would spoil the ensemble."""
    target, predictions, group = market()
    new_target, new_predictions, _ = market(20_000, seed=1)
    generator = np.random.default_rng(3)
    column = {
        "constant": lambda good: np.full(len(good), 0.2),
        "backwards": lambda good: 1 - good[:, 0],
        "random": lambda good: generator.random(len(good)),
    }[useless]
    names = [*NAMES, useless]
    without = fit(target, predictions, group, NAMES).predict(new_predictions, NAMES)
    ensemble = fit(target, np.column_stack([predictions, column(predictions)]), group, names)
    forecast = ensemble.predict(np.column_stack([new_predictions, column(new_predictions)]), names)
    assert loss(new_target, forecast) <= loss(new_target, without) + 0.001


def test_random_labels_give_no_gain() -> None:
    """The combiner would learn from noise, or look at what it is tested on."""
    _, predictions, group = market()
    generator = np.random.default_rng(4)
    target, new_target = (generator.random((2, 3000)) < 0.05).astype(float)
    ensemble = fit(target, predictions, group, NAMES)
    base_rate = loss(new_target, base_rate_prediction(target, 3000))
    assert loss(new_target, ensemble.predict(market(seed=5)[1], NAMES)) == pytest.approx(base_rate, abs=0.002)
    assert all(scores["average_precision"] < 0.08 for scores in ensemble.cross_fitted.values())


def test_reload_is_memory() -> None:
    """The ensemble on disk would forecast something else than the one that was scored."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    reloaded = Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict())))
    assert reloaded == ensemble
    np.testing.assert_array_equal(reloaded.predict(predictions, NAMES), ensemble.predict(predictions, NAMES))


def test_a_row_does_not_depend_on_other_rows() -> None:
    """The same product would get other last digits when other products are forecast with it."""
    target, predictions, group = market()
    names = [f"member {number}" for number in range(9)]
    predictions = expit(np.log(predictions / (1 - predictions)) @ np.random.default_rng(0).random((3, 9)))
    ensemble = fit(target, predictions, group, names)
    random = tuple(np.random.default_rng(0).dirichlet(np.ones(9)).tolist())
    ensemble = dataclasses.replace(ensemble, combination=dataclasses.replace(ensemble.combination, weights=random))
    alone = [ensemble.predict(predictions[row : row + 1], names)[0] for row in range(50)]
    np.testing.assert_array_equal(alone, ensemble.predict(predictions, names)[:50])


def test_one_member_is_enough() -> None:
    """A run with a single member would fail instead of calibrating it."""
    target, predictions, group = market()
    ensemble = fit(target, predictions[:, 2:], group, ["text"])
    forecast = ensemble.predict(predictions[:, 2:], ["text"])
    assert ensemble.weights == (1.0,)
    assert ensemble.method == "equal"
    assert loss(target, forecast) < loss(target, predictions[:, 2]) - 0.1
    np.testing.assert_array_equal(np.argsort(forecast, kind="stable"), np.argsort(predictions[:, 2], kind="stable"))


def test_few_weeks() -> None:
    """A short history, with fewer weeks of blend than folds, could not be used."""
    target, predictions, group = market(400)
    ensemble = fit(target, predictions, group % 2, NAMES)
    assert ensemble.num_folds == 1
    assert np.isfinite(ensemble.predict(predictions, NAMES)).all()


def test_all_positives_in_one_week() -> None:
    """A fold that leaves no positive to fit on would stop the run or give NaN."""
    _, predictions, group = market(400)
    target = np.zeros(400)
    target[np.flatnonzero(group == 3)[:5]] = 1
    assert np.isfinite(fit(target, predictions, group, NAMES).predict(predictions, NAMES)).all()


def test_certain_members_stay_finite() -> None:
    """Predictions of exactly 0 and 1, and a blend that they separate perfectly, would give infinite logits or slopes."""
    target = np.tile([0.0, 0.0, 0.0, 1.0], 10)
    ensemble = fit(target, np.column_stack([target, 0.5 + target * 1e-5]), np.repeat(np.arange(4), 10), ["a", "b"])
    forecast = ensemble.predict(np.array([[0.0, 0.5], [1.0, 1.0]]), ["a", "b"])
    assert 0 < forecast[0] < 0.2
    assert 0.8 < forecast[1] < 1


@pytest.mark.parametrize("method", COMBINERS["binary"])
def test_missing_member_is_made_up_for(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One missing member would stop every forecast, or draw all probabilities towards one half."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES, combiner=method)
    left = ensemble.combination.subset([0, 2])
    assert sum(left.weights) == pytest.approx(sum(ensemble.weights))
    if method == "best_member":
        with pytest.raises(UserError, match="without trees no member of the ensemble has weight"):
            ensemble.predict(predictions[:, 1:], NAMES[1:])
    forecast = ensemble.predict(predictions[:, [2, 0]], ["text", "trees"])
    assert capsys.readouterr().err == "warning: predictions of net are missing: the other weights increase in proportion\n"
    assert forecast.mean() == pytest.approx(target.mean(), rel=0.5)
    assert average_precision(target, forecast) > 2 * target.mean()


def test_a_score_of_any_scale_joins_by_its_rank() -> None:
    """A model of another program that gives margins would be refused, or its scale would be taken for a calibrated one."""
    target, predictions, group = market()
    new_target, new_predictions, _ = market(5000, seed=1)
    outputs = ["probability", "score", "probability"]

    def with_scores(predictions: np.ndarray, scale: Any) -> np.ndarray:
        return np.column_stack([predictions[:, 0], scale(predictions[:, 1]), predictions[:, 2]])

    one = fit(target, with_scores(predictions, lambda p: 1000 * p - 3), group, NAMES, outputs=outputs)
    other = fit(target, with_scores(predictions, lambda p: np.exp(5 * p)), group, NAMES, outputs=outputs)
    forecasts = [
        one.predict(with_scores(new_predictions, lambda p: 1000 * p - 3), NAMES),
        other.predict(with_scores(new_predictions, lambda p: np.exp(5 * p)), NAMES),
    ]
    np.testing.assert_allclose(*forecasts, rtol=0.02)
    all_probabilities = fit(target, predictions, group, NAMES).predict(new_predictions, NAMES)
    assert loss(new_target, forecasts[0]) == pytest.approx(loss(new_target, all_probabilities), abs=0.005)
    own = one.probabilities("net", 1000 * new_predictions[:, 1] - 3)
    assert own.mean() == pytest.approx(new_target.mean(), abs=0.02)
    np.testing.assert_array_equal(one.probabilities("trees", new_predictions[:, 0]), new_predictions[:, 0])


@pytest.mark.parametrize("combiner", ["auto", *COMBINERS["regression"]])
def test_numbers_are_combined_too(combiner: str) -> None:
    """Members that forecast a number would be squeezed into probabilities."""
    generator = np.random.default_rng(0)
    truth = 100 + 10 * generator.normal(size=(6000, 1))
    predictions = truth + generator.normal(0, [4, 5, 8], (6000, 3)) + [0, 3, 0]
    target, group = truth[:, 0], np.arange(6000) // 300
    blend, test = np.arange(6000) < 3000, np.arange(6000) >= 3000
    ensemble = fit(target[blend], predictions[blend], group[blend], NAMES, kind="regression", combiner=combiner)
    error = np.sqrt(np.mean((ensemble.predict(predictions[test], NAMES) - target[test]) ** 2))
    assert error < (4.1 if combiner == "best_member" else 3.95 if combiner == "equal" else 3.3)
    assert ensemble.cross_fitted[ensemble.method]["root_mean_squared_error"] == pytest.approx(error, rel=0.1)
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble
    if combiner == "auto":
        assert ensemble.method in ("nnls", "ridge", "simplex", "greedy")


@pytest.mark.parametrize(("slope", "method"), [(1.0, "simplex"), (1.2, "ridge")])
def test_the_first_of_two_named_combiners_is_used_unless_the_other_is_better(slope: float, method: str) -> None:
    """Members that all predict too little would not be corrected, or weights would be negative for no gain."""
    generator = np.random.default_rng(0)
    predictions = generator.normal(size=(3000, 1)) + generator.normal(0, 0.3, (3000, 3))
    target = slope * predictions @ [0.5, 0.3, 0.2] + generator.normal(size=3000)
    named = {"kind": "regression", "combiner": "simplex,ridge", "is_forward": False, "compare": False}
    ensemble = fit(target, predictions, np.arange(3000) % 5, NAMES, **named)
    assert (ensemble.method, set(ensemble.cross_fitted)) == (method, {"equal", "best_member", "simplex", "ridge", "auto"})


@pytest.mark.parametrize(("num_rows", "slope", "calibrator"), [(200, 40.0, "none"), (5000, 0.5, "platt")])
def test_probabilities_stay_as_they_are_unless_calibration_makes_them_better(
    num_rows: int, slope: float, calibrator: str
) -> None:
    """Members that separate the classes without an error would become unsure, or unsure ones would not be calibrated."""
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(num_rows, 1))
    target = truth[:, 0] > 0 if calibrator == "none" else generator.random(num_rows) < expit(slope * truth[:, 0])
    predictions = expit(truth * [40.0, 30.0, 20.0] if calibrator == "none" else truth * [4.0, 3.0, 2.0])
    named = {"combiner": "simplex", "calibration": "platt,none", "is_forward": False, "compare": False}
    ensemble, predicted = fit_cross_fitted(target.astype(float), predictions, np.arange(num_rows) % 5, NAMES, **named)
    assert ensemble.calibrator == calibrator
    assert set(ensemble.cross_fitted_calibrators) == {"platt", "none", "auto"}
    assert loss(target, predicted) == pytest.approx(ensemble.cross_fitted_calibrators["auto"]["log_loss"], rel=1e-6)


def test_a_probability_may_be_rounded_to_just_above_1() -> None:
    """An average of members that are all certain can be the float after 1: it would be refused as no probability."""
    target, predictions, group = market(600)
    predictions[:3, 1] = 1.0
    certain = fit(target, predictions, group, NAMES, combiner="simplex")
    predictions[:3, 1] = np.nextafter(1, 2)
    rounded = fit(target, predictions, group, NAMES, combiner="simplex")
    assert rounded == certain
    np.testing.assert_array_equal(rounded.predict(predictions, NAMES), certain.predict(np.minimum(predictions, 1), NAMES))
