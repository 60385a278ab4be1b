"""What tells a user which member to drop: how alike members are, what each adds, how sure its weight is, where it fails.

What could decide on a member is measured on blend, never on test: a member dropped for its score on test would make the
ensemble's score there too good.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.combine.combination import fit_combinations
from ensemble.combine.fitting import Ensemble, counted_rows, inputs_of
from ensemble.combine.losses import log_softmax, mean_of
from ensemble.metrics import task_scores

NUM_DRAWS = 30  # of the weights' bootstrap: enough for the ends of a 90 % interval
FITTED = "greedy"  # whose weights are drawn again where the ensemble's own come from no fit
NOT_FITTED = ("equal", "rank_average")


def on_blend(
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
    """Error correlation, value and weight interval of each member, for JSON; arguments as for `combine.fit`.

    predictions: as for `combine.fit`, in the order of the ensemble's members. cluster: shape (num_rows,), the product, whose
    rows are drawn together. Nothing of it changes the ensemble.

    error_correlation is that of the members' errors on the scale where they are averaged: of values, or of logits, logs and
    scores among rows of one outcome. without is by how much the scores of forecasts of later blocks change when a member is
    left out and the rest fitted again. weights has the mean and the 5 % and 95 % quantiles of the weights on blends whose
    products are drawn again.
    """
    inputs = inputs_of(predictions, ensemble.member_names, ensemble.outputs)
    weight, counted = counted_rows(weight)
    target, inputs, group, cluster = target[counted], inputs[counted], group[counted], cluster[counted]
    is_score = np.array(ensemble.outputs) == "score"
    every_member = np.arange(len(ensemble.member_names))
    kind, way = ensemble.kind, (ensemble.method, ensemble.calibrator)
    folds = selection.folds_of(group, ensemble.num_folds, is_forward)

    def of(rows: np.ndarray) -> np.ndarray | None:
        return None if weight is None else weight[rows]

    def scores(members: np.ndarray) -> dict[str, float]:
        def fit(rows: np.ndarray) -> dict[str, Any]:
            of_members = inputs[rows][:, members], is_score[members]
            return {"": fit_combinations(kind, [way], target[rows], *of_members, group[rows], of(rows))[way]}

        forecast = selection.forward_forecasts(fit, inputs[:, members], folds, group)[""]
        return selection.scores(kind, target, forecast, group, weight)

    with_all, without = scores(every_member), {}
    if len(every_member) > 1:
        for member, name in enumerate(ensemble.member_names):
            left = scores(np.delete(every_member, member))
            without[name] = {metric: left[metric] - with_all[metric] for metric in with_all}

    weights_of = FITTED if ensemble.method in NOT_FITTED else ensemble.method
    drawn = []
    for rows, drawn_group in _draws(cluster, group, generator, num_draws):
        ways = [(weights_of, ensemble.calibrator)]
        fitted = fit_combinations(kind, ways, target[rows], inputs[rows], is_score, drawn_group, of(rows))
        drawn += [combination.weights for combination in fitted.values()]
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    mean = np.mean(drawn, axis=0)
    return {
        "error_correlation": _error_correlation(ensemble, target, inputs, group, weight),
        "without": without,
        "weights_of": weights_of,
        "weights": {
            name: {"mean": float(mean[member]), "low": float(low[member]), "high": float(high[member])}
            for member, name in enumerate(ensemble.member_names)
        },
    }


def by_part(
    kind: str,
    target: np.ndarray,
    forecasts: dict[str, np.ndarray],
    group: np.ndarray,
    part: np.ndarray,
    names: Sequence[str],
    weight: np.ndarray | None = None,
) -> dict[str, dict[str, Any]]:
    """Rows and scores, those that `selection.SHOWN` names, of each forecast in each part of test: a week, a category.

    target, group, part: shape (num_rows,); `part` counts from 0 and `names` has its words. Of a binary task the positives
    are counted too. A score that is not defined, because a part has no positive, is None.
    """
    found = {}
    for number in np.unique(part):
        rows = part == number
        its = None if weight is None else weight[rows]
        scores = {name: task_scores(kind, target[rows], of[rows], group[rows], its) for name, of in forecasts.items()}
        found[names[number]] = {
            "rows": int(rows.sum()),
            **({"positives": int(target[rows].sum())} if kind == "binary" else {}),
            **{
                metric: {name: of[metric] if np.isfinite(of[metric]) else None for name, of in scores.items()}
                for metric in selection.SHOWN[kind]
            },
        }
    return found


def drift(weeks: dict[str, dict[str, Any]], metric: str) -> dict[str, dict[str, float | None]]:
    """The slope of each forecast's weekly score, per week, and its standard error; both None with fewer than three weeks.

    `weeks` is `by_part` of weeks, in their order and without gaps.
    """
    from scipy.stats import linregress

    found: dict[str, dict[str, float | None]] = {}
    for name in next(iter(weeks.values()))[metric]:
        points = [(number, of[metric][name]) for number, of in enumerate(weeks.values()) if of[metric][name] is not None]
        if len(points) < 3:
            found[name] = {"slope": None, "standard_error": None}
            continue
        line = linregress(*np.transpose(points))
        found[name] = {"slope": float(line.slope), "standard_error": float(line.stderr)}
    return found


def _draws(
    cluster: np.ndarray, group: np.ndarray, generator: np.random.Generator, num_draws: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers of `num_draws` draws of whole clusters, and the groups of these rows.

    Where each group is within one cluster, one that is drawn twice is two groups: two users, not one with all items twice.
    """
    order = np.argsort(cluster, kind="stable")
    rows_of = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    groups, number = np.unique(group, return_inverse=True)
    one_cluster = np.empty(len(groups), cluster.dtype)
    one_cluster[number] = cluster
    is_whole = bool((one_cluster[number] == cluster).all())
    for _ in range(num_draws):
        drawn = [rows_of[one] for one in generator.integers(len(rows_of), size=len(rows_of))]
        rows = np.concatenate(drawn)
        time = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        yield rows, number[rows] + (time * len(groups) if is_whole else 0)


def _error_correlation(
    ensemble: Ensemble, target: np.ndarray, inputs: np.ndarray, group: np.ndarray, weight: np.ndarray | None
) -> dict[str, dict[str, float | None]]:
    combination = ensemble.combination
    if combination.space == "probability":
        combination = dataclasses.replace(combination, space="logit")
    errors = combination.averaged_of(inputs, group)
    if ensemble.kind == "regression":
        errors = errors - target[:, None]
    else:
        if ensemble.kind == "multiclass":
            errors = np.stack([log_softmax(errors[..., member]) for member in range(errors.shape[-1])], axis=-1)
        for outcome in np.unique(target):
            rows = target == outcome
            errors[rows] -= mean_of(errors[rows].reshape(rows.sum(), -1), None if weight is None else weight[rows]).reshape(
                errors.shape[1:]
            )
    each = None if weight is None else np.repeat(weight, errors[0].size // errors.shape[-1])
    errors = errors.reshape(-1, errors.shape[-1])
    errors = errors - mean_of(errors, each)
    if each is not None:
        errors = errors * np.sqrt(each)[:, None]
    length = np.sqrt((errors**2).sum(0))
    names = ensemble.member_names
    return {
        one: {
            other: float(errors[:, i] @ errors[:, j] / (length[i] * length[j])) if length[i] * length[j] > 0 else None
            for j, other in enumerate(names)
        }
        for i, one in enumerate(names)
    }
