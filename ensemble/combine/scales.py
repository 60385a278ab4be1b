"""Calibrators: from a logit, or from any score, to a logit that says what it means.

Each takes targets of 0 and 1, shape (num_rows,), and logits of that shape, and returns a `Line` or a `Curve`; none ever
turns an order around.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.combine.losses import LOG_LOSS, expit, logit_of

MAX_KNOTS = 1000  # of a curve through ranks: finer than any share of rows that a forecast is judged by
ISOTONIC_LEAST = 1000  # rows of the rarer class: a step function fitted to fewer follows their noise


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


Scale = Line | Curve
IDENTITY = Line(slope=1.0, intercept=0.0)


def from_dict(content: dict[str, Any]) -> Scale:
    """The line or curve that `dataclasses.asdict` described; KeyError or TypeError for anything else."""
    if "slope" in content:
        return Line(**content)
    return Curve(at=tuple(content["at"]), value=tuple(content["value"]))


def platt_scale(target: np.ndarray, logit: np.ndarray) -> Line:
    """Slope ≥ 0 and intercept that minimise the log loss of `slope * logit + intercept`.

    The targets are drawn in by Platt's (1999) rule, to (n₊+1)/(n₊+2) and 1/(n₋+2), so a perfect separation of few rows
    leaves the slope finite. A logit that points the wrong way gets slope 0, which is the base rate.
    """
    num_positive = target.sum()
    drawn_in = np.where(target == 1, (num_positive + 1) / (num_positive + 2), 1 / (len(target) - num_positive + 2))
    center, spread = logit.mean(), logit.std() or 1.0
    standard = (logit - center) / spread
    base_rate = drawn_in.mean()
    line = np.array([0.0, np.log(base_rate / (1 - base_rate))])
    # Newton's method on two numbers: SciPy's L-BFGS-B is far slower where its BLAS threads have to wait for cores.
    for _ in range(50):
        probability = expit(line[0] * standard + line[1])
        error, curvature = probability - drawn_in, probability * (1 - probability)
        gradient = np.array([(error * standard).mean(), error.mean()])
        if np.abs(gradient).max() < 1e-10:
            break
        mixed = (curvature * standard).mean()
        hessian = np.array([[(curvature * standard**2).mean(), mixed], [mixed, curvature.mean()]])
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        loss = LOG_LOSS.mean(drawn_in, line[0] * standard + line[1])
        while LOG_LOSS.mean(drawn_in, (line - step)[0] * standard + (line - step)[1]) > loss + 1e-14:
            step /= 2
        line -= step
    if line[0] <= 0:
        return Line(slope=0.0, intercept=float(np.log(base_rate / (1 - base_rate))))
    return Line(slope=float(line[0] / spread), intercept=float(line[1] - line[0] * center / spread))


def temperature_scale(target: np.ndarray, logit: np.ndarray) -> Line:
    """One number, the slope of lowest log loss; the logit 0 stays 0 (Guo et al. 2017, "On calibration of …")."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda power: LOG_LOSS.mean(target, 2.0**power * logit), bounds=(-8, 8), method="bounded")
    return Line(slope=float(2.0**found.x), intercept=0.0)


def isotonic_scale(target: np.ndarray, logit: np.ndarray) -> Curve:
    """The rising curve of lowest squared error, by scikit-learn; its ends are drawn in to 1/(n+2), for finite logits.

    It needs no form, and many rows: `ISOTONIC_LEAST` of the rarer class. Where it is level, an order is lost.
    """
    from sklearn.isotonic import IsotonicRegression

    least = 1 / (len(target) + 2)
    fitted = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(logit, target)
    return Curve(at=tuple(fitted.X_thresholds_.tolist()), value=tuple(logit_of(fitted.y_thresholds_).tolist()))


def rank_scale(target: np.ndarray, score: np.ndarray) -> Curve:
    """From a score on any scale to the logit of its rank among the rows given, as a share in (0, 1), Platt scaled.

    Ties share their mean rank. Of many values only `MAX_KNOTS` are kept, close to each other at both ends.
    """
    value, count = np.unique(score, return_counts=True)
    rank_logit = logit_of((np.cumsum(count) - count / 2) / len(score))
    if len(value) > MAX_KNOTS:
        wanted = np.linspace(rank_logit[0], rank_logit[-1], MAX_KNOTS)
        kept = np.unique(np.searchsorted(rank_logit, wanted).clip(0, len(value) - 1))
        value, rank_logit = value[kept], rank_logit[kept]
    line = platt_scale(target, np.interp(score, value, rank_logit))
    return Curve(at=tuple(value.tolist()), value=tuple(line(rank_logit).tolist()))


CALIBRATORS: dict[str, Callable[[np.ndarray, np.ndarray], Scale]] = {
    "platt": platt_scale,
    "temperature": temperature_scale,
    "isotonic": isotonic_scale,
}
