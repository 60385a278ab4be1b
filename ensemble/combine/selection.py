"""The choice between combinations: forward in time, inside blend.

Blend's weeks are cut into blocks. Each block but the first is forecast by what was fitted to the weeks before it, and by
those forecasts the ways are compared: no way is judged on rows it was fitted on, nor by what it learned from later ones.
(Neighbouring weeks share a part of their labels' horizon, so all these scores are a little too good; that is the same for
every way.)

Log loss decides though average precision is reported too, since every row counts in it, not only the few hundred positives.
"""

from collections.abc import Callable, Iterable

import numpy as np

from ensemble.combine.combination import Combination
from ensemble.combine.losses import LOG_LOSS, SQUARED_ERROR, expit
from ensemble.metrics import binary_scores

Fold = tuple[np.ndarray, np.ndarray]  # masks over the rows: the earlier weeks, and the block to forecast
AUTO = "auto"
MARGIN = 0.5  # standard errors: on nine blends 0, 0.5 and 1 gave +0.0050, +0.0054 and +0.0050 over the best member


def forward_folds(group: np.ndarray, num_folds: int) -> list[Fold]:
    """At most `num_folds` blocks of consecutive weeks, each with all rows before it; there are at least two weeks."""
    weeks = np.unique(group)
    blocks = np.array_split(weeks, min(num_folds + 1, len(weeks)))
    return [(group < block[0], np.isin(group, block)) for block in blocks[1:]]


def forward_forecasts(
    fit: Callable[[np.ndarray], dict[str, Combination]], inputs: np.ndarray, folds: Iterable[Fold]
) -> dict[str, np.ndarray]:
    """Each way's forecasts, (num_rows,): logits or values, NaN in the first block. `fit` fits all ways to some rows."""
    found: dict[str, np.ndarray] = {}
    for earlier, held in folds:
        for name, combination in fit(earlier).items():
            found.setdefault(name, np.full(len(inputs), np.nan))[held] = combination(inputs[held])
    return found


def losses_by_fold(task: str, target: np.ndarray, forecast: np.ndarray, folds: Iterable[Fold]) -> np.ndarray:
    """Mean loss of each block that was forecast, shape (num_folds,)."""
    loss = LOG_LOSS if task == "binary" else SQUARED_ERROR
    return np.array([loss.mean(target[held], forecast[held]) for _, held in folds])


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
    losses: dict[str, np.ndarray], forecasts: dict[str, np.ndarray], default: str, folds: list[Fold]
) -> np.ndarray:
    """What choosing would have given: each block is forecast by the way that the blocks before it would have chosen."""
    found = np.full(len(forecasts[default]), np.nan)
    for number, (_, held) in enumerate(folds):
        chosen = choose({name: of[:number] for name, of in losses.items()}, default)
        found[held] = forecasts[chosen][held]
    return found


def scores(task: str, target: np.ndarray, forecast: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Of the rows that were forecast: log loss and average precision, or root mean squared and mean absolute error."""
    there = np.isfinite(forecast)
    if task == "regression":
        error = forecast[there] - target[there]
        return {
            "root_mean_squared_error": float(np.sqrt(np.mean(error**2))),
            "mean_absolute_error": float(np.mean(np.abs(error))),
        }
    found = binary_scores(target[there], expit(forecast[there]), group[there])
    return {name: found[name] for name in ("log_loss", "average_precision")}
