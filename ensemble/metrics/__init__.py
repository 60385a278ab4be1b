"""Metrics of predictions for each kind of task, with bootstrap intervals.

    scores = task_scores("binary", target, prediction, group)                              # {"average_precision": 0.41, …}
    draws = bootstrap_draws(target, prediction, group, cluster, kind="ranking", generator=rng)
    intervals = score_intervals("ranking", draws)
    gains = score_intervals("ranking", draws.minus(other_draws), is_difference=True)        # over another prediction
    METRIC_FUNCTIONS["ndcg_at_10"].function(target, prediction, group)                     # one metric, for early stopping

Rows may have weights: a weight of 2 gives exactly the scores of a table with that row twice (for groups, see ranking.py).
The bootstrap uses this: it sorts once, draws weights, and copies no row. Rows with equal predictions are treated as one
block, so no score depends on the order of the rows. If all weights are multiplied by a constant, only these scores change:
precision and lift in the top 5 %, and in a ranking the scores of groups whose rows have different weights.
`weighting.relative_weights` gives the weights a fixed unit.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ensemble.metrics import binary, multiclass, ranking, regression
from ensemble.metrics.binary import average_precision
from ensemble.metrics.bootstrap import Draws, Interval, Scorer, draws_of, intervals


class Metric(NamedTuple):
    """A metric of the report; `higher_is_better` is None if the metric is only shown for reference."""

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
        "accuracy_always_no": Metric("Accuracy of always predicting 0", None),
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
"""By kind of task, the metrics by name, in the order of the scores that the scorer of the kind returns."""
REPORTED_METRICS = {
    "binary": ("log_loss", "average_precision"),
    "multiclass": ("multiclass_log_loss", "accuracy"),
    "regression": ("root_mean_squared_error", "mean_absolute_error"),
    "ranking": ("ndcg_at_10", "mean_reciprocal_rank"),
}
"""By kind of task, the metrics that are reported for each combiner and calibrator, and for each part of the data."""
BIASED = ("calibration_error",)
"""Metrics that are systematically larger in bootstrap draws than on the rows themselves."""
UNDEFINED_WITHOUT = {1: ("average_precision", "roc_auc", "lift_at_5pct"), 0: ("roc_auc",)}
"""By value of a binary target, the metrics that are undefined in a draw without such rows."""

SCORERS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Scorer]] = {
    "binary": binary.BinaryScorer,
    "multiclass": multiclass.MulticlassScorer,
    "regression": regression.RegressionScorer,
    "ranking": ranking.RankingScorer,
}


class MetricFunction(NamedTuple):
    """A metric of one prediction, for early stopping, the leaderboard and the report."""

    function: Callable[..., float]
    """Called with target, prediction, group and optionally weight: (num_rows,) each, but prediction (num_rows, num_classes)
    in a multiclass task."""
    higher_is_better: bool
    kinds: tuple[str, ...]
    """The kinds of task for which it is defined."""


def _ignoring_group(function: Callable[[np.ndarray, np.ndarray, np.ndarray | None], float]) -> Callable[..., float]:
    """The function with an additional argument `group` that it does not use."""
    return lambda target, prediction, group, weight=None: function(target, prediction, weight)


def _accuracy(target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None) -> float:
    return (binary if np.ndim(prediction) == 1 else multiclass).accuracy(target, prediction, weight)


METRIC_FUNCTIONS: dict[str, MetricFunction] = {
    "average_precision": MetricFunction(_ignoring_group(average_precision), True, ("binary",)),
    "roc_auc": MetricFunction(_ignoring_group(binary.roc_auc), True, ("binary",)),
    "log_loss": MetricFunction(_ignoring_group(binary.log_loss), False, ("binary",)),
    "multiclass_log_loss": MetricFunction(_ignoring_group(multiclass.log_loss), False, ("multiclass",)),
    "accuracy": MetricFunction(_accuracy, True, ("binary", "multiclass")),
    "root_mean_squared_error": MetricFunction(_ignoring_group(regression.root_mean_squared_error), False, ("regression",)),
    "mean_absolute_error": MetricFunction(_ignoring_group(regression.mean_absolute_error), False, ("regression",)),
    "ndcg_at_10": MetricFunction(ranking.ndcg_at_10, True, ("ranking",)),
}


def task_scores(
    kind: str, target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Every metric of `METRICS[kind]`. An undefined score is NaN (see `why_undefined`).

    target, group : (num_rows,). prediction : (num_rows,), or (num_rows, num_classes) for a multiclass task. weight :
    (num_rows,), not negative, how many times each row counts. Metrics that scikit-learn has too give equal scores, with
    three exceptions: NDCG, whose gains are linear there; rows with several likeliest classes, since scikit-learn takes one
    label for each row; and undefined scores. Raises `UserError` for invalid targets and predictions.

    binary: log_loss is in nats, with predictions clipped to [2.2e-16, 1 - 2.2e-16]; brier is the mean squared error.
    calibration_error is the mean of |share of positives − mean prediction| over 20 bins of about equal weight, weighted by
    their weight. precision_at_5pct is the precision of the 5 % of the rows of each group with the highest predictions
    (rounded down, at least one row); equal predictions at the border count in part, which is the mean over all ways to break
    the tie. lift_at_5pct divides it by the base rate. accuracy has the threshold 0.5.

    multiclass: multiclass_log_loss in nats, accuracy, balanced_accuracy (mean recall of the classes in the target) and
    macro_f1 (mean over the classes in target or predictions) of the likeliest class, where equally likely classes share the
    row; brier is the mean over rows of the sum over classes of squared errors, from 0 to 2. regression: both errors and
    mean_error (prediction − target) in the target's unit; r_squared is 1 − squared error / variance, NaN for a constant
    target. ranking: NDCG with gains of 2^relevance − 1 and the discount log2, mean_reciprocal_rank of the first relevant
    row, and recall_at_10, the share of a group's relevant rows in its first 10 places; groups without a relevant row are
    left out.
    """
    weight = np.ones(len(target)) if weight is None else np.asarray(weight, float)
    assert weight.shape == np.shape(target)
    scores = SCORERS[kind](target, prediction, group).scores(weight)
    return dict(zip(METRICS[kind], scores.tolist(), strict=True))


