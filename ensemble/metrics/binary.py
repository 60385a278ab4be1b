"""Metrics of probabilities for a target of 0 and 1."""

from typing import NamedTuple

import numpy as np

from ensemble.metrics.blocks import starts_of
from ensemble.metrics.weighting import checked, refuse, weighted_mean

TOP_FRACTION = 0.05
CURVE_POINTS = 200  # at most, of a precision-recall curve
CALIBRATION_BINS = 20  # of about equal weight, so that the last bin contains the 5 % with the highest predictions
ROUNDING = 1e-6
"""By how much a probability may be below 0 or above 1, as after the rounding of an average of probabilities."""


class Reliability(NamedTuple):
    """Mean prediction, in ascending order, share of positives and number (or weight) of the rows of each non-empty bin."""

    prediction: np.ndarray
    observed: np.ndarray
    num_rows: np.ndarray


def accuracy(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The share of rows whose target is predicted correctly: a probability of at least 0.5 predicts 1, a lower one 0."""
    target, prediction = _checked(target, prediction)
    return float(weighted_mean(((prediction >= 0.5) == target).astype(float), weight))


class PrecisionRecall(NamedTuple):
    """Points of the precision-recall curve, (num_points,) each, with decreasing threshold and increasing recall."""

    recall: np.ndarray
    precision: np.ndarray
    threshold: np.ndarray


def average_precision(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The mean over the positives of the precision at their rank; 0 without any. prediction : any scores, (num_rows,)."""
    positive, mass = _blocks(target, prediction, weight)
    return _average_precision(positive, mass) if positive.any() else 0.0


def _average_precision(positive: np.ndarray, mass: np.ndarray) -> float:
    above = np.cumsum(mass)
    return float((positive * np.cumsum(positive) / np.where(above > 0, above, 1)).sum() / positive.sum())


def _blocks(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The weight of the positives and of all rows in each block of equal predictions, the highest prediction first."""
    weight = np.ones(len(target)) if weight is None else weight
    prediction = np.asarray(prediction, float)  # the negative of an unsigned integer is another order
    order = np.argsort(-prediction, kind="stable")
    starts = starts_of(prediction[order])
    return np.add.reduceat((target * weight)[order], starts), np.add.reduceat(weight[order], starts)


def roc_auc(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The share of the pairs of a positive and a negative row in which the positive one has the higher prediction.

    A tie counts half; NaN without a pair. prediction : any scores, (num_rows,).
    """
    return _roc_auc(*_blocks(target, prediction, weight))


def _roc_auc(positive: np.ndarray, mass: np.ndarray) -> float:
    negative = mass - positive
    below = negative.sum() - np.cumsum(negative)
    pairs = positive.sum() * negative.sum()
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else float("nan")


def log_loss(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The mean of −log(probability of the outcome) in nats, with probabilities clipped to [2.2e-16, 1 - 2.2e-16]."""
    return float(weighted_mean(_log_losses(*_checked(target, prediction)), weight))


def reliability(
    target: np.ndarray, prediction: np.ndarray, num_bins: int = CALIBRATION_BINS, weight: np.ndarray | None = None
) -> Reliability:
    """Predicted and observed share of positives, in bins with equally many rows, or equal weight.

    weight : (num_rows,), above 0; None for 1 each. Rows with equal predictions stay together, so there can be fewer bins
    than `num_bins`, of unequal size.
    """
    target, prediction = _checked(target, prediction)
    bins = equal_bins(prediction, num_bins, weight)
    num_rows = np.bincount(bins, weight, num_bins)
    has_rows = num_rows > 0
    mean_prediction, observed = (
        np.bincount(bins, values if weight is None else values * weight, num_bins)[has_rows] / num_rows[has_rows]
        for values in (prediction, target)
    )
    return Reliability(mean_prediction, observed, num_rows[has_rows])


def precision_recall(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> PrecisionRecall:
    """At most `CURVE_POINTS` points of the precision-recall curve, evenly spaced in recall, both ends included.

    weight : (num_rows,), above 0. Without positives there is no curve: the arrays are empty.
    """
    target, prediction = _checked(target, prediction)
    weight = np.ones(len(target)) if weight is None else weight
    order = np.argsort(-prediction, kind="stable")
    last = np.flatnonzero(np.append(np.diff(prediction[order]) != 0, True))  # last row of each block of equal predictions
    hits, mass = (np.cumsum(values[order])[last] for values in (target * weight, weight))
    if hits[-1] == 0:
        return PrecisionRecall(np.empty(0), np.empty(0), np.empty(0))
    keep = np.unique(np.append(np.searchsorted(hits, np.linspace(hits[0], hits[-1], CURVE_POINTS - 1)), len(last) - 1))
    return PrecisionRecall(hits[keep] / hits[-1], hits[keep] / mass[keep], prediction[order][last[keep]])


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64, and predictions from 0 to 1; `UserError` for a target other than 0 and 1, and for no probability."""
    target, prediction = checked(target, prediction)
    is_valid = (target == 0) | (target == 1)
    refuse(~is_valid, target, "a target must be 0 or 1 to be scored, but that of row {} is {:g}: check the split")
    is_valid = (prediction >= -ROUNDING) & (prediction <= 1 + ROUNDING)
    refuse(~is_valid, prediction, "the prediction of row {} is {:g}, not a probability: calibrate the member first")
    return target, np.clip(prediction, 0, 1)


def _log_losses(target: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    tiny = np.finfo(float).eps
    clipped = np.clip(prediction, tiny, 1 - tiny)
    return -np.where(target == 1, np.log(clipped), np.log1p(-clipped))


class BinaryScorer:
    """A `bootstrap.Scorer`; all sorting is done once, in the constructor.

    A block consists of rows with equal predictions. `order` sorts by decreasing prediction; `group_order` by group, then by
    decreasing prediction, with blocks that also end where a group ends.
    """

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        self.target, prediction = _checked(target, prediction)
        groups, group = np.unique(group, return_inverse=True)
        assert group.shape == self.target.shape
        self.group = group
        self.num_groups = len(groups)
        # One row for each metric that is a mean over rows, so that one product with the weights gives all of them
        self.row_losses = np.stack(
            [
                _log_losses(self.target, prediction),
                (prediction - self.target) ** 2,
                (prediction >= 0.5) == self.target,
                self.target == 0,
            ]
        )
        self.order = np.argsort(-prediction, kind="stable")
        self.starts = starts_of(prediction[self.order])
        self.sorted_target = self.target[self.order]
        self.block_prediction = prediction[self.order][self.starts]

        if self.num_groups == 1:  # then both orders are the same
            self.block_group = np.zeros(len(self.starts), np.intp)
            return
        self.group_order = np.lexsort((-prediction, group))
        sorted_group = group[self.group_order]
        self.group_starts = starts_of(prediction[self.group_order], sorted_group)
        self.group_target = self.target[self.group_order]
        self.block_group = sorted_group[self.group_starts]

    def scores(self, weight: np.ndarray, weight_before_draw: np.ndarray | None = None) -> np.ndarray:
        """All metrics in the order of `METRICS["binary"]`, (num_metrics,).

        weight_before_draw : the weights before whole groups were drawn, so that a group drawn twice is two groups; None
            otherwise.
        """
        sorted_weight = weight[self.order]
        mass = np.add.reduceat(sorted_weight, self.starts)
        positive = np.add.reduceat(sorted_weight * self.sorted_target, self.starts)
        num_rows, num_positive = mass.sum(), positive.sum()
        log_loss, brier, accuracy, always_no = self.row_losses @ weight / num_rows

        average_precision = _average_precision(positive, mass) if num_positive > 0 else np.nan
        roc_auc = _roc_auc(positive, mass)
        bins = _equal_mass_bins(mass, CALIBRATION_BINS)
        gap = np.bincount(bins, positive - mass * self.block_prediction, CALIBRATION_BINS)
        calibration_error = np.abs(gap).sum() / num_rows

        if self.num_groups > 1:
            sorted_weight = weight[self.group_order]
            mass = np.add.reduceat(sorted_weight, self.group_starts)
            positive = np.add.reduceat(sorted_weight * self.group_target, self.group_starts)
        times = np.ones(self.num_groups)
        if weight_before_draw is not None:
            times = np.bincount(self.group, weight) / np.maximum(np.bincount(self.group, weight_before_draw), 1e-300)
        precision = self._precision_at_top(mass, positive, times)
        lift = precision * num_rows / num_positive if num_positive > 0 else np.nan
        return np.array(
            [average_precision, roc_auc, log_loss, brier, calibration_error, precision, lift, accuracy, always_no]
        )

    def _precision_at_top(self, mass: np.ndarray, positive: np.ndarray, times: np.ndarray) -> float:
        """The precision, over all groups together, of the 5 % of the rows of each group with the highest predictions.

        mass, positive : the weight of all rows, and of the positives, in each block of a group. times : (num_groups,), how
        many times each group counts.
        """
        group_mass = np.bincount(self.block_group, mass, self.num_groups)
        size = group_mass / np.where(times > 0, times, 1)
        # The small number makes 5 % of 60 rows equal to 3, even if the product is rounded down
        top_mass = times * np.minimum(np.maximum(np.floor(size * TOP_FRACTION + 1e-9), 1), size)
        mass_above = np.cumsum(mass) - mass - (np.cumsum(group_mass) - group_mass)[self.block_group]
        taken = np.clip(top_mass[self.block_group] - mass_above, 0, mass)
        return (positive * taken / np.where(mass > 0, mass, 1)).sum() / top_mass.sum()


def equal_bins(values: np.ndarray, num_bins: int, weight: np.ndarray | None = None) -> np.ndarray:
    """The number of the bin of each value, from 0. All bins have about equally many values, or about equal weight. Equal
    values are in one bin, so bins may be empty."""
    block = np.unique(values, return_inverse=True)[1]
    return _equal_mass_bins(np.bincount(block, weight), num_bins)[block]


def _equal_mass_bins(mass: np.ndarray, num_bins: int) -> np.ndarray:
    """For each block of rows, in sorted order, the number of the bin in which its middle lies. A block is never divided."""
    middle = np.cumsum(mass) - mass / 2
    return np.minimum((middle * (num_bins / mass.sum())).astype(np.int64), num_bins - 1)
