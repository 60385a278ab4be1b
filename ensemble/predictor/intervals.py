"""Prediction intervals of a regression: 90 % of the targets are expected between the two ends.

Split-conformal: the ends are quantiles of the residuals of rows that were predicted out of fold. The rows are cut into bins
by their predictions, each with its own quantiles, since errors often grow with the value. With n residuals in a bin the ends
are the residuals number floor(0.05 (n + 1)) and ceil(0.95 (n + 1)) in rising order. Lei et al. 2018,
https://doi.org/10.1080/01621459.2017.1307116; in bins: Vovk 2012, https://doi.org/10.1007/s10994-013-5355-6. An interval is
widened to its prediction where it would lie beside it, as for the mean of a target that nearly always has its largest value.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from ensemble.combine import selection

SHARE = 0.9
LEAST_ROWS = 200
"""Of a bin, if there are several."""
MOST_BINS = 10
NUM_FOLDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Residuals, target less prediction, by bin of the prediction."""

    begins: tuple[float, ...]
    """The least predictions of the second and further bins, rising."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Of each bin."""

    def __call__(self, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper ends, each of the shape of `prediction`."""
        bins = np.searchsorted(self.begins, prediction, side="right")
        return prediction + np.array(self.low)[bins], prediction + np.array(self.high)[bins]

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Intervals":
        """What `dataclasses.asdict` described, also as JSON."""
        return cls(**{name: tuple(values) for name, values in content.items()})


def fit(target: np.ndarray, prediction: np.ndarray) -> Intervals:
    """From targets and out-of-fold predictions, each (num_rows,), at least one."""
    num_bins = max(1, min(MOST_BINS, len(target) // LEAST_ROWS))
    cuts = np.quantile(prediction, np.arange(1, num_bins) / num_bins)
    begins = np.unique(cuts[cuts > prediction.min()])  # equal predictions are in one bin
    bins = np.searchsorted(begins, prediction, side="right")
    ends = [_ends(np.sort((target - prediction)[bins == number])) for number in range(len(begins) + 1)]
    return Intervals(begins=tuple(begins.tolist()), low=tuple(low for low, _ in ends), high=tuple(high for _, high in ends))


def _ends(residuals: np.ndarray) -> tuple[float, float]:
    number, tail = len(residuals), (1 - SHARE) / 2
    low = max(1, math.floor(tail * (number + 1)))
    high = min(number, math.ceil((1 - tail) * (number + 1)))
    return min(float(residuals[low - 1]), 0.0), max(float(residuals[high - 1]), 0.0)


def coverage(low: np.ndarray, high: np.ndarray, target: np.ndarray) -> dict[str, float | int]:
    """The part of the targets that are within the intervals, for JSON."""
    return {
        "share": SHARE,
        "coverage": float(((low <= target) & (target <= high)).mean()),
        "rows": len(target),
        "median_width": float(np.median(high - low)),
    }


def cross_fitted(
    target: np.ndarray, prediction: np.ndarray, group: np.ndarray, is_forward: bool
) -> dict[str, float | int] | None:
    """`coverage` of rows by intervals that were fitted on other blocks of groups; on earlier blocks if `is_forward`.

    Each (num_rows,). None if there is only one group.
    """
    if group.min() == group.max():
        return None
    folds = (selection.forward_folds if is_forward else selection.random_folds)(group, NUM_FOLDS)
    found = [(*fit(target[others], prediction[others])(prediction[held]), target[held]) for others, held in folds]
    low, high, targets = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return coverage(low, high, targets)
