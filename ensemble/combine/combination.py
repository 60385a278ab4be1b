"""A combination of members: a scale for each member, the weights of the average and its calibration, fitted to some rows."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ensemble.combine import scales
from ensemble.combine.losses import (
    ABSOLUTE_ERROR,
    clipped_logit,
    expit,
    levelled,
    log_softmax,
    rank_logit,
    task_loss,
    within_group,
)
from ensemble.combine.scales import CALIBRATORS, Scale
from ensemble.combine.weights import COMBINERS, LOGISTIC, Space, equal_weights
from ensemble.metrics.weighting import weight_of, weighted_mean, weighted_median

NEAR = 0.2  # the share of the rows, those next to a median, from which the density at the median is estimated
CANCELLED = 1e-6  # weights of both signs cancel if their sum is smaller than this share of the sum of their sizes
MOST_VARIED = 2.0  # relative to the variance of the shares of groups of independent rows
LARGEST_LOGIT = 30.0  # results are clipped, since a probability of exactly 0 or 1 can have an infinite loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combination:
    """Scales the members, averages them, and calibrates the average."""

    scales: tuple[Scale, ...]
    """One for each member, applied to the logits or logs of its probabilities, to its scores or to its values."""
    space: Space
    """The kind of numbers that are averaged, such as logits: see `weights.Combiner.space`."""
    weights: tuple[float, ...]
    """One for each member."""
    intercept: float
    """Added to an average of probabilities or values, to correct its level and its mean error (the median error, if the
    absolute error is minimised). Of logits with logistic weights that are not calibrated, the intercept of the logistic
    regression; else 0."""
    calibration: Scale
    """Applied to the averaged logits or logs, or to the logit of an averaged probability; the identity for values and
    scores."""
    share: float = 0.0
    """The share of positives, to which the mean probability of each group is moved (`losses.levelled`); 0 to move none."""

    def __call__(self, inputs: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
        """The combined logits, values or scores (num_rows,) of `inputs`, (num_rows, num_members).

        With several classes, logs of probabilities: (num_rows, num_classes) from (num_rows, num_members, num_classes).
        group : (num_rows,), needed for scores of a ranking, which are only compared within a group, and to move groups to
        `share`.
        """
        scaled = scaled_to(self.space, self.scales, inputs, group, self.share)
        # One member after the other: in a matrix product or a sum over an axis, the last bits of a row depend on other rows
        average = np.full(scaled.shape[:-1], self.intercept)
        weights = self.weights
        if self.space == "rank":  # rows with the same ranks, of whichever members, tie: rounding would order them
            scaled, weights = np.sort(scaled * np.array(weights)), (1.0,) * len(weights)
        for column, weight in zip(np.moveaxis(scaled, -1, 0), weights, strict=True):
            average += weight * column
        if self.space in ("value", "standard", "rank"):
            return average
        if self.space == "log":
            return np.maximum(log_softmax(self.calibration(average)), -LARGEST_LOGIT)
        logit = clipped_logit(average) if self.space == "probability" else average
        return np.clip(levelled(self.calibration(logit), group, self.share), -LARGEST_LOGIT, LARGEST_LOGIT)

    def subset(self, positions: Sequence[int]) -> "Combination":
        """The combination of the members at these positions. Their weights are rescaled to the sum of all weights.

        Raises `ZeroDivisionError` if the weights of these members sum to 0, and those of all members do not.
        """
        weights = [self.weights[position] for position in positions]
        total, kept = sum(self.weights), sum(weights)
        factor = 1.0 if kept == total else total / kept
        return dataclasses.replace(
            self,
            scales=tuple(self.scales[position] for position in positions),
            weights=tuple(weight * factor for weight in weights),
        )

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Combination":
        """Create a combination from the result of `dataclasses.asdict`."""
        by_member = {"scales": tuple(map(scales.from_dict, content["scales"])), "weights": tuple(content["weights"])}
        return cls(**{**content, **by_member, "calibration": scales.from_dict(content["calibration"])})


def scaled_to(
    space: Space, column_scales: Sequence[Scale], inputs: np.ndarray, group: np.ndarray | None, share: float = 0.0
) -> np.ndarray:
    """The inputs after each member's scale, converted to the space in which they are averaged; members are the last axis.

    share : as in `Combination`.
    """
    columns = [scale(column) for scale, column in zip(column_scales, np.moveaxis(inputs, 1, 0), strict=True)]
    columns = [levelled(column, group, share) for column in columns]
    if space == "probability":
        columns = [expit(column) for column in columns]
    if space in WITHIN_GROUP:
        assert group is not None, "scores are only compared within a group"
        columns = [WITHIN_GROUP[space](column, group) for column in columns]
    return np.stack(columns, axis=-1)


WITHIN_GROUP: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"standard": within_group, "rank": rank_logit}


def to_predictions(kind: str, average: np.ndarray) -> np.ndarray:
    """Convert a combination's logits or logs to probabilities; values and scores stay as they are. kind : kind of task."""
    if kind == "binary":
        return expit(average)
    return np.exp(average) if kind == "multiclass" else average


