"""Members that predict blend too well: a reason to look for a leak."""

import numpy as np

from ensemble import metrics
from ensemble.combine.fitting import counted_rows
from ensemble.combine.losses import weighted_mean
from ensemble.predictions import Predictions
from ensemble.task import Task

PERFECT = 0.9999
PERFECT_BY = {"binary": "roc_auc", "multiclass": "accuracy", "regression": "r_squared", "ranking": "ndcg_at_10"}
"""By kind of task, the score of blend that is a reason to look for a leak, from `PERFECT` on; the best is 1."""


def perfect(task: Task, blend: Predictions, predictions: dict[str, np.ndarray], member_names: list[str]) -> list[str]:
    """A sentence for each member whose predictions of blend leave nothing to be wrong about.

    That is seldom skill: a feature of it states the target, or it was trained on rows of blend.
    """
    metric = PERFECT_BY[task.kind]
    weight, counted = counted_rows(blend.weight)
    target, group = blend.target[counted], blend.group[counted]
    found = []
    for name in member_names:
        prediction = predictions[name][counted]
        if metric == "r_squared":
            score = 1 - float(
                weighted_mean((prediction - target) ** 2, weight)
                / (weighted_mean((target - target.mean()) ** 2, weight) or 1)
            )
        else:
            score = metrics.METRIC_FUNCTIONS[metric].function(target, prediction, group, weight)
        if score >= PERFECT:
            found.append(
                f"member {name} is right on all rows of {blend.split} ({metric} {score:.6f}): look for a feature that "
                "states the target, or for rows of that split among those that it learned from"
            )
    return found
