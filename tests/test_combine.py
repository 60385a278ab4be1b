"""The combiner: properties that hold by construction, and what it must not learn."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble.combine import Ensemble, base_rate_prediction, diversity, fit, momentum_prediction, selection, weights
from ensemble.combine.combination import fit_combinations
from ensemble.combine.scales import CALIBRATORS, ISOTONIC_LEAST, platt_scale, rank_scale
from ensemble.combine.weights import COMBINERS, SAFE, best_member_weights, greedy_weights, simplex_weights
from ensemble.errors import UserError
from ensemble.metrics import average_precision

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
    return np.stack([platt_scale(target, column)(column) for column in logits.T], axis=1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("find_weights", [greedy_weights, simplex_weights])
def test_weights_never_lose_to_the_best_member(find_weights: Any, seed: int) -> None:
    """The blend would be worse than one of its members on the very rows that it was fitted on."""
    target, predictions, _ = market(500, seed)
    logits = scaled_logits(target, predictions)
    found = find_weights(target, logits)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    best = min(loss(target, expit(column)) for column in logits.T)
    assert loss(target, expit(logits @ found)) <= best + 1e-12
    assert loss(target, expit(logits @ best_member_weights(target, logits))) == pytest.approx(best)


def test_weights_keep_the_best_member_where_all_others_hurt() -> None:
    """Greedy would keep on adding after its best prefix, and simplex stop inside."""
    target, predictions, _ = market()
    best = scaled_logits(target, predictions)[:, 0] / 2  # too timid already, and the others pull it to 0
    logits = np.stack([-best, best, -2 * best], axis=1)
    for find_weights in (best_member_weights, greedy_weights, simplex_weights):
        np.testing.assert_array_equal(find_weights(target, logits), [0, 1, 0])


def test_greedy_keeps_its_best_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps would make the weights worse, whenever the last average is not the best."""
    target, predictions, _ = market()
    logits = scaled_logits(target, predictions)
    losses = []
    for num_steps in range(1, 30):
        monkeypatch.setattr(weights, "GREEDY_STEPS", num_steps)
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
    assert found <= min(loss(target, expit(logits @ np.array(point))) for point in grid)
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
    assert selection.choose({"equal": sure + 0.05, "greedy": sure}, "equal") == "greedy"
    assert selection.choose({"equal": sure + 0.01, "greedy": unsure}, "equal") == "equal"


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


def test_combiners_are_scored_on_later_weeks() -> None:
    """A combiner would be scored on rows that it was fitted on, or by what it learned from later weeks."""
    target, predictions, group = market(1200)
    logit = np.log(predictions[:, 0] / (1 - predictions[:, 0]))
    forecast = np.empty(1200)
    for block in ([3, 4, 5], [6, 7, 8], [9, 10, 11]):
        held, earlier = np.isin(group, block), group < block[0]
        forecast[held] = expit(platt_scale(target[earlier], logit[earlier])(logit[held]))
    ensemble = fit(target, predictions[:, :1], group, ["trees"], num_folds=3)
    later = group > 2
    assert ensemble.cross_fitted.keys() == {"equal", "auto"}
    assert ensemble.cross_fitted_calibrators.keys() == {"platt", "temperature", "auto"}
    for scores in (ensemble.cross_fitted["equal"], ensemble.cross_fitted_calibrators["platt"]):
        assert scores["log_loss"] == pytest.approx(loss(target[later], forecast[later]), abs=1e-8)


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
    random = tuple(np.random.default_rng(0).dirichlet(np.ones(9)).tolist())
    ensemble = dataclasses.replace(ensemble, combination=dataclasses.replace(ensemble.combination, weights=random))
    alone = [ensemble.predict(predictions[row : row + 1], names)[0] for row in range(50)]
    np.testing.assert_array_equal(alone, ensemble.predict(predictions, names)[:50])


