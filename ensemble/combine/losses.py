"""The losses that weights minimise, and the scales on which members are averaged."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ensemble.metrics.ranking import Ndcg
from ensemble.metrics.weighting import weighted_mean

ABSOLUTE_ERROR = "absolute_error"  # equal to `task.ABSOLUTE_ERROR`
LEVEL_STEPS = 100  # of `levelled`, which needs some 6
EPSILON = 1e-6  # some float32 probabilities are exactly 0 or 1; clipping keeps their logits finite


class Loss(NamedTuple):
    """A loss of targets, (num_rows,), and averages, (num_rows,) or (num_rows, num_classes)."""

    mean: Callable[[np.ndarray, np.ndarray], float]
    """The weighted mean loss over the rows, from targets and averages."""
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """The derivative of each row's loss with respect to its average, shaped like the average, times the row's weight divided
    by the mean weight; None for a loss that is constant almost everywhere."""
    weight: np.ndarray | None = None
    """(num_rows,), above 0; None for 1 each."""


def expit(logit: np.ndarray) -> np.ndarray:
    """The probabilities of logits, by SciPy, which cannot overflow. The import is here, since SciPy loads slowly."""
    from scipy.special import expit as probability

    return probability(logit)


def clipped_logit(probability: np.ndarray) -> np.ndarray:
    """The logits of probabilities, which are clipped to [1e-6, 1 - 1e-6]."""
    clipped = np.clip(probability, EPSILON, 1 - EPSILON)
    return np.log(clipped) - np.log1p(-clipped)


def clipped_log(probabilities: np.ndarray) -> np.ndarray:
    """The logs of probabilities, clipped to at least 1e-6."""
    return np.log(np.clip(probabilities, EPSILON, 1))


def log_sum(logs: np.ndarray) -> np.ndarray:
    """The log of the sum of exp(logs) over the last axis, the classes."""
    # Class by class: a sum over a short axis is slow, and the last bits of a row would depend on the other rows
    columns = [np.ascontiguousarray(column) for column in np.moveaxis(logs, -1, 0)]
    largest = functools.reduce(np.maximum, columns)
    total = np.zeros_like(largest)
    for column in columns:
        total += np.exp(column - largest)
    return np.log(total) + largest


def log_softmax(logs: np.ndarray) -> np.ndarray:
    """Logs of probabilities that sum to 1 over the last axis."""
    return logs - log_sum(logs)[..., None]


def within_group(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Scores, (num_rows,), standardised within their group; 0 in a group of equal scores."""
    _, number, size = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    starts = np.cumsum(size) - size
    centred = score - (np.add.reduceat(score[order], starts) / size)[number]
    spread = np.sqrt(np.add.reduceat(centred[order] ** 2, starts) / size)
    # In a group of equal scores, the standard deviation is only the rounding error of their mean
    is_constant = spread <= 1e-12 * np.maximum.reduceat(np.abs(score)[order], starts)
    return centred / np.where(is_constant, np.inf, spread)[number]


def levelled(logit: np.ndarray, group: np.ndarray | None, share: float) -> np.ndarray:
    """Logits, (num_rows,), with a number added in each group, so that the mean probability of its rows is `share`.

    A group stays as it is if less than one of its rows is expected to be positive, or if its logits are all equal. With a
    share of 0 all groups do.
    """
    if not share:
        return logit
    assert group is not None, "without groups no group has a share of positives"
    _, number, size = np.unique(group, return_inverse=True, return_counts=True)
    by_logit = np.argsort(logit)  # sorted in each group, so that no bit depends on the order of the rows
    ordered = logit[by_logit[np.argsort(number[by_logit], kind="stable")]]
    ends = np.cumsum(size)
    starts, least, most = ends - size, ordered[ends - size], ordered[ends - 1]
    is_moved = (size * share >= 1) & (least < most)
    wanted = np.log(share) - np.log1p(-share)
    lowest, highest, shift = wanted - most, wanted - least, np.zeros(len(size))
    for _ in range(LEVEL_STEPS):
        probability = expit(ordered + np.repeat(shift, size))
        mean = np.add.reduceat(probability, starts) / size
        if np.abs(mean - share)[is_moved].max(initial=0.0) < 1e-12:
            break
        lowest, highest = np.where(mean < share, shift, lowest), np.where(mean < share, highest, shift)
        with np.errstate(divide="ignore", invalid="ignore"):  # a step that is not finite is not inside
            slope = np.add.reduceat(probability * (1 - probability), starts) / size / (mean * (1 - mean))
            step = shift + (wanted - np.log(mean) + np.log1p(-mean)) / slope  # Newton's method for the logit of the mean
        shift = np.where((lowest < step) & (step < highest), step, (lowest + highest) / 2)
    return logit + np.where(is_moved, shift, 0.0)[number]


def rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The logit of each row's rank within its group, as a fraction in (0, 1); equal scores share their mean rank."""
    share = np.empty(len(score))
    for rows in np.split(np.argsort(group, kind="stable"), np.cumsum(np.unique(group, return_counts=True)[1])[:-1]):
        _, block, size = np.unique(score[rows], return_inverse=True, return_counts=True)
        share[rows] = (np.cumsum(size) - size / 2)[block] / len(rows)
    return clipped_logit(share)


def _log_losses(target: np.ndarray, logit: np.ndarray) -> np.ndarray:
    # log(1 + exp(logit)) in a form that cannot overflow; np.logaddexp takes six times as long
    return np.maximum(logit, 0) + np.log1p(np.exp(-np.abs(logit))) - target * logit


def _class_slope(target: np.ndarray, logs: np.ndarray) -> np.ndarray:
    slope = np.exp(log_softmax(logs))
    slope[np.arange(len(target)), target.astype(int)] -= 1
    return slope


RowLoss = Callable[[np.ndarray, np.ndarray], np.ndarray]
LOSSES: dict[str, tuple[RowLoss, RowLoss]] = {
    "binary": (_log_losses, lambda target, logit: expit(logit) - target),
    "multiclass": (lambda target, logs: log_sum(logs) - logs[np.arange(len(target)), target.astype(int)], _class_slope),
    "regression": (lambda target, value: (value - target) ** 2, lambda target, value: 2 * (value - target)),
    ABSOLUTE_ERROR: (lambda target, value: np.abs(value - target), lambda target, value: np.sign(value - target)),
}
"""By name of the loss, the loss of each row and its derivative."""


def task_loss(
    name: str, target: np.ndarray | None = None, group: np.ndarray | None = None, weight: np.ndarray | None = None
) -> Loss:
    """The loss with this name (`Task.loss`): the mean over rows of a loss of logits, logs of probabilities or values.

    For a ranking it is 1 − NDCG@10 of the scores. Only this loss needs `target` and `group`, (num_rows,) each.
    """
    if name == "ranking":
        assert target is not None
        assert group is not None, "a ranking needs groups"
        ndcg = Ndcg(target, group, weight)
        # Without a relevant row, all orders have the same loss
        return Loss(lambda _, score: 1 - ndcg(score) if ndcg.num_groups else 0.0, None, weight)
    row_loss, slope = LOSSES[name]

    def mean(target: np.ndarray, average: np.ndarray) -> float:
        return float(weighted_mean(row_loss(target, average), weight))

    if weight is None:
        return Loss(mean, slope)
    return Loss(mean, lambda target, average: (slope(target, average).T * (weight / weight.mean())).T, weight)


LOG_LOSS = task_loss("binary")
