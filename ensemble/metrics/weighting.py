"""Weights of rows: None for 1 each, else shape (num_rows,), not negative. Without weights no bit of a result changes."""

import numpy as np


def mean(values: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The mean over the rows of `values`, (num_rows,)."""
    return float(values.mean()) if weight is None else float(values @ weight / weight.sum())


def weighted(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Each row's value times its weight."""
    return values if weight is None else values * weight


def relative(weight: np.ndarray | None) -> np.ndarray | None:
    """Weights by the mean of those above 0, so that no score depends on the unit of the weights."""
    if weight is None:
        return None
    weight = np.asarray(weight, float)
    return weight / weight[weight > 0].mean()
