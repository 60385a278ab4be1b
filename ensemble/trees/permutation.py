"""Importance by permutation: how much worse out-of-fold predictions become when the values of a feature are permuted.

Some held-out rows of each fold are drawn. The values of one feature are permuted among them, and the copy that holds the
rows out predicts them again. The importance is the difference between the scores with and without permutation, of all folds
together; it is positive if the score with permutation is worse. Breiman 2001, https://doi.org/10.1023/A:1010933404324.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.trees.objective import Objective
from ensemble.trees.rows import TreeData
from ensemble.trees.unknown import Predict

MAX_TREE_PREDICTIONS = 2_000_000
"""The largest number of predictions of single trees, over all rows and features. They take some 0.2 s on one core."""
MAX_CELLS = 8_000_000
"""The largest number of cells of all permuted rows, the square of the number of features for each drawn row. A linear model
predicts them in 1 s."""
MIN_ROWS, MAX_ROWS = 200, 1000
"""The least and the largest number of drawn rows; all are drawn if fewer than `MIN_ROWS` are held out. If
`MAX_TREE_PREDICTIONS` or `MAX_CELLS` does not allow the least number, nothing is computed."""


def importance(
    objective: Objective, rows: TreeData, folds: Sequence[Fold], predictors: Sequence[Predict], num_trees: int
) -> dict[str, Any] | None:
    """`metric`, `rows` (the number of drawn rows), and `worse`: the importance by feature.

    None for a ranking, for an objective of another kind than the task, if it would take too long, if no drawn row has a
    weight above 0, or for undefined scores.

    rows : the split `train`. predictors : for each fold, the function that predicts with its copy, in the target's unit.
    num_trees : the number of rounds of a copy; for a linear model the number of its candidate.
    """
    num_held_out, num_features = sum(len(fold.held) for fold in folds), len(rows.features)
    num_affordable = MAX_TREE_PREDICTIONS // max(1, num_trees * objective.num_classes * num_features)
    num_rows = min(num_held_out, MAX_ROWS, num_affordable, MAX_CELLS // num_features**2)
    if objective.kind == "ranking" or objective.kind != objective.task.kind or num_rows < min(MIN_ROWS, num_held_out):
        return None
    generator = np.random.default_rng(0)
    drawn, predictions = [], []
    for fold, predict in zip(folds, predictors, strict=True):
        number = max(1, num_rows * len(fold.held) // num_held_out)
        drawn.append(np.sort(generator.choice(fold.held, number, replace=False)))
        features = rows.take(drawn[-1]).matrix()
        variants = np.repeat(features[None], num_features + 1, axis=0)
        for feature in range(num_features):
            variants[feature + 1, :, feature] = generator.permutation(features[:, feature])
        prediction = predict(variants.reshape(-1, num_features))
        predictions.append(prediction.reshape(num_features + 1, number, *prediction.shape[1:]))
    drawn_rows, metric = rows.take(np.concatenate(drawn)), METRIC_FUNCTIONS[objective.metric]
    weight = drawn_rows.column(objective.task.weight).astype(np.float64) if objective.task.weight else None
    if weight is not None and not weight.any():
        return None
    target, group = drawn_rows.column(objective.target).astype(np.float64), drawn_rows.column(objective.task.group)
    scores = [metric.function(target, prediction, group, weight) for prediction in np.concatenate(predictions, axis=1)]
    sign = -1 if metric.higher_is_better else 1
    worse = {name: sign * float(score - scores[0]) for name, score in zip(rows.features, scores[1:], strict=True)}
    is_defined = np.isfinite(list(worse.values())).all()
    return {"metric": objective.metric, "rows": len(target), "worse": worse} if is_defined else None
