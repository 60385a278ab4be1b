"""The choice between combinations: it is made by later weeks only, and prefers equal weights in doubt."""

import numpy as np
import pytest
from blends import NAMES, expit, loss, market

from ensemble.combine import fit, selection
from ensemble.combine.scales import platt_scale


def test_weights_are_equal_unless_others_are_surely_better() -> None:
    """Weights that are hardly better on blend would be chosen, although they were worse on test than equal ones."""
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
    huge = 1e200 * sure  # the squared errors of targets of 1e100
    assert selection.choose({"equal": huge + np.array([4e198, 5e198, 6e198]), "greedy": huge}, "equal") == "greedy"


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


def test_auto_is_scored_by_what_it_would_have_chosen() -> None:
    """The automatic choice would look better than it is, since it would be made by the weeks on which it is scored."""
    folds = [(np.arange(6) < start, np.isin(np.arange(6), [start, start + 1])) for start in (0, 2, 4)]
    forecasts = {"equal": np.zeros(6), "greedy": np.ones(6)}
    losses = {"equal": np.array([2.0, 2.1, 9.0]), "greedy": np.array([1.0, 1.0, 0.0])}
    chosen = selection.chosen_by_fold(losses, "equal", True)
    np.testing.assert_array_equal(selection.auto_predictions(forecasts, chosen, folds), [0, 0, 0, 0, 1, 1])
    assert selection.choose(losses, "equal") == "greedy"
