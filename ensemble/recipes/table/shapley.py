"""What each feature contributes to a prediction: Shapley values by sampling, for models that have no faster way.

The features of a reference row are replaced by those of the explained row one after the other, in a random order; a feature
contributes the change of the model's output when it is replaced. The mean over several orders and reference rows estimates
the Shapley value, and the contributions of a row sum to its output less the mean output of its reference rows, exactly.
Štrumbelj & Kononenko 2014, https://doi.org/10.1007/s10115-013-0679-x. Each order is also used reversed, which lowers the
variance.
"""

from collections.abc import Callable

import numpy as np

ROWS_AT_ONCE = 4096
Ask = Callable[[np.ndarray], np.ndarray]
"""Features (n, F) to outputs (n, K), in a unit in which contributions are summed: log odds, or that of the target."""


def values(ask: Ask, rows: np.ndarray, references: np.ndarray, seed: int = 0) -> np.ndarray:
    """The contributions to each output, (n, F, K). rows : (n, F) float32. references : (m, F) float32, an order for each.

    A row's contributions do not depend on the other rows.
    """
    (num_rows, num_features), generator = rows.shape, np.random.default_rng(seed)
    orders = [generator.permutation(num_features) for _ in range((len(references) + 1) // 2)]
    orders = [order for one in orders for order in (one, one[::-1])][: len(references)]
    at_once = max(1, ROWS_AT_ONCE // (num_features + 1))
    found = []
    for begin in range(0, num_rows, at_once):
        part = rows[begin : begin + at_once]
        changes = [_along(ask, part, *one) for one in zip(references, orders, strict=True)]
        found.append(np.mean(changes, axis=0))
    return np.concatenate(found)


def _along(ask: Ask, rows: np.ndarray, reference: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The changes of the outputs, (n, F, K), while the features of the reference row, (F,), are replaced in this order."""
    num_features = len(order)
    is_replaced = np.zeros((num_features + 1, num_features), bool)
    for step, feature in enumerate(order, start=1):
        is_replaced[step:, feature] = True
    variants = np.where(is_replaced, rows[:, None], reference)
    outputs = ask(variants.reshape(-1, num_features)).reshape(len(rows), num_features + 1, -1)
    found = np.empty((len(rows), num_features, outputs.shape[-1]))
    found[:, order] = np.diff(outputs, axis=1)
    return found
