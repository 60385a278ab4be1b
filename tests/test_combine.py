"""The combiner: properties that hold by construction, and what it must not learn."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ensemble import combine
from ensemble.combine import (
    CANDIDATES,
    Ensemble,
    base_rate_prediction,
    best_member_weights,
    fit,
    greedy_weights,
    momentum_prediction,
    platt_scale,
    simplex_weights,
)
from ensemble.errors import UserError

NAMES = ["trees", "net", "text"]
WEEKS = 12


def expit(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def market(num_rows: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, three members that see different parts of the truth on different scales, and weeks in time order."""
    generator = np.random.default_rng(seed)
    parts = generator.normal(size=(num_rows, 3)) * [1.2, 1.0, 0.6]
    target = (generator.random(num_rows) < expit(parts.sum(1) - 3)).astype(float)
    logits = (parts - 3) * [1.0, 0.3, 2.0] + [0.0, 0.0, 1.5]
    return target, expit(logits), np.sort(generator.integers(0, WEEKS, num_rows))


def loss(target: np.ndarray, prediction: np.ndarray) -> float:
    return -np.mean(np.where(target == 1, np.log(prediction), np.log1p(-prediction)))


def scaled_logits(target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    logits = np.log(predictions / (1 - predictions))
    lines = [platt_scale(target, column) for column in logits.T]
    return np.stack([slope * column + start for (slope, start), column in zip(lines, logits.T, strict=True)], axis=1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("find_weights", [greedy_weights, simplex_weights])
def test_weights_never_lose_to_the_best_member(find_weights: Any, seed: int) -> None:
    """The blend would be worse than one of its members on the very rows that it was fitted on."""
    target, predictions, _ = market(500, seed)
    logits = scaled_logits(target, predictions)
    weights = find_weights(target, logits)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
    best = min(loss(target, expit(column)) for column in logits.T)
    assert loss(target, expit(logits @ weights)) <= best + 1e-12
    assert loss(target, expit(logits @ best_member_weights(target, logits))) == pytest.approx(best)


def test_weights_keep_the_best_member_where_all_others_hurt() -> None:
    """Greedy would keep on adding after its best prefix, and simplex stop inside."""
    target, predictions, _ = market()
    best = scaled_logits(target, predictions)[:, 0] / 2  # too timid already, and the others pull it to 0
    logits = np.stack([-best, best, -2 * best], axis=1)
    for method, find_weights in CANDIDATES.items():
        if method != "equal":
            np.testing.assert_array_equal(find_weights(target, logits), [0, 1, 0])


def test_greedy_keeps_its_best_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps would make the weights worse, whenever the last average is not the best."""
    target, predictions, _ = market()
    logits = scaled_logits(target, predictions)
    losses = []
    for num_steps in range(1, 30):
        monkeypatch.setattr(combine, "GREEDY_STEPS", num_steps)
        losses.append(loss(target, expit(logits @ greedy_weights(target, logits))))
    assert (np.diff(losses) <= 1e-15).all()
    assert losses[-1] < losses[0]


def test_simplex_survives_a_lost_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that stops early would leave weights that are worse than the best member, or do not sum to 1."""
    target, predictions, _ = market()
    good = scaled_logits(target, predictions)[:, 0]
    logits = np.stack([good, -good, -good], axis=1)
    monkeypatch.setattr("scipy.optimize.minimize", lambda *_, **__: SimpleNamespace(x=np.full(3, 1 / 3)))
    np.testing.assert_array_equal(simplex_weights(target, logits), [1, 0, 0])
    monkeypatch.setattr("scipy.optimize.minimize", lambda *_, **__: SimpleNamespace(x=np.array([3, 1e-9, 1.0])))
    np.testing.assert_array_equal(simplex_weights(target, np.stack([good / 2, -good, good * 2.5], axis=1)), [0.75, 0, 0.25])


def test_simplex_is_the_optimum() -> None:
    """The optimizer would stop early, or climb a wrong gradient."""
    target, predictions, _ = market()
    logits = scaled_logits(target, predictions)
    found = loss(target, expit(logits @ simplex_weights(target, logits)))
    steps = np.linspace(0, 1, 21)
    grid = [(first, second, 1 - first - second) for first in steps for second in steps if first + second <= 1]
    assert found <= min(loss(target, expit(logits @ np.array(weights))) for weights in grid)
    assert loss(target, expit(logits @ greedy_weights(target, logits))) == pytest.approx(found, abs=1e-4)


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
    assert ensemble.method == min(ensemble.cross_fitted, key=lambda method: ensemble.cross_fitted[method]["log_loss"])


def test_row_order_changes_nothing() -> None:
    """The weights would depend on how the rows of blend are sorted."""
    target, predictions, group = market()
    shuffle = np.random.default_rng(0).permutation(len(target))
    one = fit(target, predictions, group, NAMES)
    other = fit(target[shuffle], predictions[shuffle], group[shuffle], NAMES)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions, NAMES), rtol=1e-4)
    for method in CANDIDATES:
        assert one.cross_fitted[method] == pytest.approx(other.cross_fitted[method], rel=1e-5)


