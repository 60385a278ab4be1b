"""Reasons in a member's prediction file: the order of the rows that get some, and the contributions that are stored."""

from typing import Any

import numpy as np

NUM_REASONS = 16
"""Contributions that are stored for a row; more than the ensemble shows, since its largest are not those of each member."""
EXPLAINED_CLASSES = 2
"""Number of likeliest classes whose contributions are stored; the ensemble's likeliest class is mostly among them."""


def order_of_forecast(row_id: np.ndarray, prediction: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
    """Row numbers in the order of a forecast: the highest prediction first, within `group` if it is not None.

    row_id, group : (n,). prediction : (n,); with (n, num_classes) the order is by row id.
    """
    if prediction.ndim == 2:
        return np.argsort(row_id, kind="stable")
    return np.lexsort((row_id, -prediction) if group is None else (row_id, -prediction, group))


def strongest_reasons(
    names: list[str], values: np.ndarray, parts: np.ndarray, classes: np.ndarray | None = None
) -> list[list[dict[str, Any]]]:
    """The `reasons` of n rows: the largest contributions that are not 0.

    names : of the F features. values : of the features, (n, F). parts : contributions (n, m, F), to m classes each. classes
    : the numbers of these classes, (n, m); None if m is 1.
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
