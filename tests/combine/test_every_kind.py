"""Properties of ensembles of every kind of task: never worse than a member on blend; irrelevant changes have no effect."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from blends import CLASSES, GROUP_SIZE, KINDS, NAMES, Blend, blend_of, loss

from ensemble.combine import Ensemble, base_rate_prediction, diversity, fit, selection
from ensemble.combine.combination import Rows, distinct_members, scaled_to
from ensemble.combine.fitting import OUTPUTS_OF, member_inputs
from ensemble.combine.losses import task_loss
from ensemble.combine.scales import IDENTITY, class_temperature_scale, platt_scale
from ensemble.combine.weights import COMBINERS, SAFE, best_member_weights, greedy_weights, simplex_weights
from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS, METRICS, REPORTED_METRICS, task_scores

MAIN = {
    "binary": "log_loss",
    "multiclass": "multiclass_log_loss",
    "regression": "root_mean_squared_error",
    "ranking": "ndcg_at_10",
}
every_kind = pytest.mark.parametrize("kind", KINDS)
safe_ways = pytest.mark.parametrize(
    ("kind", "combiner"), [(kind, name) for kind in KINDS for name in COMBINERS[kind] if name in SAFE]
)


def inputs(kind: str, blend: Blend) -> np.ndarray:
    return member_inputs(blend.predictions, NAMES, OUTPUTS_OF[kind][:1] * 3)


def fitted(kind: str, blend: Blend, **settings: Any) -> Ensemble:
    return fit(*blend, settings.pop("member_names", NAMES), kind=kind, **settings)


def cost(kind: str, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> float:
    """The main metric, the lower the better."""
    value = task_scores(kind, target, prediction, group)[MAIN[kind]]
    return -value if METRIC_FUNCTIONS[MAIN[kind]].higher_is_better else value


@every_kind
@pytest.mark.parametrize("seed", range(3))
def test_weights_never_lose_to_the_best_member(kind: str, seed: int) -> None:
    """The blend would be worse than one of its members on the very rows that it was fitted on."""
    blend = blend_of(kind, 600, seed)
    scale = {"binary": platt_scale, "multiclass": class_temperature_scale}.get(kind, lambda target, column: IDENTITY)
    columns = inputs(kind, blend)
    scales = [scale(blend.target, column) for column in np.moveaxis(columns, 1, 0)]
    averaged = scaled_to(COMBINERS[kind]["equal"].space, scales, columns, blend.group)
    of_kind = task_loss(kind, blend.target, blend.group)
    best = min(of_kind.mean(blend.target, averaged[..., member]) for member in range(3))
    assert of_kind.mean(blend.target, averaged @ best_member_weights(blend.target, averaged, of_kind)) == best
    for find_weights in (greedy_weights, simplex_weights):
        result = find_weights(blend.target, averaged, of_kind)
        assert result.min() >= 0
        assert result.sum() == pytest.approx(1)
        assert of_kind.mean(blend.target, averaged @ result) <= best + 1e-12
    simplex = of_kind.mean(blend.target, averaged @ simplex_weights(blend.target, averaged, of_kind))
    assert simplex <= of_kind.mean(blend.target, averaged @ greedy_weights(blend.target, averaged, of_kind)) + 1e-8
    worst = averaged[..., :1] * [0.5, 1, -1]
    alone = of_kind.mean(blend.target, worst[..., 1])
    assert of_kind.mean(blend.target, worst @ simplex_weights(blend.target, worst, of_kind)) <= alone + 1e-12


@safe_ways
def test_weights_are_shares(kind: str, combiner: str) -> None:
    """Weights that are negative or do not sum to 1 would be read as shares on the page."""
    result = fitted(kind, blend_of(kind, 400), combiner=combiner)
    assert min(result.weights) >= 0
    assert sum(result.weights) == pytest.approx(1)


@every_kind
def test_rows_and_members_in_any_order(kind: str) -> None:
    """How rows are sorted, or files are named on the command line, would change a weight."""
    blend = blend_of(kind, 600)
    generator = np.random.default_rng(0)
    rows, turned = generator.permutation(600), [2, 0, 1]
    names = [NAMES[member] for member in turned]
    one = fitted(kind, blend)
    shuffled = Blend(blend.target[rows], blend.predictions[rows][:, turned], blend.group[rows])
    other = fitted(kind, shuffled, member_names=names)
    assert one.method == other.method
    assert dict(zip(one.member_names, one.weights, strict=True)) == dict(zip(other.member_names, other.weights, strict=True))
    scores = {method: pytest.approx(by_metric, rel=1e-9) for method, by_metric in one.cross_fitted.items()}
    assert other.cross_fitted == scores
    forecasts = [ensemble.predict(blend.predictions, NAMES, blend.group) for ensemble in (one, other)]
    np.testing.assert_allclose(*forecasts, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(one.predict(blend.predictions[:, turned], names, blend.group), forecasts[0])


@safe_ways
@pytest.mark.parametrize("member", [0, 2])
def test_equal_and_constant_members_change_nothing(kind: str, combiner: str, member: int) -> None:
    """A member that is given twice would count twice, and a constant one would change the weights of others."""
    target, predictions, group = blend_of(kind, 500, member)
    constant = np.full_like(predictions[:, :1], 0.3)
    if kind == "multiclass":
        constant[:] = np.arange(1, CLASSES + 1) / 10
    if kind == "ranking":
        constant = group[:, None] / 3.0  # the same within each group: it has no order
    alone = fitted(kind, Blend(target, predictions, group), combiner=combiner).predict(predictions, NAMES, group)
    more = np.concatenate([predictions, predictions[:, member : member + 1], constant], axis=1)
    names = [*NAMES, "twin", "constant"]
    ensemble = fitted(kind, Blend(target, more, group), combiner=combiner, member_names=names)
    np.testing.assert_allclose(ensemble.predict(more, names, group), alone, rtol=1e-6, atol=1e-9)
    assert ensemble.weights[-1] == 0
    assert ensemble.weights[3] == ensemble.weights[member]


@every_kind
def test_the_ensemble_beats_its_members_on_new_rows(kind: str) -> None:
    """The combination would be of no use."""
    ensemble, new = fitted(kind, blend_of(kind)), blend_of(kind, 8000, seed=1)
    result = cost(kind, new.target, ensemble.predict(new.predictions, NAMES, new.group), new.group)
    best = min(cost(kind, new.target, new.predictions[:, member], new.group) for member in range(3))
    assert result < best - (0.02 if kind != "regression" else 0.5)
    assert set(ensemble.cross_fitted[ensemble.method]) == set(REPORTED_METRICS[kind]) <= set(METRICS[kind])


@every_kind
def test_random_labels_give_no_gain(kind: str) -> None:
    """The combiner would learn from noise, or from the rows on which it is tested."""
    blend, new = blend_of(kind, 3000), blend_of(kind, 3000, seed=5)
    generator = np.random.default_rng(4)
    target, new_target = generator.permutation(blend.target), generator.permutation(new.target)
    ensemble = fitted(kind, blend._replace(target=target))
    base_rate = base_rate_prediction(target, 3000, kind, CLASSES)
    known = cost(kind, new_target, base_rate, new.group)
    result = cost(kind, new_target, ensemble.predict(new.predictions, NAMES, new.group), new.group)
    spread = 0.02 if kind != "regression" else 0.2
    assert result > known - spread
    if kind in ("binary", "multiclass"):
        assert result < known + spread  # and no harm
    auto = ensemble.cross_fitted["auto"][MAIN[kind]]
    signed = -auto if METRIC_FUNCTIONS[MAIN[kind]].higher_is_better else auto
    assert signed > cost(kind, target, base_rate, blend.group) - spread


@every_kind
def test_a_block_is_predicted_from_earlier_ones_only(kind: str) -> None:
    """A method would be fitted to the weeks on which it is scored, or to later ones."""
    blend = blend_of(kind, 600)
    columns, folds = inputs(kind, blend), selection.folds_of(blend.group, 4, True)
    (_, first), (_, second) = folds[0], folds[1]
    later = blend.group >= blend.group[second].min()
    ways = list(COMBINERS[kind]), [{"binary": "platt", "multiclass": "temperature"}.get(kind, "")]

    def forecasts(target: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        rows = Rows(kind, kind, target, columns, np.zeros(3, bool), blend.group)
        result = selection.cross_fitted_predictions(rows, *ways, folds)
        return {name: forecast for (name, _), forecast in result.items()}

    before, wrong = forecasts(blend.target, columns), columns.copy()
    target = blend.target.copy()
    target[later], wrong[later] = target[later][::-1], -wrong[later]
    after = forecasts(target, wrong)
    for name, forecast in before.items():
        np.testing.assert_array_equal(forecast[~later], after[name][~later], err_msg=name)
        assert np.isfinite(forecast[first]).all()
        assert np.isnan(forecast[blend.group < blend.group[first].min()]).all()
        assert not np.array_equal(forecast[second], after[name][second])
    with_other_targets = forecasts(target, columns)
    for name, forecast in before.items():  # the targets of a block have no effect on its own predictions
        np.testing.assert_array_equal(forecast[second], with_other_targets[name][second], err_msg=name)


@every_kind
def test_a_reloaded_ensemble_predicts_the_same(kind: str) -> None:
    """The ensemble on disk would forecast something else than the one that was scored."""
    blend = blend_of(kind, 600)
    for combiner in ("auto", *COMBINERS[kind]):
        ensemble = fitted(kind, blend, combiner=combiner)
        reloaded = Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict())))
        assert reloaded == ensemble
        forecasts = [each.predict(blend.predictions, NAMES, blend.group) for each in (ensemble, reloaded)]
        np.testing.assert_array_equal(*forecasts)


@every_kind
def test_a_row_is_predicted_alike_alone_and_with_others(kind: str) -> None:
    """The last digits of a row's prediction, or of a group's in a ranking, would depend on the other rows of the call."""
    blend = blend_of(kind, 600)
    names = [f"member {number}" for number in range(9)]
    mixed = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    predictions = np.einsum("rm...,nm->rn...", blend.predictions, mixed)
    ensemble = fitted(kind, blend._replace(predictions=predictions), member_names=names, combiner="equal")
    random = tuple(np.random.default_rng(0).dirichlet(np.ones(9)).tolist())
    ensemble = dataclasses.replace(ensemble, combination=dataclasses.replace(ensemble.combination, weights=random))
    together = ensemble.predict(predictions, names, blend.group)
    size = GROUP_SIZE if kind == "ranking" else 1
    for first in range(0, 100, size):
        rows = slice(first, first + size)
        np.testing.assert_array_equal(ensemble.predict(predictions[rows], names, blend.group[rows]), together[rows])


@every_kind
def test_a_missing_member_is_made_up_for(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One member that is gone would stop every forecast, or leave the average short of its weight."""
    blend = blend_of(kind, 1000)
    ensemble = fitted(kind, blend, combiner="shrunk")
    without = ensemble.predict(blend.predictions[:, [2, 0]], ["text", "trees"], blend.group)
    assert capsys.readouterr().err == "warning: predictions of net are missing: the other weights increase in proportion\n"
    assert sum(ensemble.combination.subset([0, 2]).weights) == pytest.approx(1)
    base_rate = base_rate_prediction(blend.target, 1000, kind, CLASSES)
    assert cost(kind, blend.target, without, blend.group) < cost(kind, blend.target, base_rate, blend.group)


