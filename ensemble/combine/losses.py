"""What the weights minimise: the log loss of a logit, or the squared error of a value."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

EPSILON = 1e-6  # float32 members say exactly 0 or 1 now and then: their logits must stay finite


class Loss(NamedTuple):
    """A loss of targets and averages, both (num_rows,)."""

    mean: Callable[[np.ndarray, np.ndarray], float]
    """The mean over the rows."""
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """The derivative of each row's loss by its average, (num_rows,)."""


def expit(logit: np.ndarray) -> np.ndarray:
    """The probability, by SciPy, which cannot overflow."""
    from scipy.special import expit as probability

    return probability(logit)


def logit_of(probability: np.ndarray) -> np.ndarray:
    """The log odds of a probability, drawn in to 1e-6 from 0 and 1."""
    clipped = np.clip(probability, EPSILON, 1 - EPSILON)
    return np.log(clipped) - np.log1p(-clipped)


def _log_loss(target: np.ndarray, logit: np.ndarray) -> float:
    # log(1 + exp(logit)) in the form that cannot overflow; np.logaddexp does the same, six times slower.
    return float(np.mean(np.maximum(logit, 0) + np.log1p(np.exp(-np.abs(logit))) - target * logit))


LOG_LOSS = Loss(_log_loss, lambda target, logit: expit(logit) - target)
SQUARED_ERROR = Loss(lambda target, value: float(np.mean((value - target) ** 2)), lambda target, value: 2 * (value - target))
