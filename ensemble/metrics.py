"""How good a forecast of rare events is, and how sure one can be of that.

    scores = binary_scores(target, prediction, group)                                    # {"average_precision": 0.41, …}
    intervals = bootstrap_scores(target, prediction, group, cluster, generator=rng)      # {"average_precision": Interval, …}
    gain = bootstrap_difference(target, ensemble, best_member, group, cluster, generator=rng)

Rows may carry weights: a weight of 2 gives exactly what the row standing there twice would give. The bootstrap rests on
that: it sorts once, draws weights, and copies no row. Rows with equal predictions are always treated as one block, so no
score depends on the order of the rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ensemble.errors import UserError

TOP_FRACTION = 0.05
CALIBRATION_BINS = 20  # of equal mass, so that the last bin holds the top 5 %, where most of the positives are


class Metric(NamedTuple):
    """What a report needs to know of a metric; `higher_is_better` is None for a mere reference."""

    label: str
    higher_is_better: bool | None


METRICS = {
    "average_precision": Metric("Average precision", True),
    "roc_auc": Metric("ROC-AUC", True),
    "log_loss": Metric("Log loss", False),
    "brier": Metric("Brier score", False),
    "calibration_error": Metric("Calibration error", False),
    "precision_at_5pct": Metric("Precision in the top 5 % of each week", True),
    "lift_at_5pct": Metric("Lift in the top 5 % of each week", True),
    "accuracy": Metric("Accuracy", True),
    "accuracy_always_no": Metric("Accuracy of always saying no", None),
}


class Interval(NamedTuple):
    """A score, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Reliability(NamedTuple):
    """Mean prediction, share of positives and number of rows, each of shape (bins in use,), predictions rising."""

    prediction: np.ndarray
    observed: np.ndarray
    num_rows: np.ndarray


class PrecisionRecall(NamedTuple):
    """Points of the curve, each array of shape (num_points,), the threshold falling and the recall rising."""

    recall: np.ndarray
    precision: np.ndarray
    threshold: np.ndarray


