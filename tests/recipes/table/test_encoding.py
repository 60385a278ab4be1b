"""The quantile transformation of numerical features of the network."""

import numpy as np

from ensemble.recipes.table import encoding


def test_quantiles_of_many_rows_are_of_all_kinds_of_rows() -> None:
    """Where rows of two kinds alternate, every second row is of one kind, and the other would be beyond all bins."""
    values = np.arange(2 * encoding.MAX_ROWS, dtype=np.float32)
    values[1::2] += 1e6
    scale = encoding.fit(values, num_bins=16)
    is_second_kind = scale.knots[np.isfinite(scale.knots)] >= 1e6
    assert 0.4 < is_second_kind.mean() < 0.6


def test_the_few_known_values_of_many_rows_all_count() -> None:
    """The network would ignore a feature that few rows have, since a sample of the rows has none of its values."""
    values = np.full(10 * encoding.MAX_ROWS, np.nan, np.float32)
    values[:: encoding.MAX_ROWS] = np.arange(10)
    knots = encoding.fit(values, num_bins=16).knots
    assert knots[np.isfinite(knots)].tolist() == list(range(10))
