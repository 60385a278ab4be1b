"""Weights of rows: (num_rows,), not negative, or None for 1 each. Without weights the bits are those of plain means."""

import numpy as np

from ensemble.errors import UserError


def check_not_empty(target: np.ndarray) -> None:
    """Raise `UserError` if there are no rows."""
    if target.size == 0:
        raise UserError("there is not one row to score: check the split")


def mean(values: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The weighted mean of `values`, (num_rows,)."""
    return float(values.mean()) if weight is None else float(values @ weight / weight.sum())


def weighted(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Each value times its weight."""
    return values if weight is None else values * weight


def relative_weights(weight: np.ndarray | None) -> np.ndarray | None:
    """The weights divided by the mean of those above 0, so that no score depends on their unit."""
    if weight is None:
        return None
    weight = np.asarray(weight, float)
    return weight / weight[weight > 0].mean()
