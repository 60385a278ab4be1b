"""One combination: each member's scale, their weights and a calibration, as fitted to some rows."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ensemble.combine import scales
from ensemble.combine.losses import expit, logit_of
from ensemble.combine.scales import CALIBRATORS, Scale
from ensemble.combine.weights import COMBINERS, Space, equal_weights

LARGEST_LOGIT = 30.0  # a probability of exactly 0 or 1 would have an infinite loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combination:
    """Scale each member, average what comes out, calibrate the average."""

    scales: tuple[Scale, ...]
    """For each member: from the logit of its probability, from its score or from its value."""
    space: Space
    """What is averaged: scaled logits, their probabilities, or values."""
    weights: tuple[float, ...]
    """Of the members."""
    intercept: float
    """Added to the average, so that its mean on blend is that of the target; 0 for logits, where calibration does it."""
    calibration: Scale
    """Of the average's logit; the identity for values."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The logit, or the value, of each row of `inputs`: shape (num_rows, num_members) to (num_rows,)."""
        # Member by member: a matrix product, and a sum over an axis, give a row other last bits in other company.
        average = np.full(len(inputs), self.intercept)
        for column, scale, weight in zip(inputs.T, self.scales, self.weights, strict=True):
            average += weight * (expit(scale(column)) if self.space == "probability" else scale(column))
        if self.space == "value":
            return average
        logit = logit_of(average) if self.space == "probability" else average
        return np.clip(self.calibration(logit), -LARGEST_LOGIT, LARGEST_LOGIT)

    def of(self, present: Sequence[int]) -> "Combination":
        """The combination of the members at these positions, whose weights are made to sum up to what all did.

        Raises `ZeroDivisionError` when these members have no weight.
        """
        rest = [self.weights[position] for position in present]
        grown = sum(self.weights) / sum(rest)
        return dataclasses.replace(
            self,
            scales=tuple(self.scales[position] for position in present),
            weights=tuple(weight * grown for weight in rest),
        )

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Combination":
        """What `dataclasses.asdict` described."""
        return cls(
            **{
                **content,
                "scales": tuple(scales.from_dict(scale) for scale in content["scales"]),
                "weights": tuple(content["weights"]),
                "calibration": scales.from_dict(content["calibration"]),
            }
        )


def fit_combinations(
    task: str, kinds: Iterable[tuple[str, str]], target: np.ndarray, inputs: np.ndarray, is_score: np.ndarray
) -> dict[tuple[str, str], Combination]:
    """A combination for each pair of a combiner's and a calibrator's name, all fitted to the same rows.

    task: binary or regression. target: shape (num_rows,). inputs: shape (num_rows, num_members), logits, scores and values;
    is_score: shape (num_members,), for which members only the rank is known to mean something. Members that are alike share
    one weight, and one that says the same of each row has none, so neither can change the others'.
    """
    columns, twin, num_twins = np.unique(inputs, axis=1, return_inverse=True, return_counts=True)
    of_column = np.zeros(columns.shape[1], bool)
    of_column[twin] = is_score
    scaled_by: dict[bool, list[Scale]] = {}
    found = {}
    for combiner_name, calibrator_name in kinds:
        combiner = COMBINERS[task][combiner_name]
        if combiner.ranks not in scaled_by:
            scaled_by[combiner.ranks] = [
                _scale(task, target, column, combiner.ranks or bool(score))
                for column, score in zip(columns.T, of_column, strict=True)
            ]
        column_scales = scaled_by[combiner.ranks]
        scaled = np.stack([scale(column) for scale, column in zip(column_scales, columns.T, strict=True)], axis=1)
        averaged = expit(scaled) if combiner.space == "probability" else scaled
        useful = averaged.min(0) < averaged.max(0)
        weights = np.zeros(len(useful))
        if useful.any() and target.min() < target.max():
            weights[useful] = combiner.find(target, averaged[:, useful])
        if not weights.any():
            weights = equal_weights(target, averaged)
        weights = weights[twin] / num_twins[twin]
        average = averaged[:, twin] @ weights
        combination = Combination(
            scales=tuple(column_scales[column] for column in twin),
            space=combiner.space,
            weights=tuple(weights.tolist()),
            intercept=0.0 if combiner.space == "logit" else float(np.mean(target - average)),
            calibration=scales.IDENTITY,
        )
        if task == "binary":
            calibration = CALIBRATORS[calibrator_name](target, combination(inputs))
            combination = dataclasses.replace(combination, calibration=calibration)
        found[combiner_name, calibrator_name] = combination
    return found


def _scale(task: str, target: np.ndarray, column: np.ndarray, by_rank: bool) -> Scale:
    if task == "regression":
        return scales.IDENTITY
    return scales.rank_scale(target, column) if by_rank else scales.platt_scale(target, column)
