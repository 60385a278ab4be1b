"""Contributions of features to the predictions of the ensemble, summed over its members.

A contribution is a part of a prediction: of its log odds, of a value or score, or with several classes of the value of the
likeliest class before the softmax; see ensemble/trees/contributions.py. A member's contributions are multiplied by its
weight in the ensemble, by the slope of its scale (combine/scales.py) and by that of the calibration of the average. In a
ranking the slope of its scale is that of the standardisation of its scores. They are summed over the members that have
contributions.
"""

import math
from typing import Any

import numpy as np

from ensemble import combine
from ensemble.combine.losses import within_group
from ensemble.combine.scales import Curve, Scale
from ensemble.data.reasons import OTHERS
from ensemble.errors import UserError
from ensemble.predictions import Predictions

NUM_REASONS = 4
"""Largest number of features in the reasons of a row."""
Reasons = list[dict[str, Any]]
"""The reasons of a row: dicts with feature, value and contribution."""


def of_ensemble(files: list[Predictions], ensemble: combine.Ensemble, prediction: np.ndarray) -> list[Reasons] | None:
    """For each row, in the order of row ids, the `NUM_REASONS` features that contribute most, the largest first.

    With several classes, contributions to the class that is the likeliest by the ensemble are used.

    files : prediction files of the members, in any order of rows. prediction : of the ensemble, in the order of row ids,
    (n,) or (n, num_classes). Only contributions with the sign of the row's sum are listed. None if no member with a weight
    has contributions; a row without contributions has []. A row also has [] if the weights of the members with
    contributions to it sum to at most half of the largest such sum of any row: they would not explain the ensemble. Raises
    `UserError` for reasons that are not as in predictions.py.
    """
    members = []
    for file in files:
        position = ensemble.member_names.index(file.member)
        if file.reasons and (weight := ensemble.weights[position]):
            slope = _slope(ensemble.combination.scales[position]) if ensemble.kind != "ranking" else _slope_of_ranking(file)
            members.append((file, _read(file), weight, slope))
    if not members:
        return None
    slope_of_average = _slope(ensemble.combination.calibration)
    likeliest = prediction.argmax(axis=1) if prediction.ndim == 2 else np.full(len(prediction), -1)
    total: list[dict[str, list[float]]] = [{} for _ in prediction]
    explaining = np.zeros(len(prediction))  # by row, the sum of the weights of the members that have contributions
    for file, rows, weight, slope in members:
        for position, row in enumerate(np.argsort(file.row_id, kind="stable")):
            own = [reason for reason in rows[row] if reason.get("class") in (None, likeliest[position])]
            explaining[position] += abs(weight) if own else 0.0
            for reason in own:  # the factor is the change of the ensemble's prediction for a unit of the member's
                value_and_sum = total[position].setdefault(reason["feature"], [reason["value"], 0.0])
                value_and_sum[1] += weight * slope * slope_of_average * reason["contribution"]
    is_explained = 2 * explaining > explaining.max(initial=0)
    return [_largest(contributions) if kept else [] for contributions, kept in zip(total, is_explained, strict=True)]


def _read(file: Predictions) -> list[Reasons]:
    """The reasons of each row of a file, which any program may write: a missing list is empty, and a missing value NaN."""
    rows: list[Reasons] = []
    for row_id, given in zip(file.row_id, file.reasons or (), strict=True):
        rows.append([])
        for reason in given or ():
            entries = reason if isinstance(reason, dict) else {}
            feature, value, contribution = (entries.get(name) for name in ("feature", "value", "contribution"))
            value = math.nan if value is None else value
            is_number = isinstance(value, (int, float)) and isinstance(contribution, (int, float))
            if not (isinstance(feature, str) and is_number):
                raise UserError(
                    f"member {file.member}: the reason {reason} of row {row_id} lacks the name of a feature, or a number "
                    "for its value and its contribution: see ensemble/predictions.py"
                )
            rows[-1].append({**entries, "value": value})
    return rows


def _slope(scale: Scale) -> float:
    """The slope of a scale; of a curve from end to end."""
    if isinstance(scale, Curve):
        return (scale.value[-1] - scale.value[0]) / (scale.at[-1] - scale.at[0] or 1.0)
    return scale.slope


def _slope_of_ranking(file: Predictions) -> float:
    """The mean change of the scores that are standardised within their groups, for a unit of a score."""
    standard = within_group(file.prediction, file.group)
    change = float(standard @ file.prediction)
    return float(standard @ standard) / change if change > 0 else 1.0


def _largest(contributions: dict[str, list[float]]) -> Reasons:
    """The reasons of a row. contributions : by feature, its value and its contribution."""
    sign = 1 if sum(contribution for _, contribution in contributions.values()) >= 0 else -1
    same_sign: Reasons = [
        {"feature": name, "value": value, "contribution": contribution}
        for name, (value, contribution) in contributions.items()
        if sign * contribution > 0 and name != OTHERS
    ]
    return sorted(same_sign, key=lambda reason: -abs(reason["contribution"]))[:NUM_REASONS]
