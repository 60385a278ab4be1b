"""The scores of an ensemble, its members and the baselines, with intervals, as in scores.json; and warnings."""

import dataclasses
from typing import Any

import numpy as np

from ensemble import combine, metrics
from ensemble.combine.fitting import counted_rows
from ensemble.data.cross_validation import CrossValidation
from ensemble.metrics.weighting import weight_of, weighted_mean
from ensemble.predictions import Predictions
from ensemble.predictor import intervals
from ensemble.task import Task

ENSEMBLE = "ensemble"
"""Name of the ensemble among the members."""
BASE_RATE = "base rate"
"""Name of the prediction that is the same for every row: the base rate (see the glossary) of the rows on which weights are
fitted."""
PERFECT = 0.9999
"""A member with at least this score is suspected to have learned from a leak."""
PERFECT_BY = {"binary": "roc_auc", "multiclass": "accuracy", "regression": "r_squared", "ranking": "ndcg_at_10"}
"""By kind of task, the metric that is compared with `PERFECT`; the best value of each is 1."""

FEW = 10
"""With fewer clusters that have positives, or negatives, the intervals of scores are clearly too narrow. Of 150 generated
tables, 95 % intervals of the ROC-AUC contained the true value in 47 % with 2 positives, 85 % with 5, and 91 % with 15."""
LEAST_SLICES = 5
"""With fewer slices of time, the bootstrap draws single rows."""


def with_clusters(manifest: dict[str, Any], rows: Predictions) -> Predictions:
    """The rows with the clusters that the bootstrap draws. For rows in time without clusters these are slices of time, which
    are the groups of the rows.

    Errors of neighbours in time are alike, so intervals by draws of single rows would be too narrow.
    """
    cv = CrossValidation.from_manifest(manifest)
    are_single = len(np.unique(rows.cluster)) == len(rows.cluster)
    if cv is None or cv.scheme != "forward" or not are_single or len(np.unique(rows.group)) < LEAST_SLICES:
        return rows
    return dataclasses.replace(rows, cluster=rows.group)


def intervals_of(
    kind: str,
    fit_rows: Predictions,
    cross_fitted: np.ndarray,
    test: Predictions | None,
    combined: np.ndarray,
    is_forward: bool,
) -> tuple[dict[str, Any] | None, intervals.Intervals | None]:
    """The coverage of the prediction intervals of a regression, and the intervals; (None, None) for other tasks, and without
    cross-fitted predictions.

    The intervals are fitted on cross-fitted predictions of `fit_rows`, on which weights are fitted. The coverage is measured
    on the rows `test`, which took no part in the fit, with the ensemble's predictions `combined`. If `test` is None,
    the coverage is cross-fitted too, and None if the rows have only one group.
    """
    is_predicted = np.isfinite(cross_fitted) if kind == "regression" else np.zeros(0, bool)
    if not is_predicted.any():
        return None, None
    columns = fit_rows.target, cross_fitted, fit_rows.group, fit_rows.cluster
    weight, counted = counted_rows(weight_of(fit_rows.weight, is_predicted))
    target, prediction, group, cluster = (column[is_predicted][counted] for column in columns)
    fitted = intervals.fit(target, prediction, weight, cluster, group if is_forward else None)
    if test is None:
        return intervals.cross_fitted(target, prediction, group, is_forward, weight, cluster), fitted
    weight, counted = counted_rows(test.weight)
    return intervals.coverage(*fitted(combined[counted]), test.target[counted], weight), fitted


