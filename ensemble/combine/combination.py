"""A combination: the scale of each member, their weights and a calibration, fitted to some rows."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ensemble.combine import scales
from ensemble.combine.losses import clipped_logit, expit, log_softmax, rank_logit, task_loss, weighted_mean, within_group
from ensemble.combine.scales import CALIBRATORS, Scale
from ensemble.combine.weights import COMBINERS, Space, equal_weights

LARGEST_LOGIT = 30.0  # a probability of exactly 0 or 1 would have an infinite loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combination:
    """Scales the members, averages them, and calibrates the average."""

    scales: tuple[Scale, ...]
    """One for each member, applied to the logit or logs of its probabilities, to its score or to its value."""
    space: Space
    """What is averaged: see `weights.Combiner`."""
    weights: tuple[float, ...]
    """One for each member."""
    intercept: float
    """Added to an average of probabilities or values, so that its mean on blend is that of the target; otherwise 0."""
    calibration: Scale
    """Applied to the logit of the average, or to its logs; the identity for values and for scores."""

    def __call__(self, inputs: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
        """The combined logits, values or scores (num_rows,) of `inputs`, (num_rows, num_members).

        With several classes, logs of probabilities: (num_rows, num_classes) from (num_rows, num_members, num_classes).
        group : (num_rows,), needed for scores, which are compared within it.
        """
        averaged = self.averaged_of(inputs, group)
        # One member after the other: in a matrix product or a sum over an axis, the last bits of a row depend on other rows
        average = np.full(averaged.shape[:-1], self.intercept)
        for column, weight in zip(np.moveaxis(averaged, -1, 0), self.weights, strict=True):
            average += weight * column
        if self.space in ("value", "standard", "rank"):
            return average
        if self.space == "log":
            return np.maximum(log_softmax(self.calibration(average)), -LARGEST_LOGIT)
        logit = clipped_logit(average) if self.space == "probability" else average
        return np.clip(self.calibration(logit), -LARGEST_LOGIT, LARGEST_LOGIT)

    def averaged_of(self, inputs: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
        """The scaled inputs, to which the weights apply: (num_rows, num_members) or (num_rows, num_classes, num_members)."""
        return scaled_to(self.space, self.scales, inputs, group)

    def subset(self, positions: Sequence[int]) -> "Combination":
        """The combination of the members at these positions; their weights are multiplied so that the sum stays the same.

        Raises `ZeroDivisionError` if these members have no weight.
        """
        weights = [self.weights[position] for position in positions]
        factor = sum(self.weights) / sum(weights)
        return dataclasses.replace(
            self,
            scales=tuple(self.scales[position] for position in positions),
            weights=tuple(weight * factor for weight in weights),
        )

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Combination":
        """From the result of `dataclasses.asdict`."""
        return cls(
            **{
                **content,
                "scales": tuple(scales.from_dict(scale) for scale in content["scales"]),
                "weights": tuple(content["weights"]),
                "calibration": scales.from_dict(content["calibration"]),
            }
        )


def scaled_to(space: Space, column_scales: Sequence[Scale], inputs: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """The inputs on the scale on which members are averaged; the last axis is that of the members."""
    columns = [scale(column) for scale, column in zip(column_scales, np.moveaxis(inputs, 1, 0), strict=True)]
    if space == "probability":
        columns = [expit(column) for column in columns]
    if space in WITHIN_GROUP:
        assert group is not None, "scores are compared within their group"
        columns = [WITHIN_GROUP[space](column, group) for column in columns]
    return np.stack(columns, axis=-1)


WITHIN_GROUP: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"standard": within_group, "rank": rank_logit}


def to_predictions(kind: str, average: np.ndarray) -> np.ndarray:
    """The predictions for a combination's logits, logs, values or scores."""
    if kind == "binary":
        return expit(average)
    return np.exp(average) if kind == "multiclass" else average


