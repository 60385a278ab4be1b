"""The bootstrap over whole clusters: it sorts once, draws weights, and copies no row."""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import numpy as np


class Interval(NamedTuple):
    """A score, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Scorer(Protocol):
    """The scores of one prediction for any weights of its rows: what needs no weight is done once, before."""

    def scores(self, weight: np.ndarray) -> np.ndarray:
        """Every metric of its kind, in the order of `metrics.METRICS`; `weight` has shape (num_rows,), not negative."""


def intervals(
    names: list[str],
    scores: Callable[[np.ndarray], np.ndarray],
    cluster: np.ndarray,
    num_draws: int,
    generator: np.random.Generator,
    weight: np.ndarray | None = None,
    biased: Collection[str] = (),
) -> dict[str, Interval]:
    """The value of each score, and the 95 % percentile interval over draws of whole clusters.

    `weight` has the shape of `cluster`; None for 1 each. The draws of the scores in `biased` are shifted, so that their
    median is the value.
    """
    weight = np.ones(len(cluster)) if weight is None else weight
    values = scores(weight)
    clusters, member = np.unique(cluster, return_inverse=True)
    if len(clusters) < 2:
        return {name: Interval(float(value), np.nan, np.nan) for name, value in zip(names, values, strict=True)}
    draws = []
    for _ in range(num_draws):
        times_drawn = np.bincount(generator.integers(len(clusters), size=len(clusters)), minlength=len(clusters))
        draws.append(scores(times_drawn[member] * weight))
    found = {}
    for name, value, drawn in zip(names, values, np.transpose(draws), strict=True):
        defined = drawn[np.isfinite(drawn)]
        if name in biased and defined.size:
            defined = defined - (np.median(defined) - value)
        low, high = np.quantile(defined, [0.025, 0.975]) if defined.size and np.isfinite(value) else (np.nan, np.nan)
        found[name] = Interval(float(value), float(low), float(high))
    return found