def score(
    task: Task, test: Predictions, candidates: dict[str, np.ndarray], member_names: list[str], num_draws: int, seed: int
) -> dict[str, Any]:
    """Scores with bootstrap intervals, and the gain of the ensemble over the best member; most of scores.json.

    candidates : by name, the predictions that are scored, of the ensemble, the members and the baselines, for the rows of
    `test`: (num_rows,) or (num_rows, num_classes). Rows of weight 0 are left out.
    """
    weight, counted = counted_rows(test.weight)
    candidates = {name: candidate[counted] for name, candidate in candidates.items()}
    target, group, cluster = (column[counted] for column in (test.target, test.group, test.cluster))

    def bootstrap(prediction: np.ndarray) -> metrics.Draws:
        options: Any = {"weight": weight, "kind": task.kind, "num_draws": num_draws}
        return metrics.bootstrap_draws(target, prediction, group, cluster, **options, generator=np.random.default_rng(seed))

    draws = {name: bootstrap(candidate) for name, candidate in candidates.items()}
    scores = {name: metrics.score_intervals(task.kind, drawn) for name, drawn in draws.items()}
    sign = 1 if metrics.METRIC_FUNCTIONS[task.metric].higher_is_better else -1
    best = max(member_names, key=lambda name: sign * scores[name][task.metric].value)
    gain = metrics.score_intervals(task.kind, draws[ENSEMBLE].minus(draws[best]), is_difference=True)
    return {
        "kind": task.kind,
        "metric": task.metric,
        "metrics": {name: metric._asdict() for name, metric in metrics.METRICS[task.kind].items()},
        "rows": len(target),
        "weighted": weight is not None,
        "clusters": len(np.unique(cluster)),
        "groups": len(np.unique(group)),
        "base_rate": float(weighted_mean(target, weight)) if task.kind == "binary" else None,
        "undefined": metrics.why_undefined(target, task.kind),
        "left_out": metrics.groups_left_out(target, group, task.kind),
        "num_draws": num_draws,
        "members": member_names,
        "scores": {name: _as_json(by_metric) for name, by_metric in scores.items()},
        "best_member": best,
        "gain_over_best_member": _as_json(gain),
    }


def _as_json(by_metric: dict[str, metrics.Interval]) -> dict[str, dict[str, float | None]]:
    return {metric: interval.as_json() for metric, interval in by_metric.items()}


def warnings_of_leaks(task: Task, fit_rows: Predictions, predictions: dict[str, np.ndarray]) -> list[str]:
    """A warning for each member whose score on `fit_rows` is `PERFECT` or higher. predictions : by name of the member.

    The usual cause is a feature that contains the target, or rows of `fit_rows` among the training rows. There is no warning
    if the base rate is nearly as good: if its distance from 1 is not ten times as large.
    """
    metric = PERFECT_BY[task.kind]
    weight, counted = counted_rows(fit_rows.weight)
    target, group = fit_rows.target[counted], fit_rows.group[counted]

    def score_of(prediction: np.ndarray) -> float:
        if metric == "r_squared":
            return metrics.task_scores(task.kind, target, prediction, group, weight)[metric]
        return metrics.METRIC_FUNCTIONS[metric].function(target, prediction, group, weight)

    base_rate = combine.base_rate_prediction(target, len(target), task.loss, len(task.classes), weight)
    warnings = []
    for name, prediction in predictions.items():
        score = score_of(prediction[counted])
        if score >= PERFECT and 1 - score < 0.1 * (1 - score_of(base_rate)):
            warnings.append(
                f"member {name} is right on nearly all rows of {fit_rows.split} ({metric} {score:.6f}): look for a feature "
                "that contains the target, or for rows of that split among its training rows"
            )
    return warnings


def warnings_of_few(task: Task, rows: Predictions) -> list[str]:
    """A warning if fewer than `FEW` clusters of the scored rows have positives, or fewer have negatives."""
    counted = counted_rows(rows.weight)[1]
    target, cluster = rows.target[counted], rows.cluster[counted]
    if task.kind != "binary":
        return []
    outcomes, total = enumerate(("negative", "positive")), len(np.unique(cluster))
    number, outcome = min((len(np.unique(cluster[target == value])), name) for value, name in outcomes)
    if not 0 < number < FEW or total < 2:
        return []
    place = f"only {number} of the {total:,} scored rows {'is' if number == 1 else 'are'} {outcome}"
    if total < len(target):
        place = f"the {outcome} rows are in only {number} of the {total:,} clusters that the bootstrap draws"
    return [f"{place}: the intervals of the scores are too narrow"]
