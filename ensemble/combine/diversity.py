"""How much each member contributes to an ensemble, and scores by part of the test split.

`measure` uses blend, never test: if a member were dropped because of its contribution on test, the ensemble's score on test
would be biased.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.combine.combination import Rows, fit_combinations, scaled_to
from ensemble.combine.fitting import Ensemble, counted_rows, member_inputs
from ensemble.combine.losses import log_softmax
from ensemble.metrics import REPORTED_METRICS, task_scores
from ensemble.metrics.weighting import weight_of, weighted_mean

NUM_DRAWS = 30  # bootstrap draws of the weights, enough for the bounds of a 90 % interval
ROUNDING = 1e-12  # relative differences of scores below this are rounding, such as that of a sum with one more 0
NOT_FITTED = ("equal", "rank_average")  # combiners with fixed weights; for them, the draws fit greedy weights instead


def measure(
    ensemble: Ensemble,
    target: np.ndarray,
    predictions: np.ndarray,
    group: np.ndarray,
    cluster: np.ndarray,
    generator: np.random.Generator,
    weight: np.ndarray | None = None,
    is_forward: bool = True,
    num_draws: int = NUM_DRAWS,
) -> dict[str, Any]:
    """Error correlations, the change of the scores without each member, and intervals of the weights, for JSON.

    predictions : as for `combine.fit`, in the order of the ensemble's members. cluster : (num_rows,); rows with the same
    value, such as a product, are drawn together. num_draws : draws of the weights. target, group, weight and is_forward are
    the arguments of `combine.fit`.

    `error_correlation` is the correlation of the members' errors on the scale on which they are averaged. The error of a
    value is its difference from the target. The error of a logit, log probability or score is its difference from the mean
    over the rows with the same target. `without` is the change of the cross-fitted scores if a member is left out and the
    others are fitted again; it is empty for a single member. `weights` contains the mean and the 5 % and 95 % quantiles of
    the weights that the combiner `weights_of` fits to bootstrap draws of clusters.
    """
    inputs = member_inputs(predictions, ensemble.member_names, ensemble.outputs)
    weight, counted = counted_rows(weight)
    target, inputs, group, cluster = target[counted], inputs[counted], group[counted], cluster[counted]
    every_member = np.arange(len(ensemble.member_names))
    folds = selection.folds_of(group, ensemble.num_folds, is_forward)
    is_score, is_relative = np.array(ensemble.outputs) == "score", ensemble.combination.share > 0
    blend = Rows(ensemble.kind, ensemble.loss, target, inputs, is_score, group, weight, is_relative)

    def scores(members: np.ndarray) -> dict[str, float]:
        part = blend._replace(inputs=inputs[:, members], is_score=blend.is_score[members])
        predictions = selection.cross_fitted_predictions(part, [ensemble.method], [ensemble.calibrator], folds)
        return selection.scores(part, predictions[ensemble.method, ensemble.calibrator])

    with_all, without = scores(every_member), {}
    if len(every_member) > 1:
        for member, name in enumerate(ensemble.member_names):
            remaining = scores(np.delete(every_member, member))
            without[name] = {
                metric: 0.0 if math.isclose(score, with_all[metric], rel_tol=ROUNDING) else score - with_all[metric]
                for metric, score in remaining.items()
            }

    method = "greedy" if ensemble.method in NOT_FITTED else ensemble.method
    drawn_weights = []
    for rows, group_of_row in draws_of_clusters(cluster, group, generator, num_draws):
        drawn = blend.at(rows)._replace(group=group_of_row)
        drawn_weights.append(fit_combinations(drawn, [method], [ensemble.calibrator])[method, ensemble.calibrator].weights)
    mean_and_ends = np.stack([np.mean(drawn_weights, axis=0), *np.quantile(drawn_weights, [0.05, 0.95], axis=0)], axis=1)
    return {
        "error_correlation": _error_correlation(ensemble, blend),
        "without": without,
        "weights_of": method,
        "weights": {
            name: dict(zip(("mean", "low", "high"), values, strict=True))
            for name, values in zip(ensemble.member_names, mean_and_ends.tolist(), strict=True)
        },
    }


def scores_by_part(
    kind: str,
    target: np.ndarray,
    predictions: dict[str, np.ndarray],
    group: np.ndarray,
    part: np.ndarray,
    names: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """The number of rows and the `REPORTED_METRICS` of each prediction in each part of test, such as a week.

    target, group, part : (num_rows,). predictions : by member. `part` is the number of a row's part, and `names`
    are the names of the parts. For a binary task the positives are counted too. A score that is not defined, as in a part
    without positives, is None.
    """
    result = {}
    for number in np.unique(part):
        rows = part == number
        scores = {name: task_scores(kind, target[rows], values[rows], group[rows]) for name, values in predictions.items()}
        result[names[number]] = {
            "rows": int(rows.sum()),
            **({"positives": int(target[rows].sum())} if kind == "binary" else {}),
            **{
                metric: {
                    name: by_metric[metric] if np.isfinite(by_metric[metric]) else None for name, by_metric in scores.items()
                }
                for metric in REPORTED_METRICS[kind]
            },
        }
    return result


def drift(weeks: dict[str, dict[str, Any]], metric: str) -> dict[str, dict[str, float | None]]:
    """The slope per week of each prediction's weekly score, and its standard error; None with fewer than three scores.

    weeks : the result of `scores_by_part`, by the number of the week as text.
    """
    from scipy.stats import linregress

    slopes: dict[str, dict[str, float | None]] = {}
    for name in next(iter(weeks.values()))[metric]:
        values = {int(week): scores[metric][name] for week, scores in weeks.items()}
        points = [(week, value) for week, value in values.items() if value is not None]
        slopes[name] = {"slope": None, "standard_error": None}
        if len(points) >= 3:
            line = linregress(*np.transpose(points))
            slopes[name] = {"slope": float(line.slope), "standard_error": float(line.stderr)}
    return slopes


def draws_of_clusters(
    cluster: np.ndarray, group: np.ndarray, generator: np.random.Generator, num_draws: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each of `num_draws` draws of whole clusters, the row numbers, and the number of the group of each of these rows.

    If each group is within one cluster, the groups of a cluster that is drawn twice are counted as different groups.
    """
    order = np.argsort(cluster, kind="stable")
    sizes = np.unique(cluster, return_counts=True)[1]
    starts = np.cumsum(sizes) - sizes
    groups, number = np.unique(group, return_inverse=True)
    cluster_of_group = np.empty(len(groups), cluster.dtype)
    cluster_of_group[number] = cluster
    is_whole = bool((cluster_of_group[number] == cluster).all())
    for _ in range(num_draws):
        drawn = generator.integers(len(sizes), size=len(sizes))
        draw = np.repeat(np.arange(len(drawn)), sizes[drawn])
        before = np.cumsum(sizes[drawn]) - sizes[drawn]
        rows = order[(starts[drawn] - before)[draw] + np.arange(len(draw))]
        yield rows, number[rows] + (draw * len(groups) if is_whole else 0)