class Rows(NamedTuple):
    """Rows to which combinations are fitted, or on which they are compared.

    kind : kind of task. loss : the name of its loss. target, group : (num_rows,). inputs : as for `Combination`. is_score :
    (num_members,), True for members of a binary task whose predictions are scores, of which only the order has a meaning.
    weight : (num_rows,), above 0; their mean is 1 over all of blend, and may differ for a part of it. None for 1 each.
    is_relative : as in `Task`.
    """

    kind: str
    loss: str
    target: np.ndarray
    inputs: np.ndarray
    is_score: np.ndarray
    group: np.ndarray
    weight: np.ndarray | None = None
    is_relative: bool = False

    def at(self, rows: np.ndarray) -> "Rows":
        """The rows that a mask or an array of row numbers selects."""
        parts = self.target[rows], self.inputs[rows], self.is_score, self.group[rows], weight_of(self.weight, rows)
        return Rows(self.kind, self.loss, *parts, self.is_relative)


def fit_combinations(rows: Rows, combiners: Sequence[str], calibrators: Sequence[str]) -> dict[tuple[str, str], Combination]:
    """Fit a combination to the rows for each combiner with each calibrator; the keys are (combiner, calibrator) names.

    With `scales.NONE` the members' probabilities are not calibrated before averaging either, nor are groups moved to their
    share of positives. Members with equal predictions share the weight of one member, and constant members get the weight
    0, so such members do not change the weights of the others. If no member gets a weight, the weights are equal.
    """
    is_calibrated = scales.NONE not in calibrators
    if not is_calibrated and len(calibrators) > 1:
        others = [name for name in calibrators if name != scales.NONE]
        return {**fit_combinations(rows, combiners, others), **fit_combinations(rows, combiners, [scales.NONE])}
    kind, target, weight = rows.kind, rows.target, rows.weight
    share = _share_of_groups(rows) if rows.is_relative and is_calibrated else 0.0
    columns, column_of_member = distinct_members(rows.inputs)
    num_equal = np.bincount(column_of_member)
    is_score = np.zeros(columns.shape[1], bool)
    is_score[column_of_member] = rows.is_score
    loss = task_loss(rows.loss, target, rows.group, weight)
    scales_by_ranks = {
        ranks: [
            _scale(rows, column, ranks or bool(score), is_calibrated, share)
            for column, score in zip(np.moveaxis(columns, 1, 0), is_score, strict=True)
        ]
        for ranks in {COMBINERS[kind][name].ranks for name in combiners}
    }
    scaled_once = functools.cache(lambda ranks, space: scaled_to(space, scales_by_ranks[ranks], columns, rows.group, share))
    combinations = {}
    for combiner_name in combiners:
        combiner = COMBINERS[kind][combiner_name]
        column_scales, scaled = scales_by_ranks[combiner.ranks], scaled_once(combiner.ranks, combiner.space)
        is_varied = (scaled.min(0) < scaled.max(0)).reshape(-1, scaled.shape[-1]).any(0)
        weights = np.zeros(len(is_varied))
        if is_varied.any() and target.min() < target.max():
            weights[is_varied] = combiner.find(target, scaled[..., is_varied], loss)
        if not weights.any():
            weights = equal_weights(target, scaled)
        weights = weights[column_of_member] / num_equal[column_of_member]
        intercept = 0.0
        if combiner.space in ("probability", "value"):
            intercept = _intercept(rows, scaled[..., column_of_member] @ weights, weights)
        elif combiner_name == LOGISTIC and not is_calibrated:
            intercept = scales.logistic_intercept(target, scaled[..., column_of_member] @ weights, weight)
        combination = Combination(
            scales=tuple(column_scales[column] for column in column_of_member),
            space=combiner.space,
            weights=tuple(weights.tolist()),
            intercept=intercept,
            calibration=scales.IDENTITY,
            share=share,
        )
        calibrate_by_name = {name: CALIBRATORS[kind].get(name) for name in calibrators}  # None for values and scores
        average = combination(rows.inputs, rows.group) if any(calibrate_by_name.values()) else None
        for calibrator, calibrate in calibrate_by_name.items():
            calibration = calibrate(target, average, weight) if calibrate and average is not None else scales.IDENTITY
            combinations[combiner_name, calibrator] = dataclasses.replace(combination, calibration=calibration)
    return combinations


