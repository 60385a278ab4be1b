"""The combiners: never worse than the best member on the rows on which they are fitted, and each with the right scale."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blends import NAMES, expit, loss, market, scaled_logits

from ensemble.combine import Ensemble, fit, weights
from ensemble.combine.weights import COMBINERS, best_member_weights, greedy_weights, simplex_weights


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("find_weights", [greedy_weights, simplex_weights])
def test_weights_never_lose_to_the_best_member(find_weights: Any, seed: int) -> None:
    """The blend would be worse than one of its members on the very rows that it was fitted on."""
    target, predictions, _ = market(500, seed)
    logits = scaled_logits(target, predictions)
    result = find_weights(target, logits)
    assert (result >= 0).all()
    assert result.sum() == pytest.approx(1)
    best = min(loss(target, expit(column)) for column in logits.T)
    assert loss(target, expit(logits @ result)) <= best + 1e-12
    assert loss(target, expit(logits @ best_member_weights(target, logits))) == pytest.approx(best)


def test_weights_keep_the_best_member_where_all_others_hurt() -> None:
    """Greedy would not stop at its best prefix, or simplex would give weight to the other members."""
    target, predictions, _ = market()
    best = scaled_logits(target, predictions)[:, 0] / 2  # too close to 0 already, and the others pull it further
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
    result = loss(target, expit(logits @ simplex_weights(target, logits)))
    steps = np.linspace(0, 1, 21)
    grid = [(first, second, 1 - first - second) for first in steps for second in steps if first + second <= 1]
    assert result <= min(loss(target, expit(logits @ np.array(point))) for point in grid)
    assert loss(target, expit(logits @ greedy_weights(target, logits))) == pytest.approx(result, abs=1e-4)


def test_weights_that_may_be_negative_need_many_rows() -> None:
    """With few positives, a member would get a negative weight by chance."""
    for num_rows, free in ((1500, False), (12_000, True)):
        target, predictions, group = market(num_rows)
        noise = predictions[:, 1]
        logits = np.log(predictions / (1 - predictions))
        # The first member contains too much of the second, which only a negative weight removes
        logits[:, 0] += 6 * np.log(noise / (1 - noise)) + 5
        ensemble = fit(target, expit(logits), group, NAMES)
        assert (min(ensemble.weights) < 0) == free


@pytest.mark.parametrize("combiner", COMBINERS["binary"])
def test_every_combiner_helps(combiner: str) -> None:
    """A combiner would get members on the wrong scale."""
    target, predictions, group = market()
    new_target, new_predictions, _ = market(20_000, seed=1)
    ensemble = fit(target, predictions, group, NAMES, combiner=combiner)
    assert ensemble.method == combiner
    forecast = ensemble.predict(new_predictions, NAMES)
    best = min(loss(new_target, expit(column)) for column in scaled_logits(new_target, new_predictions).T)
    assert loss(new_target, forecast) < best + (0.002 if combiner == "best_member" else -0.01)
    assert Ensemble.from_dict(json.loads(json.dumps(ensemble.to_dict()))) == ensemble