def test_damaged_ensemble_is_refused() -> None:
    """An ensemble file of another version would end in a KeyError, or silently in defaults."""
    target, predictions, group = market()
    content = fit(target, predictions, group, NAMES).to_dict()
    del content["calibrator"]
    with pytest.raises(UserError, match="differs in: calibrator, extra"):
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


@pytest.mark.parametrize("method", COMBINERS["binary"])
def test_missing_member_is_made_up_for(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One member that is gone would stop every forecast, or draw all probabilities towards one half."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES, combiner=method)
    left = ensemble.combination.of([0, 2])
    assert sum(left.weights) == pytest.approx(sum(ensemble.weights))
    if method == "best_member":
        with pytest.raises(UserError, match="without trees no member of the ensemble has weight"):
            ensemble.predict(predictions[:, 1:], NAMES[1:])
    forecast = ensemble.predict(predictions[:, [2, 0]], ["text", "trees"])
    assert capsys.readouterr().err == "warning: net of the ensemble is missing: the others' weights make up for it\n"
    assert forecast.mean() == pytest.approx(target.mean(), rel=0.5)
    assert average_precision(target, forecast) > 2 * target.mean()


def test_foreign_members_are_named() -> None:
    """A member that the ensemble does not know would be taken for another one."""
    target, predictions, group = market()
    ensemble = fit(target, predictions, group, NAMES)
    with pytest.raises(UserError, match="member 'new' was not there"):
        ensemble.predict(np.column_stack([predictions, predictions[:, 0]]), [*NAMES, "new"])
    with pytest.raises(UserError, match="without trees, net, text no member"):
        ensemble.predict(np.empty((5, 0)), [])


def test_platt_scaling_recovers_the_line() -> None:
    """Calibration would not calibrate."""
    generator = np.random.default_rng(0)
    logit = generator.normal(size=50_000)
    target = (generator.random(50_000) < expit(1.7 * logit - 2)).astype(float)
    line = platt_scale(target, logit)
    assert (line.slope, line.intercept) == pytest.approx((1.7, -2), abs=0.06)
    backwards = platt_scale(target, -logit)
    assert backwards.slope == 0
    assert expit(backwards.intercept) == pytest.approx(target.mean(), abs=1e-4)


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


# What holds for any members

blends = st.builds(market, num_rows=st.integers(120, 400), seed=st.integers(0, 10_000))
few = settings(max_examples=8)


@few
@given(blends, st.randoms(use_true_random=False))
def test_rows_and_members_in_any_order(blend: tuple[np.ndarray, np.ndarray, np.ndarray], random: Any) -> None:
    """How rows are sorted, or files are named on the command line, would change a weight."""
    target, predictions, group = blend
    rows, members = list(range(len(target))), [0, 1, 2]
    random.shuffle(rows)
    random.shuffle(members)
    one = fit(target, predictions, group, NAMES)
    other = fit(target[rows], predictions[rows][:, members], group[rows], [NAMES[member] for member in members])
    assert one.method == other.method
    assert dict(zip(one.member_names, one.weights, strict=True)) == dict(zip(other.member_names, other.weights, strict=True))
    np.testing.assert_allclose(one.predict(predictions, NAMES), other.predict(predictions, NAMES), rtol=1e-9)


@few
@given(blends, st.sampled_from(sorted(COMBINERS["binary"])), st.sampled_from(["platt", "temperature"]), st.integers(0, 2))
def test_twins_and_constants_change_nothing(
    blend: tuple[np.ndarray, np.ndarray, np.ndarray], combiner: str, calibration: str, member: int
) -> None:
    """A member that is given twice would count twice, and one that says the same of each row would move the others."""
    target, predictions, group = blend
    chosen = {"combiner": combiner, "calibration": calibration}
    alone = fit(target, predictions, group, NAMES, **chosen).predict(predictions, NAMES)
    more = np.column_stack([predictions, predictions[:, member], np.full(len(target), 0.3)])
    names = [*NAMES, "twin", "constant"]
    ensemble = fit(target, more, group, names, **chosen)
    np.testing.assert_allclose(ensemble.predict(more, names), alone, rtol=1e-6)
    assert ensemble.weights[-1] == 0
    assert ensemble.weights[3] == ensemble.weights[member]


@few
@given(blends)
def test_weights_of_a_fit_are_shares(blend: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """Weights that are negative or do not sum to 1 would be read as shares on the page."""
    target, predictions, _ = blend
    kinds = [(name, "platt") for name in (*SAFE, "rank_average", "nnls")]
    inputs = np.log(predictions / (1 - predictions))
    for (name, _), found in fit_combinations("binary", kinds, target, inputs, np.zeros(3, bool)).items():
        assert min(found.weights) >= 0
        assert sum(found.weights) == pytest.approx(1) or name == "nnls"


@few
@given(blends, st.integers(1, 3))
def test_a_week_is_judged_by_earlier_ones_only(blend: tuple[np.ndarray, np.ndarray, np.ndarray], last: int) -> None:
    """A way to combine would look at the weeks it is judged on, or at later ones."""
    target, predictions, group = blend
    inputs = np.log(predictions / (1 - predictions))
    later = group > last

    def forecasts(target: np.ndarray, inputs: np.ndarray) -> dict[str, np.ndarray]:
        def fit_all(rows: np.ndarray) -> dict[str, Any]:
            kinds = [(name, "platt") for name in COMBINERS["binary"]]
            found = fit_combinations("binary", kinds, target[rows], inputs[rows], np.zeros(3, bool))
            return {name: combination for (name, _), combination in found.items()}

        return selection.forward_forecasts(fit_all, inputs, selection.forward_folds(group, 4))

    before = forecasts(target, inputs)
    after = forecasts(np.where(later, 1 - target, target), np.where(later[:, None], -inputs, inputs))
    for name, forecast in before.items():
        np.testing.assert_array_equal(forecast[~later], after[name][~later], err_msg=name)
        assert np.isnan(forecast[group == 0]).all()


def test_auto_is_judged_by_what_it_would_have_chosen() -> None:
    """What choosing gives would look better than it is: chosen by the very weeks that it is judged on."""
    folds = [(np.arange(6) < start, np.isin(np.arange(6), [start, start + 1])) for start in (0, 2, 4)]
    forecasts = {"equal": np.zeros(6), "greedy": np.ones(6)}
    losses = {"equal": np.array([2.0, 2.1, 9.0]), "greedy": np.array([1.0, 1.0, 0.0])}
    np.testing.assert_array_equal(selection.auto_forecast(losses, forecasts, "equal", folds), [0, 0, 0, 0, 1, 1])
    assert selection.choose(losses, "equal") == "greedy"


# Other combiners, calibrators and targets


@pytest.mark.parametrize("combiner", COMBINERS["binary"])
def test_every_combiner_helps(combiner: str) -> None:
    """One of them would be wired to the wrong scale."""
    target, predictions, group = market()
    new_target, new_predictions, _ = market(20_000, seed=1)
    ensemble = fit(target, predictions, group, NAMES, combiner=combiner)
    assert ensemble.method == combiner
    forecast = ensemble.predict(new_predictions, NAMES)
    best = min(loss(new_target, expit(column)) for column in scaled_logits(new_target, new_predictions).T)
    assert loss(new_target, forecast) < best + (0.002 if combiner == "best_member" else -0.01)
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble


@pytest.mark.parametrize("calibration", CALIBRATORS)
def test_calibrators_calibrate(calibration: str) -> None:
    """Probabilities would not be those that are seen."""
    generator = np.random.default_rng(0)
    logit = np.sort(generator.normal(size=40_000))
    target = (generator.random(40_000) < expit(1.7 * logit)).astype(float)
    scale = CALIBRATORS[calibration](target, logit)
    found = expit(scale(logit))
    np.testing.assert_allclose(found[400:-400], expit(1.7 * logit)[400:-400], atol=0.05)
    assert (np.diff(found) >= 0).all()
    assert np.isfinite(scale(np.array([-1e9, 1e9]))).all()
    if calibration == "temperature":
        assert scale(np.zeros(1)) == 0


def test_isotonic_needs_many_rows() -> None:
    """A step for each positive would be taken for knowledge."""
    target, predictions, group = market()
    num_positive = int(target.sum())
    assert num_positive < ISOTONIC_LEAST
    with pytest.raises(UserError, match=f"isotonic needs 1,000 rows of the rarer class, and blend has {num_positive}: use"):
        fit(target, predictions, group, NAMES, calibration="isotonic")
    target, predictions, group = market(12_000)
    ensemble = fit(target, predictions, group, NAMES, calibration="isotonic")
    assert ensemble.calibrator == "isotonic"
    assert set(ensemble.cross_fitted_calibrators) == {*CALIBRATORS, "auto"}
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble


def test_weights_that_may_be_negative_need_many_rows() -> None:
    """With few positives, a member would be counted against itself for noise."""
    for num_rows, free in ((1500, False), (12_000, True)):
        target, predictions, group = market(num_rows)
        noise = predictions[:, 1]
        logits = np.log(predictions / (1 - predictions))
        # The second is in the first, too much of it: only a negative weight takes it out.
        logits[:, 0] += 6 * np.log(noise / (1 - noise)) + 5
        ensemble = fit(target, expit(logits), group, NAMES)
        assert (min(ensemble.weights) < 0) == free


def test_a_score_of_any_scale_joins_by_its_rank() -> None:
    """A foreign model that says margins would be refused, or its scale be taken for knowledge."""
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


def test_ranks_are_as_fine_as_a_forecast_needs() -> None:
    """A curve through many ranks would tie the few rows at the top, which are the forecast."""
    generator = np.random.default_rng(0)
    score = generator.normal(size=50_000)
    target = (generator.random(50_000) < expit(2 * score - 4)).astype(float)
    curve = rank_scale(target, score)
    assert len(curve.at) <= 1000
    top = np.sort(score)[-2500:]
    assert (np.diff(curve(top)) > 0).all()
    assert loss(target, expit(curve(score))) < loss(target, expit(platt_scale(target, score)(score))) + 0.002


@pytest.mark.parametrize("combiner", ["auto", *COMBINERS["regression"]])
def test_numbers_are_combined_too(combiner: str) -> None:
    """Members that forecast a number would be squeezed into probabilities."""
    generator = np.random.default_rng(0)
    truth = 100 + 10 * generator.normal(size=(6000, 1))
    predictions = truth + generator.normal(0, [4, 5, 8], (6000, 3)) + [0, 3, 0]
    target, group = truth[:, 0], np.arange(6000) // 300
    blend, test = np.arange(6000) < 3000, np.arange(6000) >= 3000
    outputs = ["value"] * 3
    ensemble = fit(target[blend], predictions[blend], group[blend], NAMES, outputs=outputs, combiner=combiner)
    error = np.sqrt(np.mean((ensemble.predict(predictions[test], NAMES) - target[test]) ** 2))
    assert error < (4.1 if combiner == "best_member" else 3.95 if combiner == "equal" else 3.3)
    assert ensemble.cross_fitted[ensemble.method]["root_mean_squared_error"] == pytest.approx(error, rel=0.1)
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble
    if combiner == "auto":
        assert ensemble.method in ("nnls", "ridge", "simplex", "greedy")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outputs": ["value", "value", "probability"]}, "some members say values and some say probabilities"),
        ({"outputs": ["odds"] * 3}, "a member says 'odds', but the ensemble knows probability, score, value"),
        ({"combiner": "median"}, "there is no combiner 'median' for binary targets: name auto, equal,"),
        ({"combiner": "logistic", "outputs": ["value"] * 3}, "there is no combiner 'logistic' for regression targets"),
        ({"calibration": "beta"}, "there is no calibration 'beta': name auto, platt, temperature, isotonic"),
        ({"calibration": "platt", "outputs": ["value"] * 3}, "is of probabilities, and these members say values"),
        ({"target": np.full(3000, np.nan), "outputs": ["value"] * 3}, "the target of row 0 of blend is no number"),
        ({"predictions": np.full((3000, 3), np.inf), "outputs": ["score"] * 3}, "predicts inf in row 0, which is no number"),
    ],
)
def test_what_cannot_be_combined_is_refused(change: dict[str, Any], sentence: str) -> None:
    """A wrong word would be a traceback, or silently something else."""
    target, predictions, group = market()
    arguments = {"target": target, "predictions": predictions, "group": group, "member_names": NAMES}
    with pytest.raises(UserError, match=sentence):
        fit(**{**arguments, **change})


