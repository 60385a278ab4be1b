"""Shapley values by sampling: the contribution of each feature to a prediction of any model.

The features of a reference row are replaced by those of the explained row one after the other, in a random order; a feature
contributes the change of the model's output when it is replaced. The mean over several orders and reference rows estimates
the Shapley value. The contributions of a row sum exactly to its output minus the mean output of the reference rows.
Source: Štrumbelj & Kononenko 2014, https://doi.org/10.1007/s10115-013-0679-x. Each order is also used reversed, which lowers
the variance.
"""

from collections.abc import Callable

import numpy as np

ROWS_AT_ONCE = 4096
Predict = Callable[[np.ndarray], np.ndarray]
"""Maps n rows of F features, (n, F), to K outputs, (n, K), on an additive scale, such as log odds."""


def values(predict: Predict, rows: np.ndarray, references: np.ndarray) -> np.ndarray:
    """The contributions to each output, (n, F, K); those of a row do not depend on the other rows.

    rows : (n, F) float32. references : (m, F) float32; each is used with one order of the features.
    """
    (num_rows, num_features), generator = rows.shape, np.random.default_rng(0)
    permutations = [generator.permutation(num_features) for _ in range((len(references) + 1) // 2)]
    orders = [order for permutation in permutations for order in (permutation, permutation[::-1])][: len(references)]
    block_size = max(1, ROWS_AT_ONCE // (num_features + 1))
    contributions = []
    for begin in range(0, num_rows, block_size):
        block = rows[begin : begin + block_size]
        changes = [_changes(predict, block, *pair) for pair in zip(references, orders, strict=True)]
        contributions.append(np.mean(changes, axis=0))
    return np.concatenate(contributions)


def _changes(predict: Predict, rows: np.ndarray, reference: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Changes of the outputs, (n, F, K), as the features of the reference row, (F,), are replaced in this order."""
    num_features = len(order)
    is_replaced = np.zeros((num_features + 1, num_features), bool)
    for step, feature in enumerate(order, start=1):
        is_replaced[step:, feature] = True
    variants = np.where(is_replaced, rows[:, None], reference)
    outputs = predict(variants.reshape(-1, num_features)).reshape(len(rows), num_features + 1, -1)
    changes = np.empty((len(rows), num_features, outputs.shape[-1]))
    changes[:, order] = np.diff(outputs, axis=1)
    return changes
