"""Warnings of a leak: members whose predictions of blend are too good."""

import numpy as np

from ensemble import metrics
from ensemble.combine.fitting import counted_rows
from ensemble.combine.losses import weighted_mean
from ensemble.predictions import Predictions
from ensemble.task import Task

PERFECT = 0.9999
PERFECT_BY = {"binary": "roc_auc", "multiclass": "accuracy", "regression": "r_squared", "ranking": "ndcg_at_10"}
"""By kind of task, the metric that is compared with `PERFECT`; the best value of each is 1."""


def perfect(task: Task, blend: Predictions, predictions: dict[str, np.ndarray]) -> list[str]:
    """A warning for each member whose score on blend is `PERFECT` or higher. predictions : by name of the member.

    The usual cause is a feature that contains the target, or rows of blend among the training rows.
    """
    metric = PERFECT_BY[task.kind]
    weight, counted = counted_rows(blend.weight)
    target, group = blend.target[counted], blend.group[counted]
    warnings = []
    for name, prediction in predictions.items():
        prediction = prediction[counted]
        if metric == "r_squared":
            score = 1 - float(
                weighted_mean((prediction - target) ** 2, weight)
                / (weighted_mean((target - target.mean()) ** 2, weight) or 1)
            )
        else:
            score = metrics.METRIC_FUNCTIONS[metric].function(target, prediction, group, weight)
        if score >= PERFECT:
            warnings.append(
                f"member {name} is right on all rows of {blend.split} ({metric} {score:.6f}): look for a feature that "
                "contains the target, or for rows of that split among its training rows"
            )
    return warnings