def binary_scores(
    target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Every metric of `METRICS` for probabilities of a yes-or-no target.

    target, prediction, group: shape (num_rows,); 0 or 1, a probability, and the week (any integer). `weight`, of the same
    shape and not negative, counts a row more than once, or not at all.

    average_precision, roc_auc, log_loss (in nats; predictions are clipped to 2.2e-16 from 0 and 1) and brier (mean squared
    error) agree with scikit-learn's. calibration_error is the mean of |share of positives − mean prediction| over 20 bins
    of equal mass, weighted by mass. precision_at_5pct takes, within each group, the 5 % of the rows with the highest
    predictions (rounded down, at least one row); of rows tied at the border each is taken in part, which is the mean
    over all ways to break the tie. lift_at_5pct divides it by the base rate. accuracy says yes from 0.5 on.

    What cannot be defined is NaN: ROC-AUC where all targets are equal, average precision and lift where all are 0
    (`why_undefined` says so in words). Raises `UserError` for a target that is not 0 or 1 and a prediction that is no
    probability.
    """
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, float)
    assert weight.shape == np.shape(target)
    scores = _Scorer(target, prediction, group).scores(weight)
    return dict(zip(METRICS, scores.tolist(), strict=True))


def average_precision(target: np.ndarray, prediction: np.ndarray) -> float:
    """The average precision of any scores, both (num_rows,): the mean over positives of the precision down to each."""
    order = np.argsort(-prediction, kind="stable")
    starts = _starts(prediction[order])
    positive = np.add.reduceat(target[order].astype(float), starts)
    above = np.append(starts[1:], len(order))
    return float((positive * np.cumsum(positive) / above).sum() / max(positive.sum(), 1))


def bootstrap_scores(
    target: np.ndarray,
    prediction: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    *,
    num_draws: int = 200,
    generator: np.random.Generator,
) -> dict[str, Interval]:
    """`binary_scores`, each with its 95 % percentile interval from `num_draws` draws of whole clusters.

    cluster: shape (num_rows,), the product: its rows are alike, so they are drawn with replacement together. Draws in
    which a metric is undefined are left out; with fewer than two clusters there is nothing to draw and both ends are NaN.
    A calibration error can lie below its own interval: it is a sum of absolute values, which drawing again makes larger.
    """
    return _intervals(_Scorer(target, prediction, group).scores, cluster, num_draws, generator)


def bootstrap_difference(
    target: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    *,
    num_draws: int = 200,
    generator: np.random.Generator,
) -> dict[str, Interval]:
    """Score of `first` minus score of `second`, with the 95 % interval of that difference: both see the same draws.

    Arguments as for `bootstrap_scores`, with two predictions of shape (num_rows,) for the same rows.
    """
    ours, theirs = _Scorer(target, first, group), _Scorer(target, second, group)
    return _intervals(lambda weight: ours.scores(weight) - theirs.scores(weight), cluster, num_draws, generator)


def why_undefined(target: np.ndarray) -> str | None:
    """One sentence for the report on the scores that are NaN, or None when every score is defined."""
    target = np.asarray(target)
    if not target.any():
        return "There is no positive among these rows, so average precision, ROC-AUC and lift are not defined."
    if target.all():
        return "There is no negative among these rows, so ROC-AUC is not defined."
    return None


def reliability(target: np.ndarray, prediction: np.ndarray, num_bins: int = CALIBRATION_BINS) -> Reliability:
    """Predicted against observed share of positives, in bins of equal numbers of rows.

    Rows with equal predictions stay together, so there can be fewer bins than `num_bins`, and of unequal size.
    """
    target, prediction = _checked(target, prediction)
    _, block, size = np.unique(prediction, return_inverse=True, return_counts=True)
    bins = _equal_mass_bins(size, num_bins)[block]
    num_rows = np.bincount(bins, minlength=num_bins)
    used = num_rows > 0
    mean_prediction = np.bincount(bins, prediction, num_bins)[used] / num_rows[used]
    observed = np.bincount(bins, target, num_bins)[used] / num_rows[used]
    return Reliability(mean_prediction, observed, num_rows[used])


def precision_recall(target: np.ndarray, prediction: np.ndarray, max_points: int = 200) -> PrecisionRecall:
    """At most `max_points` points of the precision-recall curve, evenly spaced in recall, both ends kept.

    A target without positives has no curve: the arrays are empty.
    """
    target, prediction = _checked(target, prediction)
    order = np.argsort(-prediction, kind="stable")
    last = np.flatnonzero(np.append(np.diff(prediction[order]) != 0, True))  # last row of each block of ties
    hits = np.cumsum(target[order])[last]
    if hits[-1] == 0:
        return PrecisionRecall(np.empty(0), np.empty(0), np.empty(0))
    keep = np.unique(np.append(np.searchsorted(hits, np.linspace(hits[0], hits[-1], max_points - 1)), len(last) - 1))
    return PrecisionRecall(hits[keep] / hits[-1], hits[keep] / (last[keep] + 1), prediction[order][last[keep]])


def hot_seller_metric(**options: Any) -> Any:
    """`binary_scores` as an `evaluate.Metric` that needs no network: compute(predictions=…, references=…, group=…).

    `options` go to `evaluate.Metric` (keep_in_memory, num_process, process_id, experiment_id, cache_dir, …).
    """
    import datasets
    import evaluate

    class HotSellerMetric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            columns = {"predictions": "float64", "references": "int64", "group": "int64"}
            return evaluate.MetricInfo(
                description="Scores of a forecast of hot sellers: see ensemble/metrics.py",
                citation="",
                inputs_description="predictions: probabilities; references: 0 or 1; group: the week",
                features=datasets.Features({name: datasets.Value(kind) for name, kind in columns.items()}),
            )

        def _compute(self, *, predictions: Any, references: Any, group: Any) -> dict[str, float]:
            return binary_scores(np.asarray(references), np.asarray(predictions), np.asarray(group))

    return HotSellerMetric(**options)


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64, after the checks that `binary_scores` documents."""
    target, prediction = np.asarray(target, float), np.asarray(prediction, float)
    assert target.shape == prediction.shape == (target.size,)
    if target.size == 0:
        raise UserError("there is not one row to score: check the split")
    bad = np.flatnonzero((target != 0) & (target != 1))
    if bad.size:
        raise UserError(
            f"a target must be 0 or 1 to be scored, but that of row {bad[0]} is {target[bad[0]]:g}: check the split"
        )
    bad = np.flatnonzero(~((prediction >= 0) & (prediction <= 1)))
    if bad.size:
        raise UserError(
            f"the prediction of row {bad[0]} is {prediction[bad[0]]:g}, no probability: calibrate the member first"
        )
    return target, prediction


class _Scorer:
    """The scores of one prediction for any weights: all sorting is done here, once.

    A block is a run of rows with equal predictions. `order` sorts by falling prediction; `group_order` by group, then by
    falling prediction, and there a block also ends where its group ends.
    """

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        self.target, prediction = _checked(target, prediction)
        groups, group = np.unique(group, return_inverse=True)
        assert group.shape == self.target.shape
        self.num_groups = len(groups)
        tiny = np.finfo(float).eps
        clipped = np.clip(prediction, tiny, 1 - tiny)
        # One column per plain mean: all of them in one product with the weights.
        self.row_losses = np.stack(
            [
                -np.where(self.target == 1, np.log(clipped), np.log1p(-clipped)),
                (prediction - self.target) ** 2,
                (prediction >= 0.5) == self.target,
                self.target == 0,
            ]
        )
        self.order = np.argsort(-prediction, kind="stable")
        self.starts = _starts(prediction[self.order])
        self.sorted_target = self.target[self.order]
        self.block_prediction = prediction[self.order][self.starts]

        self.group_order = np.lexsort((-prediction, group))
        sorted_group = group[self.group_order]
        self.group_starts = _starts(prediction[self.group_order], sorted_group)
        self.group_target = self.target[self.group_order]
        self.block_group = sorted_group[self.group_starts]

    def scores(self, weight: np.ndarray) -> np.ndarray:
        """All metrics, in the order of `METRICS`: shape (num_metrics,)."""
        sorted_weight = weight[self.order]
        mass = np.add.reduceat(sorted_weight, self.starts)
        positive = np.add.reduceat(sorted_weight * self.sorted_target, self.starts)
        num_rows, num_positive = mass.sum(), positive.sum()
        num_negative = num_rows - num_positive
        log_loss, brier, accuracy, always_no = self.row_losses @ weight / num_rows

        average_precision = roc_auc = lift = np.nan
        if num_positive > 0:
            above = np.cumsum(mass)
            block_precision = np.cumsum(positive) / np.where(above > 0, above, 1)
            average_precision = (positive * block_precision).sum() / num_positive
        if num_positive > 0 and num_negative > 0:
            negative = mass - positive
            negative_below = num_negative - np.cumsum(negative)
            roc_auc = (positive * (negative_below + negative / 2)).sum() / (num_positive * num_negative)

        bins = _equal_mass_bins(mass, CALIBRATION_BINS)
        gap = np.bincount(bins, positive - mass * self.block_prediction, CALIBRATION_BINS)
        calibration_error = np.abs(gap).sum() / num_rows

        precision = self._precision_at_top(weight)
        if num_positive > 0:
            lift = precision * num_rows / num_positive
        return np.array(
            [average_precision, roc_auc, log_loss, brier, calibration_error, precision, lift, accuracy, always_no]
        )

    def _precision_at_top(self, weight: np.ndarray) -> float:
        sorted_weight = weight[self.group_order]
        mass = np.add.reduceat(sorted_weight, self.group_starts)
        positive = np.add.reduceat(sorted_weight * self.group_target, self.group_starts)
        group_mass = np.bincount(self.block_group, mass, self.num_groups)
        # The small number keeps 5 % of 60 rows at 3, whichever way the product is rounded.
        top_mass = np.minimum(np.maximum(np.floor(group_mass * TOP_FRACTION + 1e-9), 1), group_mass)
        mass_above = np.cumsum(mass) - mass - (np.cumsum(group_mass) - group_mass)[self.block_group]
        taken = np.clip(top_mass[self.block_group] - mass_above, 0, mass)
        return (positive * taken / np.where(mass > 0, mass, 1)).sum() / top_mass.sum()


def _starts(*sorted_columns: np.ndarray) -> np.ndarray:
    """Positions at which any of the sorted columns takes a new value."""
    changes = np.any([column[1:] != column[:-1] for column in sorted_columns], axis=0)
    return np.flatnonzero(np.append(True, changes))


def _equal_mass_bins(mass: np.ndarray, num_bins: int) -> np.ndarray:
    """For blocks of rows in sorted order: the bin in which the middle of each block lies. A block is never divided."""
    middle = np.cumsum(mass) - mass / 2
    return np.minimum((middle * (num_bins / mass.sum())).astype(np.int64), num_bins - 1)


def _intervals(
    scores: Callable[[np.ndarray], np.ndarray], cluster: np.ndarray, num_draws: int, generator: np.random.Generator
) -> dict[str, Interval]:
    values = scores(np.ones(len(cluster)))
    clusters, member = np.unique(cluster, return_inverse=True)
    if len(clusters) < 2:
        return {name: Interval(float(value), np.nan, np.nan) for name, value in zip(METRICS, values, strict=True)}
    draws = []
    for _ in range(num_draws):
        times_drawn = np.bincount(generator.integers(len(clusters), size=len(clusters)), minlength=len(clusters))
        draws.append(scores(times_drawn[member].astype(float)))
    intervals = {}
    for name, value, drawn in zip(METRICS, values, np.transpose(draws), strict=True):
        defined = drawn[np.isfinite(drawn)]
        low, high = np.quantile(defined, [0.025, 0.975]) if defined.size and np.isfinite(value) else (np.nan, np.nan)
        intervals[name] = Interval(float(value), float(low), float(high))
    return intervals
