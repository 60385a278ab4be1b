"""Calibrators: they fit a map from logits or scores to calibrated logits. Those for classes map logs of probabilities.

A calibrator gets targets of 0 and 1, (num_rows,), logits (num_rows,), and weights (num_rows,) or None, as in
`combination.Rows`. It returns a `Line` or a `Curve`, which never reverse an order. A calibrator for classes gets the numbers
of the true classes, and logs of probabilities (num_rows, num_classes). Its caller normalises the calibrated probabilities to
sum to 1.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.combine.losses import clipped_logit, expit, log_softmax, task_loss
from ensemble.metrics.weighting import weighted_mean

MAX_KNOTS = 1000  # of the curve of `rank_scale`, so that the file of an ensemble stays small
ISOTONIC_LEAST = 1000  # rows of the rarer class: a step function fitted to fewer rows follows their noise
TEMPERATURE_PRIOR = 5.0
"""The penalty of a slope of e or 1 / e, added to the sum of the losses. With few rows that are all predicted correctly, it
keeps the slope near 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """`slope * logit + intercept`."""

    slope: float
    """Not negative."""
    intercept: float
    """In units of the logit."""

    def __call__(self, logit: np.ndarray) -> np.ndarray:
        return self.slope * logit + self.intercept


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A piecewise linear curve that never falls, constant before the first knot and after the last."""

    at: tuple[float, ...]
    """The scores at the knots, increasing."""
    value: tuple[float, ...]
    """The logits at the knots."""

    def __call__(self, score: np.ndarray) -> np.ndarray:
        return np.interp(score, self.at, self.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassLine:
    """`slope * log + intercept`, with one intercept for each class."""

    slope: float
    """Not negative."""
    intercepts: tuple[float, ...]
    """In units of the log of a probability; their sum is 0."""

    def __call__(self, logs: np.ndarray) -> np.ndarray:
        return self.slope * logs + np.array(self.intercepts)


Scale = Line | Curve | ClassLine
IDENTITY = Line(slope=1.0, intercept=0.0)


def from_dict(content: dict[str, Any]) -> Scale:
    """The scale from the result of `dataclasses.asdict`; KeyError or TypeError for anything else."""
    if "intercepts" in content:
        return ClassLine(slope=content["slope"], intercepts=tuple(content["intercepts"]))
    if "slope" in content:
        return Line(**content)
    return Curve(at=tuple(content["at"]), value=tuple(content["value"]))


def platt_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> Line:
    """The slope ≥ 0 and the intercept with the lowest log loss of `slope * logit + intercept`.

    The targets are smoothed as by Platt (1999), to (n₊+1)/(n₊+2) and 1/(n₋+2), so the slope is finite even if the logits
    separate the two classes perfectly. If the best slope is negative, it is set to 0, and every row gets the base rate. If
    all logits are equal, the slope is 1.
    """
    num_rows, num_positive = (len(target), target.sum()) if weight is None else (weight.sum(), weight @ target)
    smoothed = np.where(target == 1, (num_positive + 1) / (num_positive + 2), 1 / (num_rows - num_positive + 2))
    log_loss = task_loss("binary", weight=weight)
    center, spread = logit.mean(), np.ptp(logit) and logit.std()
    base_rate = weighted_mean(smoothed, weight)
    base_logit = float(np.log(base_rate / (1 - base_rate)))
    if not spread:
        return Line(slope=1.0, intercept=float(base_logit - center))
    standard = (logit - center) / spread

    def loss(line: np.ndarray) -> float:
        return log_loss.mean(smoothed, line[0] * standard + line[1])

    def derivatives(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        probability = expit(line[0] * standard + line[1])
        error, curvature = probability - smoothed, probability * (1 - probability)
        mixed, constant = weighted_mean(curvature * standard, weight), weighted_mean(curvature, weight)
        gradient = np.array([weighted_mean(error * standard, weight), weighted_mean(error, weight)])
        return gradient, np.array([[weighted_mean(curvature * standard**2, weight), mixed], [mixed, constant]])

    line = _minimised(np.array([0.0, base_logit]), loss, derivatives)
    if line[0] <= 0:
        return Line(slope=0.0, intercept=base_logit)
    return Line(slope=float(line[0] / spread), intercept=float(line[1] - line[0] * center / spread))


def logistic_intercept(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The number that, added to all logits, makes the mean probability the share of positives, as a logistic regression
    does. 0 if all targets are equal."""
    from scipy.optimize import brentq

    if target.min() == target.max():
        return 0.0
    share, largest = weighted_mean(target, weight), np.abs(logit).max() + 50
    return float(brentq(lambda shift: weighted_mean(expit(logit + shift), weight) - share, -largest, largest))


def _minimised(
    start: np.ndarray,
    loss: Callable[[np.ndarray], float],
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """The parameters (n,) that minimise a convex loss, by Newton's method from `start`. derivatives : gradient and Hessian.

    SciPy's L-BFGS-B is slower on a shared machine, since its BLAS threads wait for cores.
    """
    parameters, least = start, loss(start)
    for _ in range(50):
        gradient, hessian = derivatives(parameters)
        if np.abs(gradient).max() < 1e-10:
            break
        step = np.linalg.solve(hessian + 1e-12 * np.eye(len(start)), gradient)
        while (new_loss := loss(parameters - step)) > least + 1e-14:
            step /= 2
        parameters, least = parameters - step, new_loss
    return parameters


def temperature_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None, kind: str = "binary") -> Line:
    """The slope with the lowest log loss, without an intercept (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

    The slope has a prior, `TEMPERATURE_PRIOR`, without which it is infinite if all rows are predicted correctly.
    """
    from scipy.optimize import minimize_scalar

    loss, num_rows = task_loss(kind, weight=weight), len(target) if weight is None else weight.sum()

    def penalised(log_slope: float) -> float:
        return loss.mean(target, np.exp(log_slope) * logit) + TEMPERATURE_PRIOR * log_slope**2 / num_rows

    log_slope = minimize_scalar(penalised, bounds=(-6, 6), method="bounded").x
    return Line(slope=float(np.exp(log_slope)), intercept=0.0)


