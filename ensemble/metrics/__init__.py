"""How good a forecast is, for each kind of task, and how sure one can be of that.

    scores = task_scores("binary", target, prediction, group)                              # {"average_precision": 0.41, …}
    intervals = bootstrap_scores(target, prediction, group, cluster, kind="ranking", generator=rng)
    gain = bootstrap_difference(target, ensemble, best_member, group, cluster, generator=rng)
    METRIC_OF["ndcg_at_10"].function(target, prediction, group)                            # one number, for early stopping

Rows may carry weights: a weight of 2 gives exactly what the row standing there twice would give (ranking.py says what that
means of a group). The bootstrap rests on that: it sorts once, draws weights, and copies no row. Rows with equal predictions
are always treated as one block, so no score depends on the order of the rows. Only the precision and the lift in the top 5 %
depend on the unit of the weights, which `relative` removes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ensemble.metrics import binary, multiclass, ranking, regression
from ensemble.metrics.binary import TOP_FRACTION, average_precision, precision_recall, reliability
from ensemble.metrics.bootstrap import Interval, Scorer, intervals
from ensemble.metrics.weighting import relative

__all__ = [
    "METRICS",
    "METRIC_OF",
    "TOP_FRACTION",
    "Interval",
    "Metric",
    "MetricOf",
    "average_precision",
    "binary_scores",
    "bootstrap_difference",
    "bootstrap_scores",
    "precision_recall",
    "relative",
    "reliability",
    "task_scores",
    "what_is_left_out",
    "why_undefined",
]


class Metric(NamedTuple):
    """What a report needs to know of a metric; `higher_is_better` is None for a mere reference."""

    label: str
    higher_is_better: bool | None


METRICS = {
    "binary": {
        "average_precision": Metric("Average precision", True),
        "roc_auc": Metric("ROC-AUC", True),
        "log_loss": Metric("Log loss", False),
        "brier": Metric("Brier score", False),
        "calibration_error": Metric("Calibration error", False),
        "precision_at_5pct": Metric("Precision in the top 5 % of each group", True),
        "lift_at_5pct": Metric("Lift in the top 5 % of each group", True),
        "accuracy": Metric("Accuracy", True),
        "accuracy_always_no": Metric("Accuracy of always saying no", None),
    },
    "multiclass": {
        "multiclass_log_loss": Metric("Log loss", False),
        "accuracy": Metric("Accuracy", True),
        "balanced_accuracy": Metric("Balanced accuracy", True),
        "macro_f1": Metric("Macro F1", True),
        "brier": Metric("Brier score", False),
    },
    "regression": {
        "root_mean_squared_error": Metric("Root mean squared error", False),
        "mean_absolute_error": Metric("Mean absolute error", False),
        "r_squared": Metric("R²", True),
        "mean_error": Metric("Mean error", None),
    },
    "ranking": {
        "ndcg_at_5": Metric("NDCG@5", True),
        "ndcg_at_10": Metric("NDCG@10", True),
        "mean_reciprocal_rank": Metric("Mean reciprocal rank", True),
        "recall_at_10": Metric("Recall@10", True),
    },
}
"""By kind of task, in the order of its scorer's scores."""
BIASED = ("calibration_error",)
"""Metrics that are larger in each draw of the bootstrap than on the rows themselves."""

SCORERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Scorer]] = {
    "binary": binary.BinaryScorer,
    "multiclass": multiclass.MulticlassScorer,
    "regression": regression.RegressionScorer,
    "ranking": ranking.RankingScorer,
}


class MetricOf(NamedTuple):
    """A metric by which members may stop early and ways to combine them be compared."""

    function: Callable[..., float]
    """Of target, prediction, group and optionally weight: (num_rows,) each, prediction (num_rows, num_classes) for a
    multiclass task."""
    higher_is_better: bool
    kinds: tuple[str, ...]
    """Of the tasks that it is for."""


def _of_rows(function: Callable[[np.ndarray, np.ndarray, np.ndarray | None], float]) -> Callable[..., float]:
    """A metric that no group matters to."""
    return lambda target, prediction, group, weight=None: function(target, prediction, weight)


METRIC_OF: dict[str, MetricOf] = {
    "average_precision": MetricOf(_of_rows(average_precision), True, ("binary",)),
    "roc_auc": MetricOf(_of_rows(binary.roc_auc), True, ("binary",)),
    "log_loss": MetricOf(_of_rows(binary.log_loss), False, ("binary",)),
    "multiclass_log_loss": MetricOf(_of_rows(multiclass.log_loss), False, ("multiclass",)),
    "accuracy": MetricOf(_of_rows(multiclass.accuracy), True, ("multiclass",)),
    "root_mean_squared_error": MetricOf(_of_rows(regression.root_mean_squared_error), False, ("regression",)),
    "mean_absolute_error": MetricOf(_of_rows(regression.mean_absolute_error), False, ("regression",)),
    "ndcg_at_10": MetricOf(ranking.ndcg_at_10, True, ("ranking",)),
}


