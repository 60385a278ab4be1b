"""Scores of predictions for new rows, and the difference between two methods by a paired bootstrap over rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ensemble.metrics import binary, multiclass, regression
from ensemble.metrics.bootstrap import draws_of, intervals

NUM_DRAWS = 2000
"""Draws of the bootstrap."""


def read(predictions: Path, truth: Path, target: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """The true values and the predictions of the new rows, in their order.

    True values are float64 (num_rows,). Classes are numbered in the sorted order of their names, and their probabilities are
    (num_rows, num_classes). The rows of the file must be those of `truth`, in any order.
    """
    true, predicted = pl.read_parquet(truth).sort("row_id"), pl.read_parquet(predictions).sort("row_id")
    assert predicted["row_id"].to_list() == true["row_id"].to_list(), f"{predictions} has other rows than {truth}"
    if task == "regression":
        return true[target].cast(pl.Float64).to_numpy(), predicted["prediction"].cast(pl.Float64).to_numpy()
    # Names are compared without case, since a library may write False as false
    columns = {name.casefold(): name for name in sorted(predicted.columns) if name != "row_id"}
    code = {name: number for number, name in enumerate(columns)}
    values = true[target].str.to_lowercase().replace_strict(code, default=None, return_dtype=pl.Float64)
    assert not values.null_count(), f"{predictions} lacks a class of {truth}"
    probability = predicted.select(columns.values()).cast(pl.Float64).to_numpy()
    return values.to_numpy(), probability / probability.sum(axis=1, keepdims=True)


def scores(task: str, target: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """`loss`, by which methods are compared (log loss for classes, RMSE for numbers), and for classes other metrics."""
    if task == "regression":
        return {"loss": regression.root_mean_squared_error(target, prediction)}
    scores = {"loss": multiclass.log_loss(target, prediction), "accuracy": multiclass.accuracy(target, prediction)}
    return scores | ({"roc_auc": binary.roc_auc(target, prediction[:, 1])} if task == "binary" else {})


def row_losses(task: str, target: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """The loss of each row, (num_rows,): `loss` in `scores` is the mean of these values, or for numbers its square root."""
    if task == "regression":
        return (prediction - target) ** 2
    of_true_class = prediction[np.arange(len(target)), target.astype(int)]
    tiny = np.finfo(float).eps
    return -np.log(np.clip(of_true_class, tiny, 1 - tiny))


def compare(
    task: str, ours: Sequence[np.ndarray], rival: Sequence[np.ndarray], num_draws: int = NUM_DRAWS
) -> dict[str, Any]:
    """Our loss minus the rival's, with the 95 % interval of a bootstrap that draws the same rows for both.

    `relative` is the difference divided by the rival's loss. The verdict is win or loss if the interval does not contain 0,
    otherwise level.

    ours, rival : the row losses of each seed, (num_rows,), which are averaged over seeds first
    """
    first, second = np.mean(ours, axis=0), np.mean(rival, axis=0)

    def loss(row_losses: np.ndarray, weight: np.ndarray) -> float:
        mean = float(row_losses @ weight / weight.sum())
        return mean**0.5 if task == "regression" else mean

    def difference(weight: np.ndarray) -> np.ndarray:
        return np.array([loss(first, weight) - loss(second, weight)])

    rows = np.arange(len(first))
    interval = intervals(["loss"], draws_of(difference, rows, num_draws, np.random.default_rng(0)))["loss"]
    verdict = "win" if interval.high < 0 else "loss" if interval.low > 0 else "level"
    return {
        "difference": interval._asdict(),
        "relative": interval.value / loss(second, np.ones(len(rows))),
        "verdict": verdict,
    }