# Which member to drop


def test_diversity_names_the_member_to_drop() -> None:
    """A user would drop the member that the ensemble lives on, or keep one that adds nothing."""
    target, predictions, group = market(4000)
    echo = expit(np.log(predictions[:, 0] / (1 - predictions[:, 0])) + np.random.default_rng(1).normal(0, 0.05, 4000))
    names = [*NAMES, "echo"]
    members = np.column_stack([predictions, echo])
    ensemble = fit(target, members, group, names, combiner="greedy")
    cluster = np.arange(4000) % 97
    found = diversity.on_blend(ensemble, target, members, group, cluster, np.random.default_rng(0))
    assert json.loads(json.dumps(found)) == found
    correlation = found["error_correlation"]
    assert correlation["trees"]["echo"] > 0.99
    assert abs(correlation["trees"]["net"]) < 0.3
    assert all(correlation[name][name] == pytest.approx(1) for name in names)
    without = {name: of["log_loss"] for name, of in found["without"].items()}
    assert without["net"] > 0.01
    assert abs(without["echo"]) < 0.002
    for name, weight in zip(names, ensemble.weights, strict=True):
        drawn = found["weights"][name]
        assert 0 <= drawn["low"] <= drawn["high"] <= 1
        assert drawn["low"] - 0.1 <= weight <= drawn["high"] + 0.1
    assert found["weights_of"] == "greedy"
    again = diversity.on_blend(ensemble, target, members, group, cluster, np.random.default_rng(0))
    assert again == found


