"""Reasons in a member's prediction file: the contributions that are stored for a row, and the order of the rows.

Only the first rows of this order get reasons.
"""

from typing import Any

import numpy as np

NUM_REASONS = 16
"""The number of contributions that are stored for a row. It is larger than the number that the ensemble shows: its largest
contributions are not always among the largest of each member."""
OTHERS = ""
"""In place of a feature, for the sum of the contributions that are not stored. It determines whether all contributions of a
row together raise or lower the prediction."""
EXPLAINED_CLASSES = 2
"""The number of a member's likeliest classes whose contributions are stored. The ensemble's likeliest class is mostly one of
them."""


def order_of_forecast(
    row_id: np.ndarray, prediction: np.ndarray, group: np.ndarray | None = None, most_per_group: int | None = None
) -> np.ndarray:
    """Row numbers in the order of a forecast: the highest prediction first, within `group` if it is not None.

    row_id, group : (n,). prediction : (n,); with (n, num_classes) the order is by row id. most_per_group : the number of
    rows of each group that are in the forecast; None for all.
    """
    if prediction.ndim == 2:
        return np.argsort(row_id, kind="stable")
    order = np.lexsort((row_id, -prediction) if group is None else (row_id, -prediction, group))
    if group is None or most_per_group is None:
        return order
    place = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    return order[place < most_per_group]


def likeliest_classes(prediction: np.ndarray) -> np.ndarray | None:
    """The numbers of the `EXPLAINED_CLASSES` likeliest classes of each row, (n, m); None for a task without classes."""
    return np.argsort(-prediction, axis=1, kind="stable")[:, :EXPLAINED_CLASSES] if prediction.ndim == 2 else None


def strongest_reasons(
    names: list[str], values: np.ndarray, parts: np.ndarray, classes: np.ndarray | None, rows: np.ndarray, num_rows: int
) -> list[list[dict[str, Any]]]:
    """The `reasons` of `num_rows` rows. For n of them these are the `NUM_REASONS` largest contributions to each class, and
    the sum of its other contributions, without those that are 0; the list of every other row is empty.

    names : the names of the F features. values : the values of the features, (n, F). parts : the contributions, (n, m, F),
    to m classes for each row; m is 1 for a task without classes. classes : the numbers of these classes, (n, m); None for a
    task without classes. rows : the numbers of the n rows.
    """
    order = np.argsort(-np.abs(parts), axis=2, kind="stable")
    largest, smaller = order[..., :NUM_REASONS], order[..., NUM_REASONS:]
    if smaller.size:
        names = [*names, OTHERS]
        values = np.append(values, np.zeros_like(values[:, :1]), axis=1)
        parts = np.append(parts, np.take_along_axis(parts, smaller, axis=2).sum(axis=2, keepdims=True), axis=2)
        largest = np.append(largest, np.full_like(largest[..., :1], len(names) - 1), axis=2)
    reasons: list[list[dict[str, Any]]] = [[] for _ in range(num_rows)]
    for row, number in enumerate(rows.tolist()):
        reasons[number] = [
            {
                "feature": names[feature],
                "value": float(values[row, feature]),
                "contribution": float(parts[row, position, feature]),
                **({"class": int(classes[row, position])} if classes is not None else {}),
            }
            for position in range(parts.shape[1])
            for feature in largest[row, position].tolist()
            if parts[row, position, feature]
        ]
    return reasons
