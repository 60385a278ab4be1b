"""The choice between methods of combination (a combiner with a calibrator), block by block within blend.

The groups of blend are cut into blocks. Each block but the first is predicted by combinations that were fitted to the blocks
before it, and the methods are compared by these predictions. So no method is scored on rows to which it was fitted. If
groups are weeks, or anything else that grows with time, the rows of a score are later than the rows of the fit. (The labels
of neighbouring weeks overlap in time, so these scores are a little too good, to the same extent for every method.) If groups
have no order, each block is predicted by combinations that were fitted to all other blocks.

The log loss decides in a binary task, although average precision is reported too: every row counts in the log loss, not only
the few hundred positives. NDCG@10 decides in a ranking.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ensemble.combine.combination import Rows, fit_combinations, to_predictions
from ensemble.combine.losses import task_loss
from ensemble.metrics import REPORTED_METRICS, task_scores
from ensemble.metrics.weighting import weight_of

Fold = tuple[np.ndarray, np.ndarray]
"""Two masks over the rows: those to fit, and the block to predict."""
AUTO = "auto"
MARGIN = 0.5
"""Standard errors by which the best method must beat the default. On nine datasets, margins of 0, 0.5 and 1 gave test scores
0.0050, 0.0054 and 0.0050 above the best member's; as 0.5 was chosen by these scores, they are no unbiased test of it."""


def folds_of(group: np.ndarray, num_folds: int, is_forward: bool) -> list[Fold]:
    """At most `num_folds` blocks of groups, each with all other rows, or if `is_forward` with all rows before it.

    group : (num_rows,), with at least two different values.
    """
    groups = np.unique(group)
    blocks = np.array_split(groups, min(num_folds + is_forward, len(groups)))
    if is_forward:
        return [(group < block[0], np.isin(group, block)) for block in blocks[1:]]
    return [(~np.isin(group, block), np.isin(group, block)) for block in blocks]


def cross_fitted_predictions(
    rows: Rows, combiners: Sequence[str], calibrators: Sequence[str], folds: Iterable[Fold]
) -> dict[tuple[str, str], np.ndarray]:
    """For each method of `fit_combinations` the combined values of the rows, with the shapes of `Combination`.

    Each block is predicted by a combination that was fitted to the other rows of its fold. Rows that are in no block, such
    as those of the earliest groups if the folds are forward in time, are NaN.
    """
    combined: dict[tuple[str, str], np.ndarray] = {}
    shape = rows.inputs.shape[:1] + rows.inputs.shape[2:]
    for fitted, held_out in folds:
        for names, combination in fit_combinations(rows.at(fitted), combiners, calibrators).items():
            values = combination(rows.inputs[held_out], rows.group[held_out])
            combined.setdefault(names, np.full(shape, np.nan))[held_out] = values
    return combined


def losses_by_fold(rows: Rows, combined: dict[str, np.ndarray], folds: Sequence[Fold]) -> dict[str, np.ndarray]:
    """For each method the mean loss of each held-out block, (num_folds,). combined : the combined values, by method."""
    losses = {name: np.empty(len(folds)) for name in combined}
    for number, (_, held_out) in enumerate(folds):
        target = rows.target[held_out]
        loss = task_loss(rows.loss, target, rows.group[held_out], weight_of(rows.weight, held_out))
        for name, values in combined.items():
            losses[name][number] = loss.mean(target, values[held_out])
    return losses


def choose(losses: dict[str, np.ndarray], default: str) -> str:
    """The method with the lowest mean loss if it beats the default by `MARGIN` standard errors, otherwise the default.

    losses : (num_folds,) for each method. The standard error is that over the blocks; with one block there is none, so the
    default is chosen.
    """
    best = min(losses, key=lambda name: losses[name].sum())
    gain = losses[default] - losses[best]
    gain = gain / (np.abs(gain).max(initial=0.0) or 1.0)  # so that no square overflows
    if len(gain) < 2:
        return default
    return best if gain.mean() > MARGIN * gain.std(ddof=1) / np.sqrt(len(gain)) else default


def auto_predictions(combined: dict[str, np.ndarray], chosen: list[str], folds: list[Fold]) -> np.ndarray:
    """The combined values of the automatic choice. chosen : the method of each block, from `chosen_by_fold`."""
    result = np.full_like(next(iter(combined.values())), np.nan)
    for (_, held_out), method in zip(folds, chosen, strict=True):
        result[held_out] = combined[method][held_out]
    return result


def chosen_by_fold(losses: dict[str, np.ndarray], default: str, is_forward: bool) -> list[str]:
    """For each block, the method chosen by the losses of the blocks before it, or of all others if not `is_forward`."""
    numbers = np.arange(len(losses[default]))
    return [
        choose({name: loss[numbers < number if is_forward else numbers != number] for name, loss in losses.items()}, default)
        for number in numbers
    ]


def scores(rows: Rows, combined: np.ndarray) -> dict[str, float]:
    """Those of the `REPORTED_METRICS` that are defined for the rows with a combined value."""
    is_predicted = np.isfinite(combined.reshape(len(combined), -1)).all(1)
    prediction, weight = to_predictions(rows.kind, combined[is_predicted]), weight_of(rows.weight, is_predicted)
    all_scores = task_scores(rows.kind, rows.target[is_predicted], prediction, rows.group[is_predicted], weight)
    return {name: all_scores[name] for name in REPORTED_METRICS[rows.kind] if np.isfinite(all_scores[name])}