def _error_correlation(ensemble: Ensemble, blend: Rows) -> dict[str, dict[str, float | None]]:
    target, weight = blend.target, blend.weight
    space = "logit" if ensemble.combination.space == "probability" else ensemble.combination.space
    errors = scaled_to(space, ensemble.combination.scales, blend.inputs, blend.group, ensemble.combination.share)
    if ensemble.kind == "regression":
        errors = errors - target[:, None]
    else:
        if ensemble.kind == "multiclass":
            errors = np.stack([log_softmax(errors[..., member]) for member in range(errors.shape[-1])], axis=-1)
        for outcome in np.unique(target):
            rows = target == outcome
            part = errors[rows]
            errors[rows] = _centred(part.reshape(len(part), -1), weight_of(weight, rows)).reshape(part.shape)
    error_weight = None if weight is None else np.repeat(weight, errors[0].size // errors.shape[-1])
    errors = _centred(errors.reshape(-1, errors.shape[-1]), error_weight)
    if error_weight is not None:
        errors = errors * np.sqrt(error_weight)[:, None]
    norm = np.sqrt((errors**2).sum(0))
    names = ensemble.member_names
    return {
        first: {
            second: float(errors[:, i] @ errors[:, j] / (norm[i] * norm[j])) if norm[i] * norm[j] > 0 else None
            for j, second in enumerate(names)
        }
        for i, first in enumerate(names)
    }


def _centred(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """The values minus the mean of their column, (num_rows, num_columns); exactly 0 in a column of equal values."""
    mean = weighted_mean(values, weight)
    return values - np.clip(mean, values.min(0), values.max(0))  # the mean of equal values may be rounded
