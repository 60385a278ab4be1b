"""The importance of the features of a tree or linear member by permutation; see metrics/permutation.py."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.metrics import permutation
from ensemble.trees.objective import Objective
from ensemble.trees.rows import TreeData
from ensemble.trees.unknown import Predict

MAX_TREE_PREDICTIONS = 2_000_000
"""The largest number of predictions of single trees, over all rows and features. They take some 0.2 s on one core."""
MAX_CELLS = 8_000_000
"""The largest number of cells of all permuted rows, the square of the number of features for each drawn row. A linear model
predicts them in 1 s."""


def importance(
    objective: Objective, rows: TreeData, folds: Sequence[Fold], predictors: Sequence[Predict], num_trees: int
) -> dict[str, Any] | None:
    """As `metrics.permutation.importance`; None also for a ranking, for an objective of another kind than the task, and if
    it would take too long.

    rows : the split `train`. predictors : for each fold, the function that predicts with its copy, in the target's unit.
    num_trees : the number of rounds of a copy; for a linear model the number of its candidate.
    """
    task, num_features = objective.task, len(rows.features)
    if objective.kind == "ranking" or objective.kind != task.kind:
        return None
    num_affordable = MAX_TREE_PREDICTIONS // max(1, num_trees * objective.num_classes * num_features)

    def columns(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        drawn = rows.take(numbers)
        weight = drawn.column(task.weight).astype(np.float64) if task.weight else None
        return drawn.column(objective.target).astype(np.float64), drawn.column(task.group), weight

    return permutation.importance(
        objective.metric,
        rows.features,
        [fold.held for fold in folds],
        predictors,
        min(num_affordable, MAX_CELLS // num_features**2),
        features=lambda numbers: rows.take(numbers).matrix(),
        columns=columns,
    )
