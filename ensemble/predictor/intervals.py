"""Prediction intervals of a regression: 90 % of the targets are expected within them.

Split-conformal: the ends of an interval are the prediction plus quantiles of the residuals of rows that were predicted out
of fold. The rows are cut into bins by their predictions, each with its own quantiles, since errors often grow with the
value. With n residuals in a bin, in ascending order, the quantiles are residuals number floor(0.05 (n + 1)) and ceil(0.95 (n
+ 1)). With sample weights w, the residuals from either end up to the quantile, and with it, have a total weight of at most
0.05 (sum(w) + mean(w)). The quantiles of few residuals are the smallest and the largest one. Lei et al. 2018,
https://doi.org/10.1080/01621459.2017.1307116; in bins: Vovk 2012, https://doi.org/10.1007/s10994-013-5355-6. An interval
that would not contain its own prediction is widened to contain it. This is needed, for example, where the target nearly
always has its largest value, and the predictions are its mean.
"""

import dataclasses
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.metrics.weighting import weight_of, weighted_mean, weighted_median

SHARE = 0.9
"""Nominal coverage of the intervals."""
LEAST_ROWS = 60
"""Fewest rows of a bin, if there are several bins. On 21 public tables with 100 to 400 rows, the intervals of the quarter of
new rows with the largest predictions contained 91 % of the values, and 81 % with at least 200 rows in a bin."""
LEAST_CLUSTERS = 20
"""Fewest clusters for each bin, on average. The residuals of a cluster may be alike, so that those of a few clusters do not
show how far new ones deviate. With 30 clusters of 40 rows, whose effect has the variance of the noise, 86 % of new values
were in the intervals of 6 bins, and 90 % in those of one bin."""
MOST_BINS = 10
"""Largest number of bins."""
NUM_FOLDS = 5
"""Number of blocks of groups in `cross_fitted`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intervals:
    """Quantiles of the residuals (target minus prediction) in bins of the prediction."""

    begins: tuple[float, ...]
    """The lower end of each bin but the first, ascending; a prediction that equals it is in the bin."""
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


def fit(
    target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None, cluster: np.ndarray | None = None
) -> Intervals:
    """Fit intervals to targets and out-of-fold predictions, each (num_rows,), with at least one row.

    weight : sample weights above 0, (num_rows,), or None. cluster : (num_rows,), None if each row is one by itself.
    """
    num_clusters = len(target) if cluster is None else len(np.unique(cluster))
    num_bins = max(1, min(MOST_BINS, len(target) // LEAST_ROWS, num_clusters // LEAST_CLUSTERS))
    cuts = np.quantile(prediction, np.arange(1, num_bins) / num_bins)
    num_below = np.searchsorted(np.sort(prediction), cuts)
    first, begins = 0, list[float]()
    for below, cut in dict(zip(num_below.tolist(), cuts.tolist(), strict=True)).items():  # equal predictions are in one bin
        if min(below - first, len(prediction) - below) >= LEAST_ROWS:
            begins.append(cut)
            first = below
    bins = np.searchsorted(begins, prediction, side="right")
    residuals = target - prediction
    rows_of = [np.flatnonzero(bins == number) for number in range(len(begins) + 1)]
    quantiles = [_quantiles(residuals[rows], weight_of(weight, rows)) for rows in rows_of]
    low, high = zip(*quantiles, strict=True)
    return Intervals(begins=tuple(begins), low=low, high=high)


def _quantiles(residuals: np.ndarray, weight: np.ndarray | None) -> tuple[float, float]:
    """The two quantiles of residuals (n,); the lower one is at most 0 and the upper one at least 0."""
    order = np.argsort(residuals)
    residuals = residuals[order]
    if weight is None:
        tails = [(len(residuals) + 1) // 20] * 2  # 5 %; in floats, 0.05 (n + 1) can be below a whole number
    else:
        weight = weight[order].astype(np.float64)
        most = (weight.sum() + weight.mean()) / 20
        tails = [int(np.searchsorted(np.cumsum(part), most, side="right")) for part in (weight, weight[::-1])]
    first, last = (max(1, tail) for tail in tails)
    return min(float(residuals[first - 1]), 0.0), max(float(residuals[-last]), 0.0)


def coverage(
    low: np.ndarray, high: np.ndarray, target: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float | int]:
    """As in scores.json: the share of the targets that are within their intervals, and the median width; both weighted."""
    width = high - low
    return {
        "share": SHARE,
        "coverage": float(weighted_mean((low <= target) & (target <= high), weight)),
        "rows": len(target),
        "median_width": float(np.median(width)) if weight is None else weighted_median(width, weight),
    }


def cross_fitted(
    target: np.ndarray,
    prediction: np.ndarray,
    group: np.ndarray,
    is_forward: bool,
    weight: np.ndarray | None = None,
    cluster: np.ndarray | None = None,
) -> dict[str, float | int] | None:
    """`coverage` of intervals that were fitted on other blocks of groups, or on earlier blocks if `is_forward`.

    target, prediction, group, weight, cluster : each (num_rows,), the last two may be None. The result is None if there is
    only one group.
    """
    if group.min() == group.max():
        return None
    low, high = np.full((2, len(target)), np.nan)
    for fitted, held in selection.folds_of(group, NUM_FOLDS, is_forward):
        columns = target[fitted], prediction[fitted], weight_of(weight, fitted), None if cluster is None else cluster[fitted]
        low[held], high[held] = fit(*columns)(prediction[held])
    is_held = np.isfinite(low)
    return coverage(low[is_held], high[is_held], target[is_held], weight_of(weight, is_held))