@every_kind
def test_members_without_weight_change_no_bit(kind: str) -> None:
    """New rows would have other predictions without these members, or a member with weight would be left out too."""
    blend = blend_of(kind, 600)
    for combiner in COMBINERS[kind]:
        ensemble = fitted(kind, blend, combiner=combiner)
        weights = (0.3, 0.0, ensemble.weights[2])
        ensemble = dataclasses.replace(ensemble, combination=dataclasses.replace(ensemble.combination, weights=weights))
        fewer = ensemble.members_with_weight()
        assert fewer.member_names == tuple(name for name, weight in zip(NAMES, weights, strict=True) if weight)
        columns = [NAMES.index(name) for name in fewer.member_names]
        expected = ensemble.predict(blend.predictions, NAMES, blend.group)
        np.testing.assert_array_equal(
            fewer.predict(blend.predictions[:, columns], fewer.member_names, blend.group), expected
        )


@every_kind
def test_nan_is_named(kind: str) -> None:
    """NaN would spread into every forecast."""
    blend = blend_of(kind, 600)
    ensemble = fitted(kind, blend)
    blend.predictions[17, 1] = np.nan
    for ask in (lambda: ensemble.predict(blend.predictions, NAMES, blend.group), lambda: fitted(kind, blend)):
        with pytest.raises(UserError, match=r"member 'net' predicts nan.* in row 17, which "):
            ask()


