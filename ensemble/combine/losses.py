"""What the weights minimise, for each kind of task, and the scales on which members are averaged."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ensemble.metrics.ranking import Ndcg

EPSILON = 1e-6  # float32 members say exactly 0 or 1 now and then: their logits must stay finite


class Loss(NamedTuple):
    """A loss of targets, (num_rows,), and averages, (num_rows,) or (num_rows, num_classes)."""

    mean: Callable[[np.ndarray, np.ndarray], float]
    """The mean over the rows, by their weight."""
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """The derivative of each row's loss by its average, of the average's shape; none where it is level almost everywhere.
    With weights, times the row's weight by the mean weight."""
    weight: np.ndarray | None = None
    """(num_rows,), above 0; None for 1 each."""


def mean_of(values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """The mean over the rows, the first axis of `values`; `weight` is (num_rows,), or None for 1 each."""
    return values.mean(0) if weight is None else weight @ values / weight.sum()


def expit(logit: np.ndarray) -> np.ndarray:
    """The probability, by SciPy, which cannot overflow."""
    from scipy.special import expit as probability

    return probability(logit)


def logit_of(probability: np.ndarray) -> np.ndarray:
    """The log odds of a probability, drawn in to 1e-6 from 0 and 1."""
    clipped = np.clip(probability, EPSILON, 1 - EPSILON)
    return np.log(clipped) - np.log1p(-clipped)


def log_of(probabilities: np.ndarray) -> np.ndarray:
    """The logs of the probabilities of classes, which are the last axis; none is taken for less than 1e-6."""
    return np.log(np.clip(probabilities, EPSILON, 1))


def log_sum(logs: np.ndarray) -> np.ndarray:
    """The log of the sum of exp(logs) over the last axis, the classes."""
    # Class by class: a sum over a short axis is slow, and gives a row other last bits in other company.
    columns = [np.ascontiguousarray(column) for column in np.moveaxis(logs, -1, 0)]
    largest = columns[0]
    for column in columns[1:]:
        largest = np.maximum(largest, column)
    total = np.zeros_like(largest)
    for column in columns:
        total += np.exp(column - largest)
    return np.log(total) + largest


def log_softmax(logs: np.ndarray) -> np.ndarray:
    """The logs of probabilities that sum to 1 over the last axis, from logs of shares."""
    return logs - log_sum(logs)[..., None]


def within_group(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Scores, (num_rows,), less their group's mean, by its spread; all 0 in a group whose rows score alike."""
    _, number, size = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    starts = np.cumsum(size) - size
    centred = score - (np.add.reduceat(score[order], starts) / size)[number]
    spread = np.sqrt(np.add.reduceat(centred[order] ** 2, starts) / size)
    # What a mean's rounding leaves of a constant group is no spread.
    level = spread <= 1e-12 * np.maximum.reduceat(np.abs(score)[order], starts)
    return centred / np.where(level, np.inf, spread)[number]


def rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The logit of each row's rank among the rows of its group, as a share in (0, 1); ties share their mean rank."""
    share = np.empty(len(score))
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.unique(group, return_counts=True)[1])[:-1]):
        _, block, size = np.unique(score[members], return_inverse=True, return_counts=True)
        share[members] = (np.cumsum(size) - size / 2)[block] / len(members)
    return logit_of(share)


def _log_losses(target: np.ndarray, logit: np.ndarray) -> np.ndarray:
    # log(1 + exp(logit)) in the form that cannot overflow; np.logaddexp does the same, six times slower.
    return np.maximum(logit, 0) + np.log1p(np.exp(-np.abs(logit))) - target * logit


def _class_log_losses(target: np.ndarray, logs: np.ndarray) -> np.ndarray:
    return log_sum(logs) - logs[np.arange(len(target)), target.astype(int)]


def _class_slope(target: np.ndarray, logs: np.ndarray) -> np.ndarray:
    slope = np.exp(log_softmax(logs))
    slope[np.arange(len(target)), target.astype(int)] -= 1
    return slope


OfRows = Callable[[np.ndarray, np.ndarray], np.ndarray]
LOSSES: dict[str, tuple[OfRows, OfRows]] = {
    "binary": (_log_losses, lambda target, logit: expit(logit) - target),
    "multiclass": (_class_log_losses, _class_slope),
    "regression": (lambda target, value: (value - target) ** 2, lambda target, value: 2 * (value - target)),
}
"""By kind of task, each row's loss and its derivative."""


def mean_loss(kind: str, weight: np.ndarray | None = None) -> Loss:
    """The mean loss of a kind of task that is a mean over rows: of logits, of logs of shares, of values."""
    of_rows, slope = LOSSES[kind]

    def mean(target: np.ndarray, average: np.ndarray) -> float:
        return float(mean_of(of_rows(target, average), weight))

    if weight is None:
        return Loss(mean, slope)

    def weighted_slope(target: np.ndarray, average: np.ndarray) -> np.ndarray:
        return (slope(target, average).T * (weight / weight.mean())).T

    return Loss(mean, weighted_slope, weight)


LOG_LOSS = mean_loss("binary")


def loss_of(kind: str, target: np.ndarray, group: np.ndarray | None, weight: np.ndarray | None = None) -> Loss:
    """The loss of a kind of task on these rows: of logits, of logs of shares, of values, or 1 − NDCG@10 of scores."""
    if kind != "ranking":
        return mean_loss(kind, weight)
    assert group is not None, "an order is one within groups"
    ndcg = Ndcg(target, group, weight)
    # Rows without a relevant one tell no two orders apart.
    return Loss(lambda _, score: 1 - ndcg(score) if ndcg.num_groups else 0.0, None, weight)