def _share_of_groups(rows: Rows) -> float:
    """The share of positives in each group; 0 if all rows are alike, or if the shares of groups vary by `MOST_VARIED`."""
    share = float(weighted_mean(rows.target, rows.weight))
    if not 0 < share < 1:
        return 0.0
    _, number, size = np.unique(rows.group, return_inverse=True, return_counts=True)
    excess = np.bincount(number, rows.target) - size * share
    variance = (excess**2 / (size * share * (1 - share))).sum() / max(len(size) - 1, 1)
    return share if variance < MOST_VARIED else 0.0


def _intercept(rows: Rows, average: np.ndarray, weights: np.ndarray) -> float:
    """The number to add to the average of members with these weights; average : (num_rows,).

    It gives the average the level of its members, and adds their mean error, shrunk by the James-Stein factor
    1 - (standard error / mean error)², or 0 if the standard error over groups is the larger one. If the mean over all groups
    is near 0, that of some groups is opposite to that of the others, so adding all of it would make cross-fitted errors
    larger. The median replaces the mean if the absolute error is minimised. If the weights cancel, as those of a member and
    its negative, the average has no level, and all of the mean error is added.
    """
    weight = np.ones(len(average)) if rows.weight is None else rows.weight
    level = float(np.average(average, weights=weight))
    total = weights.sum()
    is_cancelled = abs(total) <= CANCELLED * np.abs(weights).sum()
    to_level = 0.0 if is_cancelled else level / total - level
    errors = rows.target - average - to_level
    center, influence = (_median if rows.loss == ABSOLUTE_ERROR else _mean)(errors, weight)
    if is_cancelled:
        return center
    parts = np.bincount(np.unique(rows.group, return_inverse=True)[1], influence * weight) / weight.sum()
    standard_error = float(np.sqrt((parts**2).sum() * len(parts) / max(len(parts) - 1, 1)))
    is_larger = len(parts) > 1 and abs(center) > standard_error  # with one group, the standard error is unknown
    return to_level + (center * (1 - (standard_error / center) ** 2) if is_larger else 0.0)


def _mean(values: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean, and the influence of each value on it, (num_rows,)."""
    mean = float(np.average(values, weights=weight))
    return mean, values - mean


def _median(values: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The median, and the influence of each value on it, (num_rows,): its sign divided by twice the density at the median.

    The density is `NEAR` divided by twice the distance within which this share of the rows is.
    """
    median = weighted_median(values, weight)
    distance = np.quantile(np.abs(values - median), NEAR, weights=weight, method="inverted_cdf")
    return median, np.sign(values - median) * float(distance) / NEAR


def distinct_members(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns of the members, in lexicographic order, and for each member the number of its column.

    The result equals `np.unique(inputs, axis=1, return_inverse=True)`, which would take a minute for a million rows.
    """

    def compare(left_member: int, right_member: int) -> int:
        left, right = inputs[:, left_member].ravel(), inputs[:, right_member].ravel()
        row = int((left != right).argmax())
        return int(left[row] > right[row]) - int(left[row] < right[row])

    order = sorted(range(inputs.shape[1]), key=functools.cmp_to_key(compare))
    is_new = [True, *(compare(left, right) != 0 for left, right in itertools.pairwise(order))]
    column_of_member = np.empty(len(order), int)
    column_of_member[order] = np.cumsum(is_new) - 1
    return inputs[:, np.array(order)[is_new]], column_of_member


def _scale(rows: Rows, column: np.ndarray, by_rank: bool, is_calibrated: bool, share: float) -> Scale:
    if by_rank and rows.kind == "binary":
        return scales.rank_scale(rows.target, column, rows.weight)
    if rows.kind == "multiclass" and is_calibrated:
        return scales.class_temperature_scale(rows.target, column, rows.weight)
    if rows.kind == "binary" and is_calibrated:
        return scales.platt_scale(rows.target, levelled(column, rows.group, share), rows.weight)
    return scales.IDENTITY
