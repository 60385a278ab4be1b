"""How a number becomes an input of the network: its quantile on the rows that a copy is fitted on, cut into bins.

A number is mapped to the normal score of its rank, linear between at most `NUM_KNOTS` knots, and flat outside of them. The
bins of the piecewise-linear embedding (Gorishniy et al. 2022, arXiv:2203.05556) lie at quantiles of the same rows.
"""

import dataclasses

import numpy as np
from scipy.special import ndtri

NUM_KNOTS = 128
MAX_ROWS = 50_000
"""Rows that quantiles are computed from, evenly spaced."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of one number."""

    knots: np.ndarray
    """Rising, (NUM_KNOTS,) float32; infinite beyond the last."""
    segments: np.ndarray
    """From each knot to the next, (NUM_KNOTS, 5) float32: begin, 1 / length, where it begins in its bin from 0 to 1, which
    part of the bin it is, and the number of the bin."""
    edges: np.ndarray
    """Of the bins, as normal scores, (num_bins + 1,) float32; the last is repeated where there are fewer."""


def fit(values: np.ndarray, num_bins: int) -> Scale:
    """The scale of a feature from its values in the rows of a copy, (num_rows,) float32, NaN where missing."""
    if len(values) > MAX_ROWS:
        values = values[np.linspace(0, len(values) - 1, MAX_ROWS).astype(np.int64)]
    known = np.sort(values[np.isfinite(values)]).astype(np.float64)
    knots, segments = np.full(NUM_KNOTS, np.inf), np.zeros((NUM_KNOTS, 5))
    edges = np.zeros(num_bins + 1)
    if not known.size or known[0] == known[-1]:
        knots[0] = segments[0, 0] = known[0] if known.size else 0.0
        return Scale(knots=knots.astype(np.float32), segments=segments.astype(np.float32), edges=edges.astype(np.float32))
    chosen = _spread(known, NUM_KNOTS)
    rank = (np.searchsorted(known, chosen, "left") + np.searchsorted(known, chosen, "right")) / (2 * len(known))
    scores = ndtri(rank)
    at = np.unique(np.searchsorted(chosen, _spread(known, num_bins + 1)))  # the knots at which bins begin and end
    place = np.clip(np.searchsorted(at, np.arange(len(chosen)), "right") - 1, 0, len(at) - 2)
    low, high = scores[at[place]], scores[at[place + 1]]
    start = (scores - low) / (high - low)
    rise = np.append(np.diff(scores), 0.0) / (high - low)
    slope = np.append(1 / np.diff(chosen), 0.0)
    knots[: len(chosen)] = chosen
    segments[: len(chosen)] = np.stack([chosen, slope, start, rise, place], axis=1)
    edges[: len(at)] = scores[at]
    edges[len(at) :] = scores[at[-1]]
    return Scale(knots=knots.astype(np.float32), segments=segments.astype(np.float32), edges=edges.astype(np.float32))


def _spread(known: np.ndarray, number: int) -> np.ndarray:
    """At most `number` different values of `known`, which rises: its ends, and quantiles between them.

    A value that many rows share counts no more than its part of the quantiles, so that the others are kept apart too.
    """
    values, counts = np.unique(known, return_counts=True)
    if len(values) <= number:
        return values
    mass = np.cumsum(np.minimum(counts, max(1, len(known) // number)))
    at = np.searchsorted(mass, np.linspace(0, mass[-1], number))
    return values[np.unique(np.clip(at, 0, len(values) - 1))]
