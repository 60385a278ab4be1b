"""Quantile transformation and bins of numerical features, fitted on the rows of a copy of the network.

A number is mapped to the normal score of its rank. The map is piecewise linear between at most `NUM_KNOTS` knots, and
constant outside them. The bins of the piecewise-linear embedding (Gorishniy et al. 2022, arXiv:2203.05556) are bounded by
quantiles of the same rows.
"""

import dataclasses

import numpy as np
from scipy.special import ndtri

NUM_KNOTS = 128
MAX_ROWS = 50_000
"""Largest number of rows with a known value, a random sample, from which quantiles are computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The transformation of one numerical feature."""

    knots: np.ndarray
    """Ascending, (NUM_KNOTS,) float32; filled with infinity. All are infinite for a feature without known values."""
    segments: np.ndarray
    """For each segment, from a knot to the next one, (NUM_KNOTS, 5) float32: its begin, 1 / its length (0 for the last), the
    position of its begin in its bin, from 0 to 1, the share of the bin that it covers, and the number of the bin."""
    edges: np.ndarray
    """Edges of the bins as normal scores, (num_bins + 1,) float32; the last is repeated if there are fewer bins."""


def fit(values: np.ndarray, num_bins: int) -> Scale:
    """Fit the transformation to the values of a feature in the rows of a copy, (num_rows,) float32, NaN if missing."""
    known = values[np.isfinite(values)]
    if len(known) > MAX_ROWS:  # evenly spaced rows would be of one kind where rows alternate, such as home and away teams
        known = np.random.default_rng(0).choice(known, MAX_ROWS, replace=False, shuffle=False)
    known = np.sort(known).astype(np.float64)
    scale = Scale(
        knots=np.full(NUM_KNOTS, np.inf, np.float32),
        segments=np.zeros((NUM_KNOTS, 5), np.float32),
        edges=np.zeros(num_bins + 1, np.float32),
    )
    if not known.size:
        return scale
    if known[0] == known[-1]:
        scale.knots[0] = scale.segments[0, 0] = known[0]
        return scale
    finite = _quantiles(known, NUM_KNOTS)
    rank = (np.searchsorted(known, finite, "left") + np.searchsorted(known, finite, "right")) / (2 * len(known))
    scores = ndtri(rank)
    edge = np.unique(np.searchsorted(finite, _quantiles(known, num_bins + 1)))  # indices of the knots that bound bins
    bin_number = np.clip(np.searchsorted(edge, np.arange(len(finite)), "right") - 1, 0, len(edge) - 2)
    low, high = scores[edge[bin_number]], scores[edge[bin_number + 1]]
    start = (scores - low) / (high - low)
    share = np.append(np.diff(scores), 0.0) / (high - low)
    with np.errstate(over="ignore"):  # between denormal numbers; 0 × inf would be NaN
        inverse_length = np.append(np.minimum(1 / np.diff(finite), np.finfo(np.float32).max), 0.0)
    scale.knots[: len(finite)] = finite
    scale.segments[: len(finite)] = np.stack([finite, inverse_length, start, share, bin_number], axis=1)
    scale.edges[: len(edge)] = scores[edge]
    scale.edges[len(edge) :] = scores[edge[-1]]
    return scale


def _quantiles(known: np.ndarray, number: int) -> np.ndarray:
    """At most `number` distinct quantiles of `known`, which is sorted, including its minimum and maximum.

    The weight of a frequent value is limited to that of one quantile, so that other values have enough quantiles.
    """
    values, counts = np.unique(known, return_counts=True)
    if len(values) <= number:
        return values
    weight = np.cumsum(np.minimum(counts, max(1, len(known) // number)))
    index = np.searchsorted(weight, np.linspace(0, weight[-1], number))
    return values[np.unique(np.clip(index, 0, len(values) - 1))]