@every_kind
def test_what_each_member_adds_is_measured(kind: str) -> None:
    """A user would not know which member to drop, or the result could not be written as JSON."""
    target, predictions, group = blend_of(kind, 800)
    echo = predictions[:, :1].copy()
    echo[::7] = np.roll(echo[::7], 1, axis=0)
    members, names = np.concatenate([predictions, echo], axis=1), [*NAMES, "echo"]
    ensemble = fit(target, members, group, names, kind=kind, combiner="greedy")
    cluster = group if kind == "ranking" else np.arange(800) % 97
    result = diversity.measure(ensemble, target, members, group, cluster, np.random.default_rng(0))
    assert json.loads(json.dumps(result)) == result
    assert result["error_correlation"]["trees"]["echo"] > 0.4
    assert all(result["error_correlation"][name][name] == pytest.approx(1) for name in names)
    metric = REPORTED_METRICS[kind][0]
    sign = -1 if METRIC_FUNCTIONS[metric].higher_is_better else 1
    assert sign * result["without"]["net"][metric] > sign * result["without"]["echo"][metric]
    by_part = diversity.scores_by_part(
        kind, target, {"net": predictions[:, 1]}, group, np.arange(800) // 400, ["one", "two"]
    )
    assert json.loads(json.dumps(by_part)) == by_part
    assert by_part["two"]["rows"] == 400
    half = task_scores(kind, target[400:], predictions[400:, 1], group[400:])
    assert by_part["two"][metric]["net"] == pytest.approx(half[metric])