def test_member_order_changes_nothing() -> None:
    """The order of files on the command line would change the forecast, or columns would be joined by position."""
    target, predictions, group = market()
    turned = [2, 0, 1]
    names = [NAMES[member] for member in turned]
    one, other = fit(target, predictions, group, NAMES), fit(target, predictions[:, turned], group, names)
    np.testing.assert_allclose(np.array(one.weights)[turned], other.weights, atol=1e-3)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions[:, turned], names), rtol=1e-3)
    np.testing.assert_array_equal(one.predict(predictions, NAMES), one.predict(predictions[:, turned], names))


def test_scale_of_a_member_changes_nothing() -> None:
    """A member trained with focal loss or class weights would get the weight of its scale, not of its knowledge."""
    target, predictions, group = market()
    logits = np.log(predictions / (1 - predictions))
    rescaled = expit(logits * [1.0, 0.2, 1.3] + [-1.0, 2.0, 0.5])
    one, other = fit(target, predictions, group, NAMES), fit(target, rescaled, group, NAMES)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-3)
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(rescaled, NAMES), rtol=1e-2)


def test_weights_are_equal_unless_others_are_surely_better() -> None:
    """Weights that are hardly better on blend would be taken for knowledge; on test they were worse than equal ones."""
    rng = np.random.default_rng(5)
    truth = rng.normal(-2.5, 1.2, 3000)
    target, group = (rng.random(3000) < expit(truth)).astype(float), np.arange(3000) // 300
    alike = expit(truth[:, None] + rng.normal(0, 1, (3000, 3)))
    ensemble = fit(target, alike, group, NAMES)
    assert ensemble.method == "equal"
    assert ensemble.weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    unlike = expit(truth[:, None] + rng.normal(0, [0.1, 4, 4], (3000, 3)))
    assert fit(target, unlike, group, NAMES).weights[0] > 0.9
    sure, unsure = np.array([0.30, 0.31, 0.29]), np.array([0.30, 0.40, 0.19])
    assert combine._choose({"equal": sure + 0.05, "greedy": sure}) == "greedy"
    assert combine._choose({"equal": sure + 0.01, "greedy": unsure}) == "equal"


def test_duplicated_member_changes_nothing() -> None:
    """A member that is given twice would count twice."""
    target, predictions, group = market()
    once = fit(target, predictions, group, NAMES)
    doubled = predictions[:, [0, 1, 2, 0]]
    twice = fit(target, doubled, group, [*NAMES, "again"])
    assert once.cross_fitted["greedy"] == twice.cross_fitted["greedy"]
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


def test_candidates_are_scored_on_weeks_left_out() -> None:
    """A candidate would be scored on rows that it was fitted on, or on weeks between those that it was fitted on."""
    target, predictions, group = market(1200)
    logit = np.log(predictions[:, 0] / (1 - predictions[:, 0]))
    left_out = np.empty(1200)
    for block in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]):
        held = np.isin(group, block)
        slope, intercept = platt_scale(target[~held], logit[~held])
        left_out[held] = expit(slope * logit[held] + intercept)
    scores = fit(target, predictions[:, :1], group, ["trees"], num_folds=4).cross_fitted
    assert scores.keys() == CANDIDATES.keys()
    for candidate in scores.values():
        assert candidate["log_loss"] == pytest.approx(loss(target, left_out), abs=1e-8)


