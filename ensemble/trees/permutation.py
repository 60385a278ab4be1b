"""Importance by permutation: how much worse out-of-fold predictions are when the values of a feature change places.

Of each fold some held-out rows are drawn. For each feature, its values are permuted among them, and the copy that holds them
out predicts them anew. The importance is the score of these predictions, of all folds together, less that without a
permutation; above 0 is worse. Breiman 2001, https://doi.org/10.1023/A:1010933404324.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.metrics import METRIC_OF
from ensemble.trees.objective import Goal
from ensemble.trees.rows import TreeData

MOST_TREES = 2_000_000
"""Predictions of single trees, of all rows and features: some 0.2 s on one core."""
LEAST_ROWS, MOST_ROWS = 200, 1000
"""With so many features or trees that fewer rows are left, nothing is permuted."""
Predict = Callable[[np.ndarray], np.ndarray]
"""Features (n, F) to predictions in the unit of the target, (n,) or (n, K)."""


def importance(
    goal: Goal, rows: TreeData, folds: Sequence[Fold], predicts: Sequence[Predict], num_trees: int
) -> dict[str, Any] | None:
    """`metric`, `rows` and, by feature, `worse`; None where rows are ranked in groups, or it takes too long.

    rows : the split `train`. predicts : of each fold, the predictions of its copy. num_trees : of a copy.
    """
    num_held, num_features = sum(len(fold.held) for fold in folds), len(rows.features)
    num_rows = min(num_held, MOST_ROWS, MOST_TREES // max(1, num_trees * goal.num_classes * num_features))
    if goal.objective == "ranking" or goal.objective != goal.task.kind or num_rows < min(LEAST_ROWS, num_held):
        return None
    generator = np.random.default_rng(0)
    taken, predictions = [], []
    for fold, predict in zip(folds, predicts, strict=True):
        number = max(1, num_rows * len(fold.held) // num_held)
        taken.append(np.sort(generator.choice(fold.held, number, replace=False)))
        features = np.concatenate(list(rows.take(taken[-1]).batches()))
        variants = np.repeat(features[None], num_features + 1, axis=0)
        for feature in range(num_features):
            variants[feature + 1, :, feature] = generator.permutation(features[:, feature])
        found = predict(variants.reshape(-1, num_features))
        predictions.append(found.reshape(num_features + 1, number, *found.shape[1:]))
    part, metric = rows.take(np.concatenate(taken)), METRIC_OF[goal.metric]
    weight = part.column(goal.task.weight).astype(np.float64) if goal.task.weight else None
    if weight is not None and not weight.any():
        return None
    target, group = part.column(goal.target).astype(np.float64), part.column(goal.task.group)
    scores = [metric.function(target, of, group, weight) for of in np.concatenate(predictions, axis=1)]
    sign = -1 if metric.higher_is_better else 1
    worse = {name: sign * float(score - scores[0]) for name, score in zip(rows.features, scores[1:], strict=True)}
    return {"metric": goal.metric, "rows": len(target), "worse": worse} if np.isfinite(list(worse.values())).all() else None
