"""Why the ensemble predicts what it does: the contributions of its members, by their influence on the ensemble.

The contribution of a feature is in log odds, in the unit of the target, in the score, or of the likeliest class before the
softmax; see ensemble/trees/contributions.py. A member's contributions are multiplied by its weight in the ensemble and by
the slope of its scale, and summed over the members that give some.
"""

from typing import Any

import numpy as np

from ensemble import combine
from ensemble.combine.scales import Line
from ensemble.predictions import Predictions

NUM_REASONS = 4
Reasons = list[dict[str, Any]]


def of_ensemble(files: list[Predictions], ensemble: combine.Ensemble, prediction: np.ndarray) -> list[Reasons] | None:
    """For each row, in the order of row ids, the features that contribute most, the strongest first.

    files : predictions of the members, in any order of rows. prediction : of the ensemble, in the order of row ids, (n,) or
    (n, K). All reasons of a row have one sign: that of the sum of its contributions. None if no member with weight has
    reasons; a row that no member explains has [].
    """
    influence = influences(ensemble)
    members = [(file, influence[file.member]) for file in files if file.reasons and influence.get(file.member)]
    if not members:
        return None
    likeliest = prediction.argmax(axis=1) if prediction.ndim == 2 else np.full(len(prediction), -1)
    total: list[dict[str, list[float]]] = [{} for _ in prediction]
    for file, factor in members:
        assert file.reasons is not None
        for position, row in enumerate(np.argsort(file.row_id, kind="stable")):
            for reason in file.reasons[row]:
                if reason.get("class") in (None, likeliest[position]):
                    of = total[position].setdefault(reason["feature"], [reason["value"], 0.0])
                    of[1] += factor * reason["contribution"]
    return [_strongest(of) for of in total]


def influences(ensemble: combine.Ensemble) -> dict[str, float]:
    """By member, how much the ensemble moves with it: its weight, times the slope of its scale."""
    of = ensemble.combination
    slopes = [scale.slope if isinstance(scale, Line) else 1.0 for scale in of.scales]
    return {name: weight * slope for name, weight, slope in zip(ensemble.member_names, of.weights, slopes, strict=True)}


def _strongest(of_row: dict[str, list[float]]) -> Reasons:
    sign = 1 if sum(contribution for _, contribution in of_row.values()) >= 0 else -1
    same: list[tuple[str, float, float]] = [(name, of[0], of[1]) for name, of in of_row.items() if sign * of[1] > 0]
    ordered = sorted(same, key=lambda reason: -abs(reason[2]))[:NUM_REASONS]
    return [{"feature": name, "value": value, "contribution": contribution} for name, value, contribution in ordered]
