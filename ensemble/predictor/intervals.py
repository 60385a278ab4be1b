"""Prediction intervals of a regression: 90 % of the targets are expected within them.

Split-conformal: the ends of an interval are the prediction plus quantiles of the residuals of rows that were predicted out
of fold. The rows are cut into bins by their predictions, each with its own quantiles, since errors often grow with the
value. With n residuals in a bin, in ascending order, the quantiles are residuals number floor(0.05 (n + 1)) and ceil(0.95 (n
+ 1)). Lei et al. 2018, https://doi.org/10.1080/01621459.2017.1307116; in bins: Vovk 2012,
https://doi.org/10.1007/s10994-013-5355-6. An interval that would not contain its own prediction is widened to contain it.
This is needed, for example, where the target nearly always has its largest value, and the predictions are its mean.
"""

import dataclasses
from typing import Any

import numpy as np

from ensemble.combine import selection

SHARE = 0.9
"""Nominal coverage of the intervals."""
LEAST_ROWS = 200
"""Fewest rows of a bin, if there are several bins."""
MOST_BINS = 10
"""Largest number of bins."""
NUM_FOLDS = 5
"""Number of blocks of groups in `cross_fitted`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Quantiles of the residuals (target less prediction) in bins of the prediction."""

    begins: tuple[float, ...]
    """The smallest prediction of each bin but the first, ascending."""
    low: tuple[float, ...]
    """Lower quantile of each bin."""
    high: tuple[float, ...]
    """Upper quantile of each bin."""

    def __call__(self, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper ends of the intervals, each of the shape of `prediction`."""
        bins = np.searchsorted(self.begins, prediction, side="right")
        return prediction + np.array(self.low)[bins], prediction + np.array(self.high)[bins]

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Intervals":
        """The inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        return cls(**{name: tuple(values) for name, values in content.items()})


def fit(target: np.ndarray, prediction: np.ndarray) -> Intervals:
    """Fit intervals to targets and out-of-fold predictions, each (num_rows,), with at least one row."""
    num_bins = max(1, min(MOST_BINS, len(target) // LEAST_ROWS))
    cuts = np.quantile(prediction, np.arange(1, num_bins) / num_bins)
    num_below = np.searchsorted(np.sort(prediction), cuts)
    first, begins = 0, list[float]()
    for below, cut in dict(zip(num_below.tolist(), cuts.tolist(), strict=True)).items():  # equal predictions are in one bin
        if min(below - first, len(prediction) - below) >= LEAST_ROWS:
            begins.append(cut)
            first = below
    bins = np.searchsorted(begins, prediction, side="right")
    quantiles = [_quantiles(np.sort((target - prediction)[bins == number])) for number in range(len(begins) + 1)]
    low, high = zip(*quantiles, strict=True)
    return Intervals(begins=tuple(begins), low=low, high=high)


def _quantiles(residuals: np.ndarray) -> tuple[float, float]:
    """The two quantiles of ascending residuals (n,); the lower one is at most 0 and the upper one at least 0."""
    tail = max(1, (len(residuals) + 1) // 20)  # 5 %; in floats, 0.05 (n + 1) can be below a whole number
    return min(float(residuals[tail - 1]), 0.0), max(float(residuals[-tail]), 0.0)


def coverage(low: np.ndarray, high: np.ndarray, target: np.ndarray) -> dict[str, float | int]:
    """The share of the targets that are within their intervals, and the median width, as in scores.json."""
    return {
        "share": SHARE,
        "coverage": float(((low <= target) & (target <= high)).mean()),
        "rows": len(target),
        "median_width": float(np.median(high - low)),
    }


def cross_fitted(
    target: np.ndarray, prediction: np.ndarray, group: np.ndarray, is_forward: bool
) -> dict[str, float | int] | None:
    """`coverage` of intervals that were fitted on other blocks of groups, or on earlier blocks if `is_forward`.

    target, prediction, group : each (num_rows,). None if there is only one group.
    """
    if group.min() == group.max():
        return None
    folds = selection.folds_of(group, NUM_FOLDS, is_forward)
    parts = [(*fit(target[fitted], prediction[fitted])(prediction[held]), target[held]) for fitted, held in folds]
    return coverage(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