class_temperature_scale = functools.partial(temperature_scale, kind="multiclass")
"""`temperature_scale` for logs of probabilities of classes; the likeliest class of a row stays the same."""


def isotonic_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> Curve:
    """The non-decreasing curve of probabilities with the lowest squared error, by scikit-learn, as a curve of logits.

    The probabilities are clipped to [1/(n+2), 1 - 1/(n+2)] for n rows. The curve needs many rows, `ISOTONIC_LEAST` of the
    rarer class. Rows on a constant piece of the curve lose their order.
    """
    from sklearn.isotonic import IsotonicRegression

    least = 1 / ((len(target) if weight is None else weight.sum()) + 2)
    fitted = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(logit, target, weight)
    return Curve(at=tuple(fitted.X_thresholds_.tolist()), value=tuple(clipped_logit(fitted.y_thresholds_).tolist()))


def rank_scale(target: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None) -> Curve:
    """A curve from a score on any scale to the Platt-scaled logit of its rank among the given rows.

    The rank is a fraction in (0, 1), and equal scores share their mean rank. If there are more than `MAX_KNOTS` different
    scores, at most `MAX_KNOTS` of them become knots, which are dense at both ends.
    """
    value, number, count = np.unique(score, return_inverse=True, return_counts=True)
    if weight is not None:
        count = np.bincount(number, weight)
    rank_logit = clipped_logit((np.cumsum(count) - count / 2) / count.sum())
    if len(value) > MAX_KNOTS:
        evenly_spaced = np.linspace(rank_logit[0], rank_logit[-1], MAX_KNOTS)
        knots = np.unique(np.searchsorted(rank_logit, evenly_spaced))
        value, rank_logit = value[knots], rank_logit[knots]
    line = platt_scale(target, np.interp(score, value, rank_logit), weight)
    return Curve(at=tuple(value.tolist()), value=tuple(line(rank_logit).tolist()))


def class_platt_scale(target: np.ndarray, logs: np.ndarray, weight: np.ndarray | None = None) -> ClassLine:
    """`platt_scale` for classes, equal to it for two classes if logits differ: one slope ≥ 0, an intercept for each class.

    Alexandari et al. 2020, "Maximum likelihood with bias-corrected calibration …". The target of a row whose class has n
    rows is (n+1)/(n+K) for this class and 1/(n+K) for the K − 1 others: Platt's rule, so that no class is impossible.
    """
    num_rows, num_classes = logs.shape
    true_class = target.astype(int)
    count = np.bincount(true_class, weight, minlength=num_classes)
    total = num_rows if weight is None else weight.sum()
    smoothed = np.repeat(1 / (count[true_class] + num_classes), num_classes).reshape(logs.shape)
    smoothed[np.arange(num_rows), true_class] *= count[true_class] + 1
    centred = logs - logs.mean(-1, keepdims=True)  # a common term does not change probabilities
    spread = centred.std() or 1.0
    standard = centred / spread
    shares = weighted_mean(smoothed, weight)
    start = np.append(0.0, np.log(shares) - np.log(shares).mean())

    def loss(line: np.ndarray) -> float:
        return -float(weighted_mean((smoothed * log_softmax(line[0] * standard + line[1:])).sum(-1), weight))

    def derivatives(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share = np.exp(log_softmax(line[0] * standard + line[1:]))
        error, expected = share - smoothed, (share * standard).sum(-1)
        hessian = np.empty((num_classes + 1, num_classes + 1))
        hessian[0, 0] = weighted_mean((share * standard**2).sum(-1) - expected**2, weight)
        hessian[0, 1:] = hessian[1:, 0] = weighted_mean(share * (standard - expected[:, None]), weight)
        counted = share if weight is None else share * weight[:, None]
        hessian[1:, 1:] = np.diag(weighted_mean(share, weight)) - counted.T @ share / total
        # Without this term the matrix is singular, since adding a number to all intercepts does not change the loss
        hessian[1:, 1:] += 1 / num_classes
        return np.append(weighted_mean((error * standard).sum(-1), weight), weighted_mean(error, weight)), hessian

    line = _minimised(start, loss, derivatives)
    if line[0] <= 0:
        line = start
    return ClassLine(slope=float(line[0] / spread), intercepts=tuple((line[1:] - line[1:].mean()).tolist()))


CALIBRATORS: dict[str, dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray | None], Scale]]] = {
    "binary": {"platt": platt_scale, "temperature": temperature_scale, "isotonic": isotonic_scale},
    "multiclass": {"temperature": class_temperature_scale, "platt": class_platt_scale},
    "regression": {},
    "ranking": {},
}
"""By kind of task, the functions by the name of the calibrator; the default is first."""
NONE = "none"
"""The name for no calibration, neither of the members nor of their average; useful if the share of positives changes."""
