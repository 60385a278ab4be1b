"""Which rows of a forecast a member explains, and which contributions of features it keeps as their reasons."""

from typing import Any

import numpy as np

NUM_REASONS = 16
"""Contributions of a row that are kept: an ensemble has other strongest ones than its members."""
EXPLAINED_CLASSES = 2
"""The likeliest classes whose contributions are kept: that of the ensemble is mostly among them."""


def order_of_forecast(row_id: np.ndarray, prediction: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
    """Row numbers in the order of a forecast: of classes by row id, else the highest first, within `group` if given."""
    if prediction.ndim == 2:
        return np.argsort(row_id, kind="stable")
    return np.lexsort((row_id, -prediction) if group is None else (row_id, -prediction, group))


def strongest_reasons(
    names: list[str], values: np.ndarray, parts: np.ndarray, classes: np.ndarray | None = None
) -> list[list[dict[str, Any]]]:
    """The `reasons` of rows with these feature values (n, F): of contributions (n, m, F) the largest that are not 0.

    classes : to which class the m contributions are, (n, m); None where m is 1.
    """
    largest = np.argsort(-np.abs(parts), axis=2, kind="stable")[..., :NUM_REASONS]
    return [
        [
            {
                "feature": names[feature],
                "value": float(values[row, feature]),
                "contribution": float(parts[row, which, feature]),
                **({"class": int(classes[row, which])} if classes is not None else {}),
            }
            for which in range(parts.shape[1])
            for feature in largest[row, which].tolist()
            if parts[row, which, feature]
        ]
        for row in range(len(values))
    ]
