"""Metrics of predicted numbers."""

import numpy as np

from ensemble.metrics.weighting import checked, refuse, weighted_mean


def root_mean_squared_error(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """In the unit of the target."""
    return float(np.sqrt(weighted_mean((np.asarray(prediction, float) - target) ** 2, weight)))


def mean_absolute_error(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """In the unit of the target."""
    return float(weighted_mean(np.abs(np.asarray(prediction, float) - target), weight))


class RegressionScorer:
    """A `bootstrap.Scorer`; every score is computed from weighted means."""

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        target, prediction = checked(target, prediction)
        for name, values in (("target", target), ("prediction", prediction)):
            refuse(~np.isfinite(values), values, f"the {name} of row {{}} is {{:g}}, not a number to score: check the split")
        error = prediction - target
        centred = target - target.mean()  # so that the difference of two sums in `scores` keeps its digits
        self.rows = np.stack([error**2, np.abs(error), error, centred, centred**2])

    def scores(self, weight: np.ndarray) -> np.ndarray:
        squared, absolute, mean_error, centre, mean_square = self.rows @ weight / weight.sum()
        variance = mean_square - centre**2
        # Of equal targets, as in a draw of one cluster, the variance is only the rounding error of the difference
        r_squared = 1 - squared / variance if variance > 1e-12 * mean_square else np.nan
        return np.array([np.sqrt(squared), absolute, r_squared, mean_error])
