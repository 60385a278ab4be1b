"""A combination: the scale of each member, their weights and a calibration, fitted to some rows."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.combine import scales
from ensemble.combine.losses import clipped_logit, expit, log_softmax, rank_logit, task_loss, within_group
from ensemble.combine.scales import CALIBRATORS, Scale
from ensemble.combine.weights import COMBINERS, Space, equal_weights
from ensemble.metrics.weighting import weight_of, weighted_mean

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
        averaged = scaled_to(self.space, self.scales, inputs, group)
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
        of_members = {"scales": tuple(map(scales.from_dict, content["scales"])), "weights": tuple(content["weights"])}
        return cls(**{**content, **of_members, "calibration": scales.from_dict(content["calibration"])})


def scaled_to(space: Space, column_scales: Sequence[Scale], inputs: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """The inputs on the scale on which members are averaged; the last axis of the result is that of the members."""
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


class Rows(NamedTuple):
    """Rows to which combinations are fitted, or on which they are compared.

    kind : of the task. target, group : (num_rows,). inputs : as for `Combination`. is_score : (num_members,), the members of
    a binary task of whose predictions only the rank has a meaning. weight : (num_rows,), above 0 and with mean 1; None for 1
    each.
    """

    kind: str
    target: np.ndarray
    inputs: np.ndarray
    is_score: np.ndarray
    group: np.ndarray
    weight: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> "Rows":
        """Some of the rows, by a mask or by their numbers."""
        parts = self.target[rows], self.inputs[rows], self.is_score, self.group[rows], weight_of(self.weight, rows)
        return Rows(self.kind, *parts)


def fit_combinations(rows: Rows, combiners: Sequence[str], calibrators: Sequence[str]) -> dict[tuple[str, str], Combination]:
    """Fit a combination to the rows for each combiner with each calibrator; the keys are pairs of their names.

    If `scales.NONE` is the calibrator, it must be the only one: probabilities are not calibrated before they are averaged
    either. Members with equal predictions share one weight, and constant members have none, so neither changes the weights
    of the others.
    """
    kind, target, weight = rows.kind, rows.target, rows.weight
    columns, distinct = distinct_members(rows.inputs)
    num_equal = np.bincount(distinct)
    is_score = np.zeros(columns.shape[1], bool)
    is_score[distinct] = rows.is_score
    loss = task_loss(kind, target, rows.group, weight)
    scales_by_rank = {
        ranks: [
            _scale(kind, target, column, ranks or bool(score), weight, scales.NONE not in calibrators)
            for column, score in zip(np.moveaxis(columns, 1, 0), is_score, strict=True)
        ]
        for ranks in {COMBINERS[kind][name].ranks for name in combiners}
    }
    combinations = {}
    for combiner_name in combiners:
        combiner = COMBINERS[kind][combiner_name]
        column_scales = scales_by_rank[combiner.ranks]
        averaged = scaled_to(combiner.space, column_scales, columns, rows.group)
        is_useful = (averaged.min(0) < averaged.max(0)).reshape(-1, averaged.shape[-1]).any(0)
        weights = np.zeros(len(is_useful))
        if is_useful.any() and target.min() < target.max():
            weights[is_useful] = combiner.find(target, averaged[..., is_useful], loss)
        if not weights.any():
            weights = equal_weights(target, averaged)
        weights = weights[distinct] / num_equal[distinct]
        intercept = 0.0
        if combiner.space in ("probability", "value"):
            intercept = float(weighted_mean(target - averaged[..., distinct] @ weights, weight))
        combination = Combination(
            scales=tuple(column_scales[column] for column in distinct),
            space=combiner.space,
            weights=tuple(weights.tolist()),
            intercept=intercept,
            calibration=scales.IDENTITY,
        )
        for calibrator in calibrators:
            calibrate = CALIBRATORS[kind].get(calibrator)  # None for `scales.NONE`, and for values and scores
            calibration = calibrate(target, combination(rows.inputs), weight) if calibrate else scales.IDENTITY
            combinations[combiner_name, calibrator] = dataclasses.replace(combination, calibration=calibration)
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
    kind: str, target: np.ndarray, column: np.ndarray, by_rank: bool, weight: np.ndarray | None, is_calibrated: bool
) -> Scale:
    if by_rank and kind == "binary":
        return scales.rank_scale(target, column, weight)
    if kind == "multiclass" and is_calibrated:
        return scales.class_temperature_scale(target, column, weight)
    if kind == "binary" and is_calibrated:
        return scales.platt_scale(target, column, weight)
    return scales.IDENTITY
