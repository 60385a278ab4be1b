"""Prediction intervals of a regression: 90 % of the targets are expected within them.

Split-conformal: the ends of an interval are the prediction plus quantiles of the residuals of rows that were predicted out
of fold. The rows are cut into bins by their predictions, each with its own quantiles, since errors often grow with the
value. With n residuals in a bin, in ascending order, the quantiles are residuals number floor(0.05 (n + 1)) and ceil(0.95 (n
+ 1)). With sample weights w, the residuals from either end up to the quantile, and with it, have a total weight of at most
0.05 (sum(w) + mean(w)). The quantiles of few residuals are the smallest and the largest one. Lei et al. 2018,
https://doi.org/10.1080/01621459.2017.1307116; in bins: Vovk 2012, https://doi.org/10.1007/s10994-013-5355-6. An interval
that would not contain its own prediction is widened to contain it. This is needed, for example, where the target nearly
always has its largest value, and the predictions are its mean. Both ends are at least `ROUNDING` away from the
prediction: where most targets are 0, the errors of most predictions may be nothing but rounding.

If the groups of the rows follow each other in time, errors often grow from block to block. Then intervals are also fitted on
earlier blocks, and all ends are multiplied by the factor by which 90 % of the values of the later blocks would be within
these, if it is above 1. No end is farther from the prediction than the largest error on its side.
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
ROUNDING = 1e-6
"""By how much rounding may move a prediction, in standard deviations of the target: members predict 32-bit floats."""


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
    target: np.ndarray,
    prediction: np.ndarray,
    weight: np.ndarray | None = None,
    cluster: np.ndarray | None = None,
    group: np.ndarray | None = None,
) -> Intervals:
    """Fit intervals to targets and out-of-fold predictions, each (num_rows,), with at least one row.

    weight : sample weights above 0, (num_rows,), or None. cluster : (num_rows,), None if each row is one by itself. group :
    (num_rows,), rising in time; None if the groups have no order.
    """
    fitted = _fit(target, prediction, weight, cluster)
    if group is None or group.min() == group.max():
        return fitted
    factor, residuals = _factor(target, prediction, group, weight, cluster), target - prediction
    margin = _margin(target)
    least, most = min(float(residuals.min()), -margin), max(float(residuals.max()), margin)
    low, high = tuple(max(factor * end, least) for end in fitted.low), tuple(min(factor * end, most) for end in fitted.high)
    return dataclasses.replace(fitted, low=low, high=high)


def _fit(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None, cluster: np.ndarray | None) -> Intervals:
    """Fit intervals to rows without an order."""
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
    margin = _margin(target)
    quantiles = [_quantiles(residuals[rows], weight_of(weight, rows), margin) for rows in rows_of]
    low, high = zip(*quantiles, strict=True)
    return Intervals(begins=tuple(begins), low=low, high=high)


def _factor(
    target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None, cluster: np.ndarray | None
) -> float:
    """The factor, at least 1, that widens intervals fitted on earlier groups so that they contain 90 % of later targets.

    No factor helps a target beyond an end that is the prediction itself. Such rows do not count.
    """
    ratio = np.full(len(target), np.inf)
    for earlier, later in selection.folds_of(group, NUM_FOLDS, True):
        columns = target[earlier], prediction[earlier], weight_of(weight, earlier)
        low, high = _fit(*columns, None if cluster is None else cluster[earlier])(prediction[later])
        residuals, ends = target[later] - prediction[later], np.where(target[later] < prediction[later], low, high)
        size = np.abs(ends - prediction[later])
        ratio[later] = np.divide(np.abs(residuals), size, out=np.where(residuals == 0, 0, np.inf), where=size > 0)
    known = np.flatnonzero(np.isfinite(ratio))
    if not known.size:
        return 1.0
    known = known[np.argsort(-ratio[known])]
    return max(1.0, float(ratio[known[_tail(len(known), weight_of(weight, known), 10) - 1]]))


def _margin(target: np.ndarray) -> float:
    """By how much rounding may move a prediction, in the unit of the target."""
    return ROUNDING * float(np.std(target))


def _quantiles(residuals: np.ndarray, weight: np.ndarray | None, margin: float) -> tuple[float, float]:
    """The two quantiles of residuals (n,); the lower one is at most -margin and the upper one at least margin."""
    order = np.argsort(residuals)
    first, last = (_tail(len(rows), weight_of(weight, rows), 20) for rows in (order, order[::-1]))
    return min(float(residuals[order[first - 1]]), -margin), max(float(residuals[order[-last]]), margin)


def _tail(num_rows: int, weight: np.ndarray | None, part: int) -> int:
    """The number of rows at the beginning, at least 1, that have one part of `part` of the rows, or of their weight."""
    if weight is None:
        return max(1, (num_rows + 1) // part)  # in floats, 0.05 (n + 1) can be below a whole number
    weight = weight.astype(np.float64)
    return max(1, int(np.searchsorted(np.cumsum(weight), (weight.sum() + weight.mean()) / part, side="right")))


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
        low[held], high[held] = fit(*columns, group[fitted] if is_forward else None)(prediction[held])
    is_held = np.isfinite(low)
    return coverage(low[is_held], high[is_held], target[is_held], weight_of(weight, is_held))
