"""Calibrators: from a logit, or from any score, to a logit that says what it means; and the same for logs of classes.

Each takes targets of 0 and 1, shape (num_rows,), logits of that shape, and weights of that shape with mean 1, or None for 1
each. It returns a `Line` or a `Curve`; none ever turns an order around. Those of classes take the numbers of the classes
that came true, and logs of shares, shape (num_rows, num_classes); what they return is shares again once it is made to sum
to 1.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.combine.losses import Loss, expit, log_softmax, logit_of, mean_loss, mean_of

MAX_KNOTS = 1000  # of a curve through ranks: finer than any share of rows that a forecast is judged by
ISOTONIC_LEAST = 1000  # rows of the rarer class: a step function fitted to fewer follows their noise
TEMPERATURE_PRIOR = 5.0
"""Loss, summed over rows, of a slope e times too large or too small: few rows without a mistake leave it near 1."""


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
    """A curve that never falls: straight between its knots, level before the first and after the last."""

    at: tuple[float, ...]
    """The knots, rising."""
    value: tuple[float, ...]
    """The logit at each knot."""

    def __call__(self, score: np.ndarray) -> np.ndarray:
        return np.interp(score, self.at, self.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassLine:
    """`slope * log + intercept`, with an intercept for each class."""

    slope: float
    """Not negative."""
    intercepts: tuple[float, ...]
    """In units of the log of a share; their sum is 0."""

    def __call__(self, logs: np.ndarray) -> np.ndarray:
        return self.slope * logs + np.array(self.intercepts)


Scale = Line | Curve | ClassLine
IDENTITY = Line(slope=1.0, intercept=0.0)


def from_dict(content: dict[str, Any]) -> Scale:
    """The line or curve that `dataclasses.asdict` described; KeyError or TypeError for anything else."""
    if "intercepts" in content:
        return ClassLine(slope=content["slope"], intercepts=tuple(content["intercepts"]))
    if "slope" in content:
        return Line(**content)
    return Curve(at=tuple(content["at"]), value=tuple(content["value"]))


def platt_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> Line:
    """Slope ≥ 0 and intercept that minimise the log loss of `slope * logit + intercept`.

    The targets are drawn in by Platt's (1999) rule, to (n₊+1)/(n₊+2) and 1/(n₋+2), so a perfect separation of few rows
    leaves the slope finite. A logit that points the wrong way gets slope 0, which is the base rate.
    """
    num_rows, num_positive = (len(target), target.sum()) if weight is None else (weight.sum(), weight @ target)
    drawn_in = np.where(target == 1, (num_positive + 1) / (num_positive + 2), 1 / (num_rows - num_positive + 2))
    log_loss = mean_loss("binary", weight)
    center, spread = logit.mean(), logit.std() or 1.0
    standard = (logit - center) / spread
    base_rate = mean_of(drawn_in, weight)
    line = np.array([0.0, np.log(base_rate / (1 - base_rate))])
    # Newton's method on two numbers: SciPy's L-BFGS-B is far slower where its BLAS threads have to wait for cores.
    for _ in range(50):
        probability = expit(line[0] * standard + line[1])
        error, curvature = probability - drawn_in, probability * (1 - probability)
        gradient = np.array([mean_of(error * standard, weight), mean_of(error, weight)])
        if np.abs(gradient).max() < 1e-10:
            break
        mixed = mean_of(curvature * standard, weight)
        hessian = np.array([[mean_of(curvature * standard**2, weight), mixed], [mixed, mean_of(curvature, weight)]])
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        loss = log_loss.mean(drawn_in, line[0] * standard + line[1])
        while log_loss.mean(drawn_in, (line - step)[0] * standard + (line - step)[1]) > loss + 1e-14:
            step /= 2
        line -= step
    if line[0] <= 0:
        return Line(slope=0.0, intercept=float(np.log(base_rate / (1 - base_rate))))
    return Line(slope=float(line[0] / spread), intercept=float(line[1] - line[0] * center / spread))


def temperature_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> Line:
    """One number, the slope of lowest log loss; the logit 0 stays 0 (Guo et al. 2017, "On calibration of …").

    The slope has a prior, without which rows that are all predicted right make it infinite: see `TEMPERATURE_PRIOR`.
    """
    return _temperature(target, logit, mean_loss("binary", weight))


def _temperature(target: np.ndarray, logit: np.ndarray, loss: Loss) -> Line:
    from scipy.optimize import minimize_scalar

    def penalised(log_slope: float) -> float:
        return loss.mean(target, np.exp(log_slope) * logit) + TEMPERATURE_PRIOR * log_slope**2 / len(target)

    log_slope = minimize_scalar(penalised, bounds=(-6, 6), method="bounded").x
    return Line(slope=float(np.exp(log_slope)), intercept=0.0)


def isotonic_scale(target: np.ndarray, logit: np.ndarray, weight: np.ndarray | None = None) -> Curve:
    """The rising curve of lowest squared error, by scikit-learn; its ends are drawn in to 1/(n+2), for finite logits.

    It needs no form, and many rows: `ISOTONIC_LEAST` of the rarer class. Where it is level, an order is lost.
    """
    from sklearn.isotonic import IsotonicRegression

    least = 1 / ((len(target) if weight is None else weight.sum()) + 2)
    fitted = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(logit, target, weight)
    return Curve(at=tuple(fitted.X_thresholds_.tolist()), value=tuple(logit_of(fitted.y_thresholds_).tolist()))


def rank_scale(target: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None) -> Curve:
    """From a score on any scale to the logit of its rank among the rows given, as a share in (0, 1), Platt scaled.

    Ties share their mean rank. Of many values only `MAX_KNOTS` are kept, close to each other at both ends.
    """
    value, number, count = np.unique(score, return_inverse=True, return_counts=True)
    if weight is not None:
        count = np.bincount(number, weight)
    rank_logit = logit_of((np.cumsum(count) - count / 2) / count.sum())
    if len(value) > MAX_KNOTS:
        wanted = np.linspace(rank_logit[0], rank_logit[-1], MAX_KNOTS)
        kept = np.unique(np.searchsorted(rank_logit, wanted).clip(0, len(value) - 1))
        value, rank_logit = value[kept], rank_logit[kept]
    line = platt_scale(target, np.interp(score, value, rank_logit), weight)
    return Curve(at=tuple(value.tolist()), value=tuple(line(rank_logit).tolist()))


def class_temperature_scale(target: np.ndarray, logs: np.ndarray, weight: np.ndarray | None = None) -> Line:
    """`temperature_scale` of classes: the likeliest class stays the likeliest."""
    return _temperature(target, logs, mean_loss("multiclass", weight))


def class_platt_scale(target: np.ndarray, logs: np.ndarray, weight: np.ndarray | None = None) -> ClassLine:
    """`platt_scale` of classes, the same for two of them: one slope ≥ 0, and an intercept for each class.

    Alexandari et al. 2020, "Maximum likelihood with bias-corrected calibration …". A row of a class that came true n times
    has the target (n+1)/(n+K) for it and 1/(n+K) for the K − 1 others: Platt's rule, by which none becomes impossible.
    """
    num_rows, num_classes = logs.shape
    of_row = target.astype(int)
    count = np.bincount(of_row, weight, minlength=num_classes)
    total = num_rows if weight is None else weight.sum()
    drawn_in = np.repeat(1 / (count[of_row] + num_classes), num_classes).reshape(logs.shape)
    drawn_in[np.arange(num_rows), of_row] *= count[of_row] + 1
    centred = logs - logs.mean(-1, keepdims=True)  # shares know no common factor
    spread = centred.std() or 1.0
    standard = centred / spread
    shares = mean_of(drawn_in, weight)
    line = np.append(0.0, np.log(shares) - np.log(shares).mean())

    def loss(line: np.ndarray) -> float:
        return -float(mean_of((drawn_in * log_softmax(line[0] * standard + line[1:])).sum(-1), weight))

    for _ in range(50):
        share = np.exp(log_softmax(line[0] * standard + line[1:]))
        error = share - drawn_in
        gradient = np.append(mean_of((error * standard).sum(-1), weight), mean_of(error, weight))
        if np.abs(gradient).max() < 1e-10:
            break
        expected = (share * standard).sum(-1)
        hessian = np.empty((num_classes + 1, num_classes + 1))
        hessian[0, 0] = mean_of((share * standard**2).sum(-1) - expected**2, weight)
        hessian[0, 1:] = hessian[1:, 0] = mean_of(share * (standard - expected[:, None]), weight)
        counted = share if weight is None else share * weight[:, None]
        hessian[1:, 1:] = np.diag(mean_of(share, weight)) - counted.T @ share / total
        # A common intercept changes nothing: the ones keep it at 0, and the matrix from being singular.
        hessian[1:, 1:] += 1 / num_classes
        step = np.linalg.solve(hessian + 1e-12 * np.eye(num_classes + 1), gradient)
        least = loss(line)
        while loss(line - step) > least + 1e-14:
            step /= 2
        line -= step
    if line[0] <= 0:
        line = np.append(0.0, np.log(shares) - np.log(shares).mean())
    return ClassLine(slope=float(line[0] / spread), intercepts=tuple((line[1:] - line[1:].mean()).tolist()))


CALIBRATORS: dict[str, dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray | None], Scale]]] = {
    "binary": {"platt": platt_scale, "temperature": temperature_scale, "isotonic": isotonic_scale},
    "multiclass": {"temperature": class_temperature_scale, "platt": class_platt_scale},
    "regression": {},
    "ranking": {},
}
"""By kind of task, the default first."""
NONE = "none"
"""In place of a calibrator: neither the members nor their average are calibrated, as where shares change in time."""
