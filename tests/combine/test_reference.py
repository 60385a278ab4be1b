"""The calibrated score that an ensemble must beat is as good as the score itself."""

import numpy as np
import pytest
from blends import WEEKS, expit, loss

from ensemble.combine import base_rate_prediction, ranked_prediction
from ensemble.errors import UserError


def test_a_score_keeps_its_order_and_is_calibrated() -> None:
    """An ensemble would be compared with a baseline that was reordered within a week, or that gives no probabilities."""
    generator = np.random.default_rng(0)
    group = generator.integers(0, WEEKS, 20_000)
    score = generator.integers(0, 30, 20_000) * 10.0 ** (group % 3)  # ties, and weeks of different scale
    target = (generator.random(20_000) < expit(score / 10.0 ** (group % 3) / 5 - 6)).astype(float)
    first, second = np.arange(20_000) < 10_000, np.arange(20_000) >= 10_000
    forecast = ranked_prediction(target[first], score[first], group[first], score[second], group[second])
    for week in range(WEEKS):
        here = group[second] == week
        ranks = np.unique(score[second][here], return_inverse=True)[1]
        np.testing.assert_array_equal(np.unique(forecast[here], return_inverse=True)[1], ranks)
    same_scale = score / 10.0 ** (group % 3)
    again = ranked_prediction(target[first], same_scale[first], group[first], same_scale[second], group[second])
    np.testing.assert_array_equal(forecast, again)
    assert forecast.mean() == pytest.approx(target[second].mean(), rel=0.1)
    assert loss(target[second], forecast) < loss(target[second], base_rate_prediction(target[first], 10_000)) - 0.01
    with pytest.raises(UserError, match="score of row 1 is NaN"):
        ranked_prediction(np.array([0, 1]), np.array([3, np.nan]), np.zeros(2), np.zeros(2), np.zeros(2))
    with pytest.raises(UserError, match="positive"):
        ranked_prediction(np.zeros(2), np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2))