def test_a_target_of_another_kind_is_refused() -> None:
    """A class that no member knows, or a relevance below 0, would be scored as something else. The gain of a
    large relevance is infinite, so all weights would have the same loss."""
    for kind, wrong, sentence in (
        ("multiclass", 4.0, "there are 4 classes, from 0, but a target is 4"),
        ("multiclass", 0.5, "there are 4 classes, from 0, but a target is 0.5"),
        ("ranking", -1.0, "a relevance is 0 or more, but one is -1"),
        ("ranking", 5000.0, "a relevance is at most 1000, but one is 5000: give grades instead"),
        ("ranking", np.nan, "the target of row 3 that weights are fitted on is not a number"),
    ):
        blend = blend_of(kind, 400)
        blend.target[3] = wrong
        with pytest.raises(UserError, match=sentence):
            fitted(kind, blend)
    for kind in ("multiclass", "ranking"):
        blend = blend_of(kind, 400)
        with pytest.raises(UserError, match="all 400 rows that weights are fitted on have the target 0: prepare"):
            fitted(kind, blend._replace(target=np.zeros(400)))
    with pytest.raises(UserError, match="is for probabilities, and these members give scores"):
        fitted("ranking", blend_of("ranking", 400), calibration="platt")


def test_the_outputs_of_members_fit_the_task() -> None:
    """Scores in a binary task would be ranked within each group, or those in a ranking converted to probabilities."""
    target, predictions, group = blend_of("ranking", 1000)
    outputs = ["score"] * 3
    ranking = fit(target, predictions, group, NAMES, kind="ranking", outputs=outputs)
    binary = fit((target > 0).astype(float), predictions, group, NAMES, kind="binary", outputs=outputs)
    result = ranking.predict(predictions, NAMES, group), binary.predict(predictions, NAMES)
    assert result[0].min() < 0
    assert 0 < result[1].min() < result[1].max() < 1
    assert loss((target > 0).astype(float), result[1]) < 0.6
    assert ranking.calibrator == ""
    np.testing.assert_array_equal(ranking.probabilities("net", predictions[:, 1]), predictions[:, 1])


def test_a_group_drawn_twice_is_two_groups() -> None:
    """A user drawn twice would be one group with each item twice, whose first 10 places have only 5 different items."""
    group = np.repeat(np.arange(6), 4)
    for rows, drawn in diversity.draws_of_clusters(group % 3, group, np.random.default_rng(0), 20):
        assert (np.unique(drawn, return_counts=True)[1] == 4).all()
        assert len(np.unique(drawn)) == 6  # three clusters of two groups each
        for number in np.unique(drawn):
            assert len(np.unique(group[rows[drawn == number]])) == 1
    for rows, drawn in diversity.draws_of_clusters(np.arange(24) % 5, group, np.random.default_rng(0), 20):
        np.testing.assert_array_equal(drawn, group[rows])  # a cluster has rows of several groups, so groups are kept


@pytest.mark.parametrize("shape", [(6, 5), (1, 4), (3, 5, 2)])
def test_distinct_members_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    """Equal members would get two weights, or the order of members would change the last bits of a sum."""
    for seed in range(50):
        members = np.random.default_rng(seed).integers(0, 2, shape).astype(float)
        columns, twin = distinct_members(members)
        expected, inverse = np.unique(members, axis=1, return_inverse=True)
        assert np.array_equal(columns, expected)
        assert np.array_equal(twin, inverse.ravel())
