"""Weights of rows: (num_rows,), not negative, or None for 1 each. Without weights, a mean is bitwise the plain one."""

import numpy as np

from ensemble.errors import UserError


def checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64; the prediction may be (num_rows, num_classes). Raises `UserError` if there are no rows."""
    target, prediction = np.asarray(target, float), np.asarray(prediction, float)
    assert target.shape == prediction.shape[:1] == (target.size,)
    if target.size == 0:
        raise UserError("there are no rows to score: check the split")
    return target, prediction


def refuse(is_bad: np.ndarray, values: np.ndarray, sentence: str) -> None:
    """Raise `UserError` for the first bad row. sentence : a format string of the number of the row and its value."""
    if is_bad.any():
        row = int(is_bad.argmax())
        raise UserError(sentence.format(row, values[row]))


def weighted_mean(values: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """The weighted mean over the first axis of `values`; weight : (num_rows,), or None for 1 each."""
    return values.mean(0) if weight is None else weight @ values / weight.sum()


def weighted_median(values: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The smallest of the values (num_rows,) that at least half of the weight does not exceed."""
    return float(np.quantile(values, 0.5, weights=weight, method="inverted_cdf"))


def weight_of(weight: np.ndarray | None, rows: np.ndarray | slice) -> np.ndarray | None:
    """The weights of some rows; None without weights."""
    return None if weight is None else weight[rows]


def relative_weights(weight: np.ndarray | None) -> np.ndarray | None:
    """The weights divided by the mean of those above 0, so that no score depends on their unit."""
    if weight is None:
        return None
    weight = np.asarray(weight, float)
    return weight / weight[weight > 0].mean()
