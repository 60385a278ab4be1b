"""Ensembles that minimise the absolute error: their weights, their level, and the baseline that they are compared with."""

import numpy as np
import pytest

from ensemble.combine import Ensemble, base_rate_prediction, fit
from ensemble.combine.losses import task_loss
from ensemble.combine.weights import simplex_weights
from ensemble.metrics.regression import mean_absolute_error
from ensemble.task import ABSOLUTE_ERROR

NAMES = ["steady", "wild"]


def members(num_rows: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, two members, and groups. One member errs a little on all rows, the other much, but on few rows."""
    generator = np.random.default_rng(seed)
    target, noise = generator.normal(size=num_rows), generator.normal(size=num_rows)
    is_wrong = generator.random(num_rows) < 0.05
    wild = target + 0.3 * generator.normal(size=num_rows) + np.where(is_wrong, 12 * generator.normal(size=num_rows), 0)
    return target, np.stack([target + noise, wild], axis=1), np.arange(num_rows) % 50


def test_weights_minimise_the_absolute_error() -> None:
    """A member with rare large errors would get the small weight that its squared error deserves."""
    target, predictions, _ = members()
    loss = task_loss(ABSOLUTE_ERROR)
    weights = simplex_weights(target, predictions, loss)
    grid = np.linspace(0, 1, 101)
    best = min(mean_absolute_error(target, predictions @ [1 - share, share]) for share in grid)
    assert loss.mean(target, predictions @ weights) <= best + 1e-6
    assert weights[1] > 0.6 > 0.4 > simplex_weights(target, predictions, task_loss("regression"))[1]


@pytest.mark.parametrize(("loss", "level"), [(ABSOLUTE_ERROR, np.log(2)), ("regression", 1.0)])
def test_the_level_is_that_of_the_loss(loss: str, level: float) -> None:
    """The average would be corrected to the mean of skewed errors, where their median has the lowest absolute error."""
    target, predictions, group = members()
    skewed = target + np.random.default_rng(1).exponential(size=len(target))
    ensemble = fit(skewed, target[:, None] + 0.0 * predictions[:, :1], group, ["one"], kind="regression", loss=loss)
    assert ensemble.loss == loss
    assert ensemble.predict(np.zeros((1, 1)), ["one"]) == pytest.approx(level, abs=0.05)


def test_a_median_within_its_error_is_not_corrected() -> None:
    """The level would follow the noise of a few rows."""
    generator = np.random.default_rng(3)
    values = []
    for _ in range(200):
        target = generator.normal(size=40)
        ensemble = fit(
            target + generator.normal(size=40),
            target[:, None],
            np.arange(40) // 2,
            ["one"],
            kind="regression",
            loss=ABSOLUTE_ERROR,
        )
        values.append(ensemble.combination.intercept)
    assert 0.5 < np.mean(np.array(values) == 0) < 0.9  # a normal variable is within one standard error in 68 % of the draws


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    """Weights of rows would be lost with this loss."""
    target, predictions, group = members(600)
    weight = 1.0 + (np.arange(600) % 3 == 0)
    twice = np.repeat(np.arange(600), weight.astype(int))
    options = {"kind": "regression", "loss": ABSOLUTE_ERROR, "combiner": "simplex"}
    weighted = fit(target, predictions, group, NAMES, weight=weight, **options)
    repeated = fit(target[twice], predictions[twice], group[twice], NAMES, **options)
    assert weighted.weights == pytest.approx(repeated.weights, abs=1e-3)
    assert weighted.combination.intercept == pytest.approx(repeated.combination.intercept, abs=1e-3)
    target = np.array([1.0, 2, 10])
    assert base_rate_prediction(target, 2, ABSOLUTE_ERROR).tolist() == [2, 2]
    assert base_rate_prediction(target, 1, ABSOLUTE_ERROR, 0, np.array([0.5, 0.5, 2])).tolist() == [10]


def test_an_ensemble_of_an_older_version_has_the_loss_of_its_kind() -> None:
    """Fitted ensembles that do not name their loss could not be loaded any more."""
    target, predictions, group = members(200)
    content = fit(target, predictions, group, NAMES, kind="regression").to_dict()
    assert content.pop("loss") == "regression"
    assert Ensemble.from_dict(content).loss == "regression"