binary_scores = functools.partial(task_scores, "binary")
"""`task_scores` of probabilities of a target of 0 and 1."""


def bootstrap_draws(
    target: np.ndarray,
    prediction: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    kind: str = "binary",
    num_draws: int = 200,
    generator: np.random.Generator,
) -> Draws:
    """`task_scores`, and those of `num_draws` bootstrap draws of whole clusters. Equal generators give equal draws.

    cluster : (num_rows,), such as the product, whose rows depend on each other and are drawn together. weight : (num_rows,);
    in each draw it is multiplied by the number of times that the cluster of the row was drawn. The scores of a draw are
    computed from the weights of the rows. If each group is within one cluster, a group that is drawn twice is two groups.
    In such a ranking each group is scored once and only the groups are weighted: some thousand users instead of millions of
    candidates.
    """
    _, first_row, group_number = np.unique(group, return_index=True, return_inverse=True)
    cluster_of_group = np.asarray(cluster)[first_row]
    is_whole = np.array_equal(cluster_of_group[group_number], cluster)  # whether each group is within one cluster
    row_weight = np.ones(len(target)) if weight is None else weight
    if kind == "ranking" and is_whole:
        by_group, weight_of_group = ranking.RankingScorer(target, prediction, group).by_group(row_weight)
        score_groups = functools.partial(ranking.mean_scores, by_group)
        return draws_of(score_groups, cluster_of_group, num_draws, generator, weight_of_group)
    scores: Callable[..., np.ndarray] = SCORERS[kind](target, prediction, group).scores
    if kind == "binary" and is_whole:
        scores = functools.partial(scores, weight_before_draw=row_weight)
    draws = draws_of(scores, cluster, num_draws, generator, weight)
    for value, names in UNDEFINED_WITHOUT.items() if kind == "binary" else ():
        if len(np.unique(np.asarray(cluster)[(np.asarray(target) == value) & (row_weight > 0)])) == 1:
            draws.drawn[:, [list(METRICS[kind]).index(name) for name in names]] = np.nan
    return draws


def score_intervals(kind: str, draws: Draws, is_difference: bool = False) -> dict[str, Interval]:
    """Each score of `bootstrap_draws`, or its difference between two predictions, with its 95 % percentile interval.

    Draws in which a metric is undefined are left out. With fewer than two clusters both ends are NaN, and also for
    `UNDEFINED_WITHOUT` if one cluster has all positives: all draws that are left have this cluster, so they do not show how
    much the score depends on it. The calibration error is larger in almost every draw, since resampling adds noise to each
    bin. So its draws are shifted until their median is the score, and the interval of the score, unlike that of a
    difference, does not extend below 0. The interval of a score contains it: R² of the mean of the rows is 0, and below 0 in
    every draw.
    """
    result = intervals(METRICS[kind], draws, BIASED)
    if is_difference:
        return result
    for name, (value, low, high) in result.items():
        low = max(low, 0.0) if name in BIASED else low
        result[name] = Interval(value, min(low, value), max(high, value))  # NaN remains, since it is the first argument
    return result


def why_undefined(target: np.ndarray, kind: str = "binary") -> str | None:
    """A sentence for the report about scores that are NaN; None if every score is defined."""
    target = np.asarray(target)
    if kind == "binary" and not target.any():
        return "There is no positive among these rows, so average precision, ROC-AUC and lift are not defined."
    if kind == "binary" and target.all():
        return "There is no negative among these rows, so ROC-AUC is not defined."
    if kind == "regression" and target.min() == target.max():
        return "All these rows have the same target, so R² is not defined."
    if kind == "ranking" and not target.any():
        return "There is no relevant row in any group, so no ranking score is defined."
    return None


def groups_left_out(target: np.ndarray, group: np.ndarray, kind: str) -> str | None:
    """A sentence about groups of a ranking that are not scored; None if all groups are scored, if none is scored (see
    `why_undefined`), and for other kinds of task."""
    if kind != "ranking" or not np.any(target):
        return None
    num_scored = len(np.unique(group[np.asarray(target) > 0]))
    num_groups = len(np.unique(group))
    sentence = f"Only groups with a relevant row are scored: {num_scored:,} of {num_groups:,}."
    return sentence if num_scored < num_groups else None
