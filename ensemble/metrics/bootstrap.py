"""The bootstrap over whole clusters: rows are sorted once, draws are weights, and no row is copied."""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import numpy as np


class Interval(NamedTuple):
    """A score and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """The numbers by name. NaN, which JSON lacks, becomes None, such as the bounds of an interval over one cluster."""
        return {name: value if np.isfinite(value) else None for name, value in self._asdict().items()}


class Draws(NamedTuple):
    """The values of some scores, (num_scores,), and those in each draw of the bootstrap, (num_draws, num_scores)."""

    values: np.ndarray
    drawn: np.ndarray

    def minus(self, other: "Draws") -> "Draws":
        """The differences from the scores of another prediction, in the same draws."""
        return Draws(self.values - other.values, self.drawn - other.drawn)


class Scorer(Protocol):
    """Computes the scores of one prediction for any weights of its rows; the constructor does what all weights share."""

    def scores(self, weight: np.ndarray) -> np.ndarray:
        """Every metric of the kind of task, in the order of `metrics.METRICS`. weight : (num_rows,), not negative."""


def draws_of(
    scores: Callable[[np.ndarray], np.ndarray],
    cluster: np.ndarray,
    num_draws: int,
    generator: np.random.Generator,
    weight: np.ndarray | None = None,
) -> Draws:
    """The scores, and those in draws of whole clusters; no draws with one cluster.

    weight : shaped like `cluster`; None for 1 each
    """
    weight = np.ones(len(cluster)) if weight is None else weight
    values = scores(weight)
    clusters, cluster_number = np.unique(cluster, return_inverse=True)
    drawn = np.empty((num_draws if len(clusters) > 1 else 0, len(values)))
    for draw in drawn:
        times_drawn = np.bincount(generator.integers(len(clusters), size=len(clusters)), minlength=len(clusters))
        draw[:] = scores(times_drawn[cluster_number] * weight)
    return Draws(values, drawn)


def intervals(names: Collection[str], draws: Draws, biased: Collection[str] = ()) -> dict[str, Interval]:
    """The value of each score, and its 95 % percentile interval over the draws; NaN without draws.

    biased : names of scores whose draws are shifted so that their median is the value.
    """
    result = {}
    for name, value, drawn in zip(names, draws.values, draws.drawn.T, strict=True):
        defined = drawn[np.isfinite(drawn)]
        if name in biased and defined.size:
            defined = defined - (np.median(defined) - value)
        low, high = np.quantile(defined, [0.025, 0.975]) if defined.size and np.isfinite(value) else (np.nan, np.nan)
        result[name] = Interval(float(value), float(low), float(high))
    return result