def test_reload_is_memory() -> None:
    """The ensemble on disk would forecast something else than the one that was scored."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    reloaded = Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict())))
    assert reloaded == ensemble
    np.testing.assert_array_equal(reloaded.predict(predictions, NAMES), ensemble.predict(predictions, NAMES))


def test_a_row_needs_no_company() -> None:
    """The same product would get other last digits when other products are forecast with it."""
    target, predictions, group = market()
    names = [f"member {number}" for number in range(9)]
    predictions = expit(np.log(predictions / (1 - predictions)) @ np.random.default_rng(0).random((3, 9)))
    ensemble = fit(target, predictions, group, names)
    ensemble = dataclasses.replace(ensemble, weights=tuple(np.random.default_rng(0).dirichlet(np.ones(9)).tolist()))
    alone = [ensemble.predict(predictions[row : row + 1], names)[0] for row in range(50)]
    np.testing.assert_array_equal(alone, ensemble.predict(predictions, names)[:50])


def test_damaged_ensemble_is_refused() -> None:
    """An ensemble file of another version would end in a KeyError, or silently in defaults."""
    target, predictions, group = market()
    content = fit(target, predictions, group, NAMES).to_dict()
    del content["platt"]
    with pytest.raises(UserError, match="differs in: extra, platt"):
        Ensemble.from_dict({**content, "extra": 1})


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
    assert ensemble.num_folds == 2
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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"target": np.zeros(3000)}, "not one of the 3000 rows of blend is positive"),
        ({"target": np.ones(3000)}, "not one of the 3000 rows of blend is negative"),
        ({"target": np.full(3000, 3.5)}, "targets of 0 and 1, but blend has 3.5"),
        ({"group": np.full(3000, 140)}, "only week 140"),
    ],
)
def test_unusable_blend_is_refused(change: dict[str, np.ndarray], sentence: str) -> None:
    """A blend that says nothing would give weights that mean nothing."""
    target, predictions, group = market()
    with pytest.raises(UserError, match=sentence):
        fit(**{"target": target, "predictions": predictions, "group": group, "member_names": NAMES, **change})


@pytest.mark.parametrize("value", [np.nan, 1.5, -2.0])
def test_no_probability_is_refused(value: float) -> None:
    """NaN, or a member that writes logits, would spread into every forecast."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    predictions[17, 1] = value
    with pytest.raises(UserError, match=f"member 'net' predicts {value:g} in row 17"):
        ensemble.predict(predictions, NAMES)
    with pytest.raises(UserError, match=f"member 'net' predicts {value:g} in row 17"):
        fit(target, predictions, group, NAMES)


def test_missing_and_foreign_members_are_named() -> None:
    """A member that has no prediction would be left out, or taken for another one."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    with pytest.raises(UserError, match="needs member 'net'"):
        ensemble.predict(predictions[:, [0, 2]], ["trees", "text"])
    with pytest.raises(UserError, match="member 'new' was not there"):
        ensemble.predict(np.column_stack([predictions, predictions[:, 0]]), [*NAMES, "new"])


def test_platt_scaling_recovers_the_line() -> None:
    """Calibration would not calibrate."""
    generator = np.random.default_rng(0)
    logit = generator.normal(size=50_000)
    target = (generator.random(50_000) < expit(1.7 * logit - 2)).astype(float)
    assert platt_scale(target, logit) == pytest.approx((1.7, -2), abs=0.06)
    slope, intercept = platt_scale(target, -logit)
    assert slope == 0
    assert expit(intercept) == pytest.approx(target.mean(), abs=1e-4)


def test_momentum_keeps_its_order_and_is_calibrated() -> None:
    """The baseline would be made worse than it is: reordered within a week, or judged on a scale that is no probability."""
    generator = np.random.default_rng(0)
    group = generator.integers(0, WEEKS, 20_000)
    score = generator.integers(0, 30, 20_000) * 10.0 ** (group % 3)  # ties, and weeks of different scale
    target = (generator.random(20_000) < expit(score / 10.0 ** (group % 3) / 5 - 6)).astype(float)
    first, second = np.arange(20_000) < 10_000, np.arange(20_000) >= 10_000
    forecast = momentum_prediction(target[first], score[first], group[first], score[second], group[second])
    for week in range(WEEKS):
        here = group[second] == week
        ranks = np.unique(score[second][here], return_inverse=True)[1]
        np.testing.assert_array_equal(np.unique(forecast[here], return_inverse=True)[1], ranks)
    same_scale = score / 10.0 ** (group % 3)
    again = momentum_prediction(target[first], same_scale[first], group[first], same_scale[second], group[second])
    np.testing.assert_array_equal(forecast, again)
    assert forecast.mean() == pytest.approx(target[second].mean(), rel=0.1)
    assert loss(target[second], forecast) < loss(target[second], base_rate_prediction(target[first], 10_000)) - 0.01
    with pytest.raises(UserError, match="momentum of row 1 is NaN"):
        momentum_prediction(np.array([0, 1]), np.array([3, np.nan]), np.zeros(2), np.zeros(2), np.zeros(2))
    with pytest.raises(UserError, match="positive"):
        momentum_prediction(np.zeros(2), np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2))
