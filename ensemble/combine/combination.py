"""One combination: each member's scale, their weights and a calibration, as fitted to some rows."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ensemble.combine import scales
from ensemble.combine.losses import expit, log_softmax, logit_of, loss_of, mean_of, rank_logit, within_group
from ensemble.combine.scales import CALIBRATORS, Scale
from ensemble.combine.weights import COMBINERS, Space, equal_weights

LARGEST_LOGIT = 30.0  # a probability of exactly 0 or 1 would have an infinite loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Combination:
    """Scale each member, average what comes out, calibrate the average."""

    scales: tuple[Scale, ...]
    """For each member: from the logit or logs of its probabilities, from its score or from its value."""
    space: Space
    """What is averaged, as `weights.Combiner` says."""
    weights: tuple[float, ...]
    """Of the members."""
    intercept: float
    """Added to an average of probabilities or values, so that its mean on blend is that of the target; else 0."""
    calibration: Scale
    """Of the average's logit, or of its logs; the identity for values and for scores."""

    def __call__(self, inputs: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
        """The logit, the value or the score of each row of `inputs`: shape (num_rows, num_members) to (num_rows,).

        Of classes the logs of their probabilities: (num_rows, num_members, num_classes) to (num_rows, num_classes). `group`,
        (num_rows,), is for scores, which are compared within it.
        """
        averaged = self.averaged_of(inputs, group)
        # Member by member: a matrix product, and a sum over an axis, give a row other last bits in other company.
        average = np.full(averaged.shape[:-1], self.intercept)
        for column, weight in zip(np.moveaxis(averaged, -1, 0), self.weights, strict=True):
            average += weight * column
        if self.space in ("value", "standard", "rank"):
            return average
        if self.space == "log":
            return np.maximum(log_softmax(self.calibration(average)), -LARGEST_LOGIT)
        logit = logit_of(average) if self.space == "probability" else average
        return np.clip(self.calibration(logit), -LARGEST_LOGIT, LARGEST_LOGIT)

    def averaged_of(self, inputs: np.ndarray, group: np.ndarray | None = None) -> np.ndarray:
        """What the weights are of: shape (num_rows, num_members), of classes (num_rows, num_classes, num_members)."""
        return scaled_to(self.space, self.scales, inputs, group)

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


def scaled_to(space: Space, column_scales: Sequence[Scale], inputs: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Each member's column of `inputs` by its scale, on the scale where members are averaged; the members come last."""
    columns = [scale(column) for scale, column in zip(column_scales, np.moveaxis(inputs, 1, 0), strict=True)]
    if space == "probability":
        columns = [expit(column) for column in columns]
    if space in WITHIN_GROUP:
        assert group is not None, "scores are compared within their group"
        columns = [WITHIN_GROUP[space](column, group) for column in columns]
    return np.stack(columns, axis=-1)


WITHIN_GROUP: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"standard": within_group, "rank": rank_logit}


def answer_of(kind: str, average: np.ndarray) -> np.ndarray:
    """The forecast that a combination's logits, logs, values or scores stand for."""
    if kind == "binary":
        return expit(average)
    return np.exp(average) if kind == "multiclass" else average


def fit_combinations(
    kind: str,
    ways: Iterable[tuple[str, str]],
    target: np.ndarray,
    inputs: np.ndarray,
    is_score: np.ndarray,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> dict[tuple[str, str], Combination]:
    """A combination for each pair of a combiner's and a calibrator's name, all fitted to the same rows.

    kind: of the task. target: shape (num_rows,). inputs: as `Combination` takes them; is_score: shape (num_members,), for
    which members of a binary task only the rank is known to mean something. group: (num_rows,), needed for a ranking.
    weight: (num_rows,), above 0 and with mean 1, or None for 1 each.
    With the calibrator `scales.NONE`, which is not to be mixed with others, probabilities are averaged as they are.
    Members that are alike share one weight, and one that says the same of each row has none, so neither can change the
    others'.
    """
    columns, twin = distinct_members(inputs)
    num_twins = np.bincount(twin)
    of_column = np.zeros(columns.shape[1], bool)
    of_column[twin] = is_score
    loss = loss_of(kind, target, group, weight)
    scaled_by: dict[bool, list[Scale]] = {}
    weighted = ""
    found = {}
    for combiner_name, calibrator_name in ways:
        combiner = COMBINERS[kind][combiner_name]
        if combiner.ranks not in scaled_by:
            scaled_by[combiner.ranks] = [
                _scale(kind, target, column, combiner.ranks or bool(score), weight, calibrator_name)
                for column, score in zip(np.moveaxis(columns, 1, 0), of_column, strict=True)
            ]
        column_scales = scaled_by[combiner.ranks]
        if combiner_name != weighted:  # ways with the same combiner stand together, and differ in calibration alone
            averaged = scaled_to(combiner.space, column_scales, columns, group)
            useful = (averaged.min(0) < averaged.max(0)).reshape(-1, averaged.shape[-1]).any(0)
            weights = np.zeros(len(useful))
            if useful.any() and target.min() < target.max():
                weights[useful] = combiner.find(target, averaged[..., useful], loss)
            if not weights.any():
                weights = equal_weights(target, averaged)
            weights, weighted = weights[twin] / num_twins[twin], combiner_name
        is_centred = combiner.space in ("probability", "value")
        combination = Combination(
            scales=tuple(column_scales[column] for column in twin),
            space=combiner.space,
            weights=tuple(weights.tolist()),
            intercept=float(mean_of(target - averaged[..., twin] @ weights, weight)) if is_centred else 0.0,
            calibration=scales.IDENTITY,
        )
        if CALIBRATORS[kind] and calibrator_name != scales.NONE:
            calibration = CALIBRATORS[kind][calibrator_name](target, combination(inputs), weight)
            combination = dataclasses.replace(combination, calibration=calibration)
        found[combiner_name, calibrator_name] = combination
    return found


def distinct_members(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members' columns that differ, in rising order of their first rows, and for each member which of them it is.

    What `np.unique(inputs, axis=1, return_inverse=True)` gives, which takes a minute for a million rows.
    """

    def compare(one: int, other: int) -> int:
        there, here = inputs[:, one].ravel(), inputs[:, other].ravel()
        at = int((there != here).argmax())
        return int(there[at] > here[at]) - int(there[at] < here[at])

    order = sorted(range(inputs.shape[1]), key=functools.cmp_to_key(compare))
    is_first = [True, *(compare(one, other) != 0 for one, other in itertools.pairwise(order))]
    twin = np.empty(len(order), int)
    twin[order] = np.cumsum(is_first) - 1
    return inputs[:, [member for member, first in zip(order, is_first, strict=True) if first]], twin


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
