"""Importance by permutation: how much worse out-of-fold predictions become when the values of a feature are permuted.

Some held-out rows of each fold are drawn. The values of one feature are permuted among them, and the copy that holds the
rows out predicts them again. The importance is the difference between the scores with and without permutation, of all folds
together; it is positive if the score with permutation is worse. Breiman 2001, https://doi.org/10.1023/A:1010933404324.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ensemble.metrics import METRIC_FUNCTIONS

MIN_ROWS, MAX_ROWS = 200, 1000
"""The least and the largest number of drawn rows; all are drawn if fewer than `MIN_ROWS` are held out."""

Predict = Callable[[np.ndarray], np.ndarray]
"""Maps rows of features, (n, F), to predictions, (n,), or probabilities of classes, (n, num_classes)."""


def importance(
    metric: str,
    names: Sequence[str],
    held: Sequence[np.ndarray],
    predictors: Sequence[Predict],
    num_affordable: int,
    features: Callable[[np.ndarray], np.ndarray],
    columns: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray | None]],
) -> dict[str, Any] | None:
    """`metric`, `rows` (the number of drawn rows), and `worse`: the importance by feature.

    None if `num_affordable` rows are fewer than the least number, if no drawn row has a weight above 0, or for undefined
    scores.

    metric : one of `METRIC_FUNCTIONS`, not one of a ranking, whose groups would be divided. names : of the F features.
    held : the row numbers that each fold holds out. predictors : for each fold, the function that predicts with its copy.
    features : a function of n row numbers that returns their features, (n, F). columns : a function of n row numbers that
    returns their targets, groups and weights, (n,) each; the weights are None if the task has none.
    """
    num_held_out, num_features = sum(map(len, held)), len(names)
    num_rows = min(num_held_out, MAX_ROWS, num_affordable)
    if num_rows < min(MIN_ROWS, num_held_out):
        return None
    generator = np.random.default_rng(0)
    drawn, predictions = [], []
    for numbers, predict in zip(held, predictors, strict=True):
        number = max(1, num_rows * len(numbers) // num_held_out)
        drawn.append(np.sort(generator.choice(numbers, number, replace=False)))
        values = features(drawn[-1])
        variants = np.repeat(values[None], num_features + 1, axis=0)
        for feature in range(num_features):
            variants[feature + 1, :, feature] = generator.permutation(values[:, feature])
        prediction = predict(variants.reshape(-1, num_features))
        predictions.append(prediction.reshape(num_features + 1, number, *prediction.shape[1:]))
    target, group, weight = columns(np.concatenate(drawn))
    if weight is not None and not weight.any():
        return None
    function, higher_is_better = METRIC_FUNCTIONS[metric].function, METRIC_FUNCTIONS[metric].higher_is_better
    scores = [function(target, prediction, group, weight) for prediction in np.concatenate(predictions, axis=1)]
    sign = -1 if higher_is_better else 1
    worse = {name: sign * float(score - scores[0]) for name, score in zip(names, scores[1:], strict=True)}
    is_defined = np.isfinite(list(worse.values())).all()
    return {"metric": metric, "rows": len(target), "worse": worse} if is_defined else None