def fit_combinations(
    kind: str,
    methods: Iterable[tuple[str, str]],
    target: np.ndarray,
    inputs: np.ndarray,
    is_score: np.ndarray,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> dict[tuple[str, str], Combination]:
    """Fit a combination to the same rows for each method, a pair of names of a combiner and a calibrator.

    kind : of the task. target : (num_rows,). inputs : as for `Combination`. is_score : (num_members,), the members of a
    binary task of whose predictions only the rank has a meaning. group : (num_rows,), needed for a ranking. weight :
    (num_rows,), above 0 and with mean 1, or None for 1 each.

    With the calibrator `scales.NONE`, which must not be mixed with others, probabilities are not calibrated before they are
    averaged. Members with equal predictions share one weight, and constant members have none, so neither changes the weights
    of the others.
    """
    columns, distinct = distinct_members(inputs)
    num_equal = np.bincount(distinct)
    is_score_column = np.zeros(columns.shape[1], bool)
    is_score_column[distinct] = is_score
    loss = task_loss(kind, target, group, weight)
    scales_by_rank: dict[bool, list[Scale]] = {}
    last_combiner = ""
    combinations = {}
    for combiner_name, calibrator_name in methods:
        combiner = COMBINERS[kind][combiner_name]
        if combiner.ranks not in scales_by_rank:
            scales_by_rank[combiner.ranks] = [
                _scale(kind, target, column, combiner.ranks or bool(score), weight, calibrator_name)
                for column, score in zip(np.moveaxis(columns, 1, 0), is_score_column, strict=True)
            ]
        column_scales = scales_by_rank[combiner.ranks]
        if combiner_name != last_combiner:  # methods with the same combiner are consecutive, and differ in calibration only
            averaged = scaled_to(combiner.space, column_scales, columns, group)
            is_useful = (averaged.min(0) < averaged.max(0)).reshape(-1, averaged.shape[-1]).any(0)
            weights = np.zeros(len(is_useful))
            if is_useful.any() and target.min() < target.max():
                weights[is_useful] = combiner.find(target, averaged[..., is_useful], loss)
            if not weights.any():
                weights = equal_weights(target, averaged)
            weights, last_combiner = weights[distinct] / num_equal[distinct], combiner_name
        is_centred = combiner.space in ("probability", "value")
        error = target - averaged[..., distinct] @ weights if is_centred else np.zeros(1)
        combination = Combination(
            scales=tuple(column_scales[column] for column in distinct),
            space=combiner.space,
            weights=tuple(weights.tolist()),
            intercept=float(weighted_mean(error, weight)) if is_centred else 0.0,
            calibration=scales.IDENTITY,
        )
        if CALIBRATORS[kind] and calibrator_name != scales.NONE:
            calibration = CALIBRATORS[kind][calibrator_name](target, combination(inputs), weight)
            combination = dataclasses.replace(combination, calibration=calibration)
        combinations[combiner_name, calibrator_name] = combination
    return combinations


def distinct_members(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns of the members, in lexicographic order, and for each member the number of its column.

    The same as `np.unique(inputs, axis=1, return_inverse=True)`, which takes a minute for a million rows.
    """

    def compare(left_member: int, right_member: int) -> int:
        left, right = inputs[:, left_member].ravel(), inputs[:, right_member].ravel()
        row = int((left != right).argmax())
        return int(left[row] > right[row]) - int(left[row] < right[row])

    order = sorted(range(inputs.shape[1]), key=functools.cmp_to_key(compare))
    is_new = [True, *(compare(left, right) != 0 for left, right in itertools.pairwise(order))]
    number = np.empty(len(order), int)
    number[order] = np.cumsum(is_new) - 1
    return inputs[:, np.array(order)[is_new]], number


def _scale(
    kind: str, target: np.ndarray, column: np.ndarray, by_rank: bool, weight: np.ndarray | None, calibrator: str
) -> Scale:
    if calibrator == scales.NONE and not by_rank:
        return scales.IDENTITY
    if kind == "multiclass":
        return scales.class_temperature_scale(target, column, weight)
    if kind == "binary":
        return (scales.rank_scale if by_rank else scales.platt_scale)(target, column, weight)
    return scales.IDENTITY
