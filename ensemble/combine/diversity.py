"""What tells a user which member to drop: how alike members are, what each adds, how sure its weight is, where it fails.

What could decide on a member is measured on blend, never on test: a member dropped for its score on test would make the
ensemble's score there too good.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.combine.combination import fit_combinations
from ensemble.combine.fitting import Ensemble, inputs_of
from ensemble.metrics import binary_scores

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
) -> dict[str, Any]:
    """Error correlation, value and weight interval of each member, for JSON; arguments as for `combine.fit`.

    predictions: shape (num_rows, num_members), in the order of the ensemble's members. cluster: shape (num_rows,), the
    product, whose rows are drawn together. Nothing of it changes the ensemble.

    error_correlation is that of the members' scaled logits among rows of one outcome (of values: of their errors). without
    is by how much the scores of forecasts forward in time change when a member is left out and the rest fitted again.
    weights has the mean and the 5 % and 95 % quantiles of the weights on blends whose products are drawn again.
    """
    inputs = inputs_of(predictions, ensemble.member_names, ensemble.outputs)
    is_score = np.array(ensemble.outputs) == "score"
    every_member = np.arange(len(ensemble.member_names))
    kind = (ensemble.method, ensemble.calibrator)
    folds = selection.forward_folds(group, ensemble.num_folds)

    def scores(members: np.ndarray) -> dict[str, float]:
        def fit(rows: np.ndarray) -> dict[str, Any]:
            return {
                "": fit_combinations(ensemble.task, [kind], target[rows], inputs[rows][:, members], is_score[members])[kind]
            }

        forecast = selection.forward_forecasts(fit, inputs[:, members], folds)[""]
        return selection.scores(ensemble.task, target, forecast, group)

    with_all, without = scores(every_member), {}
    if len(every_member) > 1:
        for member, name in enumerate(ensemble.member_names):
            left = scores(np.delete(every_member, member))
            without[name] = {metric: left[metric] - with_all[metric] for metric in with_all}

    weights_of = FITTED if ensemble.method in NOT_FITTED else ensemble.method
    drawn = []
    for rows in _draws(cluster, generator):
        fitted = fit_combinations(ensemble.task, [(weights_of, ensemble.calibrator)], target[rows], inputs[rows], is_score)
        drawn += [combination.weights for combination in fitted.values()]
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    mean = np.mean(drawn, axis=0)
    return {
        "error_correlation": _error_correlation(ensemble, target, inputs),
        "without": without,
        "weights_of": weights_of,
        "weights": {
            name: {"mean": float(mean[member]), "low": float(low[member]), "high": float(high[member])}
            for member, name in enumerate(ensemble.member_names)
        },
    }


def by_part(
    target: np.ndarray, forecasts: dict[str, np.ndarray], group: np.ndarray, part: np.ndarray, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Rows, positives, log loss and average precision of each forecast in each part of test: a week, a category.

    target, group, part: shape (num_rows,); `part` counts from 0 and `names` has its words. A score that is not defined,
    because a part has no positive, is None.
    """
    found = {}
    for number in np.unique(part):
        rows = part == number
        scores = {name: binary_scores(target[rows], forecast[rows], group[rows]) for name, forecast in forecasts.items()}
        found[names[number]] = {
            "rows": int(rows.sum()),
            "positives": int(target[rows].sum()),
            **{
                metric: {name: of[metric] if np.isfinite(of[metric]) else None for name, of in scores.items()}
                for metric in ("log_loss", "average_precision")
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


def _draws(cluster: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    """Row numbers of `NUM_DRAWS` draws of whole clusters."""
    order = np.argsort(cluster, kind="stable")
    rows_of = np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1)
    return [
        np.concatenate([rows_of[drawn] for drawn in generator.integers(len(rows_of), size=len(rows_of))])
        for _ in range(NUM_DRAWS)
    ]


def _error_correlation(ensemble: Ensemble, target: np.ndarray, inputs: np.ndarray) -> dict[str, dict[str, float | None]]:
    scaled = np.stack([scale(column) for scale, column in zip(ensemble.combination.scales, inputs.T, strict=True)], axis=1)
    if ensemble.task == "regression":
        errors = scaled - target[:, None]
    else:
        errors = scaled.copy()
        for outcome in (0, 1):
            errors[target == outcome] -= scaled[target == outcome].mean(0)
    errors = errors - errors.mean(0)
    length = np.sqrt((errors**2).sum(0))
    names = ensemble.member_names
    return {
        one: {
            other: float(errors[:, i] @ errors[:, j] / (length[i] * length[j])) if length[i] * length[j] > 0 else None
            for j, other in enumerate(names)
        }
        for i, one in enumerate(names)
    }
