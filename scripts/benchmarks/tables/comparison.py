"""Scores of predictions on the new rows, and whether ours are better than a rival's: a paired bootstrap over rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ensemble.metrics import binary, multiclass, regression
from ensemble.metrics.bootstrap import intervals

NUM_DRAWS = 2000


def read(predictions: Path, truth: Path, target: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """The true values and the predictions of the new rows, in their order.

    The values are float64 (num_rows,). Classes are numbered in the sorted order of their names, and their probabilities
    are (num_rows, num_classes). The file may have its rows in any order; they must be those of `truth`.
    """
    true, found = pl.read_parquet(truth).sort("row_id"), pl.read_parquet(predictions).sort("row_id")
    assert found["row_id"].to_list() == true["row_id"].to_list(), f"{predictions} has other rows than {truth}"
    if task == "regression":
        return true[target].cast(pl.Float64).to_numpy(), found["prediction"].cast(pl.Float64).to_numpy()
    columns = {
        name.casefold(): name for name in sorted(found.columns) if name != "row_id"
    }  # a library may write False as false
    code = {name: number for number, name in enumerate(columns)}
    values = true[target].str.to_lowercase().replace_strict(code, default=None, return_dtype=pl.Float64)
    assert not values.null_count(), f"{predictions} lacks a class of {truth}"
    probability = found.select(columns.values()).cast(pl.Float64).to_numpy()
    return values.to_numpy(), probability / probability.sum(axis=1, keepdims=True)


def scores(task: str, target: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """`loss`, by which methods are compared: log loss of classes, RMSE of numbers; and what readers know beside it."""
    if task == "regression":
        return {"loss": regression.root_mean_squared_error(target, prediction)}
    found = {"loss": multiclass.log_loss(target, prediction), "accuracy": multiclass.accuracy(target, prediction)}
    return found | ({"roc_auc": binary.roc_auc(target, prediction[:, 1])} if task == "binary" else {})


def row_losses(task: str, target: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """(num_rows,): what `loss` is the mean of, or for numbers the root of the mean of."""
    if task == "regression":
        return (prediction - target) ** 2
    of_truth = prediction[np.arange(len(target)), target.astype(int)]
    tiny = np.finfo(float).eps
    return -np.log(np.clip(of_truth, tiny, 1 - tiny))


def compare(
    task: str, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], num_draws: int = NUM_DRAWS
) -> dict[str, Any]:
    """Our loss minus theirs, with the 95 % interval of a bootstrap that draws the same rows for both.

    ours, theirs : the row losses of each seed, (num_rows,); they are averaged over seeds first. `relative` is the difference
    as a part of their loss. The verdict is a win or a loss if the interval does not contain 0, else level.
    """
    first, second = np.mean(ours, axis=0), np.mean(theirs, axis=0)

    def loss(of_rows: np.ndarray, weight: np.ndarray) -> float:
        mean = float(of_rows @ weight / weight.sum())
        return mean**0.5 if task == "regression" else mean

    def difference(weight: np.ndarray) -> np.ndarray:
        return np.array([loss(first, weight) - loss(second, weight)])

    rows = np.arange(len(first))
    found = intervals(["loss"], difference, rows, num_draws, np.random.default_rng(0))["loss"]
    verdict = "win" if found.high < 0 else "loss" if found.low > 0 else "level"
    return {"difference": found._asdict(), "relative": found.value / loss(second, np.ones(len(rows))), "verdict": verdict}


def summary(comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over tables: numbers of verdicts, and the median of the relative difference in loss (below 0: ours is lower)."""
    counts = {verdict: sum(one["verdict"] == verdict for one in comparisons) for verdict in ("win", "level", "loss")}
    relative = float(np.median([one["relative"] for one in comparisons]))
    return {"tables": len(comparisons), **counts, "median_relative_difference": relative}