def task_scores(
    kind: str, target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Every metric of `METRICS[kind]`; `binary_scores` says what those of a yes or no are.

    target, group: shape (num_rows,). prediction: the same, of a multiclass task (num_rows, num_classes). `weight`, of shape
    (num_rows,) and not negative, counts a row more than once, or not at all.

    multiclass: multiclass_log_loss in nats and accuracy, balanced_accuracy (mean recall of the classes there are) and
    macro_f1 (mean over the classes that came true or were named) of the likeliest class, of which those that tie count in
    part; brier is the mean over rows of the sum over classes of squared errors, from 0 to 2. regression: the first two and
    mean_error (prediction less target) in the target's unit; r_squared is 1 − squared error by variance, NaN for targets all
    alike. ranking: NDCG with gains of 2^relevance − 1 and the discount log2, mean_reciprocal_rank of the first relevant row,
    recall_at_10 the share of a group's relevant rows in its first 10 places; groups without a relevant row are left out.
    All agree with scikit-learn's where it has them. What cannot be defined is NaN (`why_undefined` says so in words).
    Raises `UserError` for targets and predictions that are none of the kind's.
    """
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, float)
    assert weight.shape == np.shape(target)
    scores = SCORERS[kind](target, prediction, group).scores(weight)
    return dict(zip(METRICS[kind], scores.tolist(), strict=True))


def binary_scores(
    target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Every metric of `METRICS["binary"]` for probabilities of a yes-or-no target.

    target, prediction, group: shape (num_rows,); 0 or 1, a probability, and the week (any integer). `weight`, of the same
    shape and not negative, counts a row more than once, or not at all.

    average_precision, roc_auc, log_loss (in nats; predictions are clipped to 2.2e-16 from 0 and 1) and brier (mean squared
    error) agree with scikit-learn's. calibration_error is the mean of |share of positives − mean prediction| over 20 bins
    of equal mass, weighted by mass. precision_at_5pct takes, within each group, the 5 % of the rows with the highest
    predictions (rounded down, at least one row); of rows tied at the border each is taken in part, which is the mean
    over all ways to break the tie. lift_at_5pct divides it by the base rate. accuracy says yes from 0.5 on.

    What cannot be defined is NaN: ROC-AUC where all targets are equal, average precision and lift where all are 0.
    Raises `UserError` for a target that is not 0 or 1 and a prediction that is no probability.
    """
    return task_scores("binary", target, prediction, group, weight)


def bootstrap_scores(
    target: np.ndarray,
    prediction: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    kind: str = "binary",
    num_draws: int = 200,
    generator: np.random.Generator,
) -> dict[str, Interval]:
    """`task_scores`, each with its 95 % percentile interval from `num_draws` draws of whole clusters.

    cluster: shape (num_rows,), the product: its rows are alike, so they are drawn with replacement together. weight: shape
    (num_rows,), the same in each draw. Draws in which a metric is undefined are left out; with fewer than two clusters there
    is nothing to draw and both ends are NaN. Resampling adds noise to each bin's gap, which makes a calibration error larger
    in every draw. The draws of it are therefore shifted so that their median is the score, and the interval ends at 0.
    """
    (scores,), cluster, weight = _scores_of_draws(kind, target, [prediction], group, cluster, weight)
    found = intervals(list(METRICS[kind]), scores, cluster, num_draws, generator, weight, BIASED)
    return {name: of._replace(low=max(of.low, 0.0)) if name in BIASED else of for name, of in found.items()}


def bootstrap_difference(
    target: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    kind: str = "binary",
    num_draws: int = 200,
    generator: np.random.Generator,
) -> dict[str, Interval]:
    """Score of `first` minus score of `second`, with the 95 % interval of that difference: both see the same draws.

    Arguments as for `bootstrap_scores`, with two predictions for the same rows.
    """
    (ours, theirs), cluster, weight = _scores_of_draws(kind, target, [first, second], group, cluster, weight)

    def difference(weight: np.ndarray) -> np.ndarray:
        return ours(weight) - theirs(weight)

    return intervals(list(METRICS[kind]), difference, cluster, num_draws, generator, weight, BIASED)


def _scores_of_draws(
    kind: str,
    target: np.ndarray,
    predictions: list[np.ndarray],
    group: np.ndarray,
    cluster: np.ndarray,
    weight: np.ndarray | None,
) -> tuple[list[Callable[[np.ndarray], np.ndarray]], np.ndarray, np.ndarray | None]:
    """The scores of each prediction by the weights of what is drawn, and the cluster and weight of that: each row.

    Or each group of a ranking, where none has rows of two clusters or weights: millions of candidates are those of some
    thousand users.
    """
    if kind == "ranking":
        _, first, number = np.unique(group, return_index=True, return_inverse=True)
        of_group = np.asarray(cluster)[first]
        weight_of_group = None if weight is None else weight[first]
        is_whole = weight is None or np.array_equal(weight[first][number], weight)
        if is_whole and np.array_equal(of_group[number], cluster):
            scorers = [ranking.RankingScorer(target, one, group) for one in predictions]
            return [scorer.scores_of_groups for scorer in scorers], of_group, weight_of_group
    return [SCORERS[kind](target, one, group).scores for one in predictions], cluster, weight


def why_undefined(target: np.ndarray, kind: str = "binary") -> str | None:
    """One sentence for the report on the scores that are NaN, or None when every score is defined."""
    target = np.asarray(target)
    if kind == "binary" and not target.any():
        return "There is no positive among these rows, so average precision, ROC-AUC and lift are not defined."
    if kind == "binary" and target.all():
        return "There is no negative among these rows, so ROC-AUC is not defined."
    if kind == "regression" and target.min() == target.max():
        return "All these rows have the same target, so R² is not defined."
    if kind == "ranking" and not target.any():
        return "There is no relevant row in any group, so no score of an order is defined."
    return None


def what_is_left_out(target: np.ndarray, group: np.ndarray, kind: str) -> str | None:
    """One sentence on the groups of a ranking that are not scored, or None when all are."""
    if kind != "ranking" or not np.any(target):
        return None
    groups, scored = (len(np.unique(of)) for of in (group, group[np.asarray(target) > 0]))
    if scored == groups:
        return None
    return f"The scores are of the {scored:,} groups with a relevant row: {groups - scored:,} others have none."