def test_one_member_has_nothing_beside_it() -> None:
    """A single member would fail on being left out."""
    target, predictions, group = market()
    ensemble = fit(target, predictions[:, :1], group, ["trees"])
    found = diversity.on_blend(ensemble, target, predictions[:, :1], group, group, np.random.default_rng(0))
    assert found["without"] == {}
    assert found["weights"] == {"trees": {"mean": 1.0, "low": 1.0, "high": 1.0}}


def test_scores_by_part_and_their_drift() -> None:
    """A week would get another's score, a part without positives NaN in JSON, or a score that falls be called steady."""
    target, predictions, group = market(12_000)
    fading = np.where(np.random.default_rng(0).random(12_000) < group / WEEKS, 0.2, predictions[:, 0])
    forecasts = {"steady": predictions[:, 0], "fading": fading}
    target[group == 5] = 0
    weeks = diversity.by_part(target, forecasts, group, group, [f"week {number}" for number in range(WEEKS)])
    assert weeks["week 5"]["average_precision"] == {"steady": None, "fading": None}
    here = group == 3
    assert weeks["week 3"]["log_loss"]["steady"] == pytest.approx(loss(target[here], predictions[here, 0]))
    assert (weeks["week 3"]["rows"], weeks["week 3"]["positives"]) == (here.sum(), target[here].sum())
    slopes = diversity.drift(weeks, "average_precision")
    assert slopes["fading"]["slope"] < -2 * slopes["fading"]["standard_error"]
    assert abs(slopes["steady"]["slope"]) < 2 * slopes["steady"]["standard_error"]
    two = dict(list(weeks.items())[:2])
    assert diversity.drift(two, "log_loss")["steady"] == {"slope": None, "standard_error": None}
