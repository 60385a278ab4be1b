"""Statistics of columns: right where naive formulae fail, and the same bits on any number of ranks and for any shards."""

from collections.abc import Sequence

import numpy as np
import pytest

from ensemble.data import statistics
from ensemble.data.statistics import BLOCK_ROWS, Statistics, of_shards
from ensemble.errors import UserError

FIELDS = ("count", "mean", "variance", "least", "greatest")
NUM_ROWS = 5 * BLOCK_ROWS + 1234


def drawn(num_rows: int, mean: float, deviation: float, num_columns: int = 3) -> np.ndarray:
    generator = np.random.default_rng(0)
    return (mean + deviation * generator.standard_normal((num_rows, num_columns))).astype(np.float32)


def on_ranks(shards: Sequence[np.ndarray], num_ranks: int) -> list[Statistics]:
    """The statistics on each of several ranks, which exchange their blocks."""
    blocks_of_ranks: list[np.ndarray] = []

    class Recorded(Exception):
        pass

    def record(blocks: np.ndarray) -> list[np.ndarray]:
        blocks_of_ranks.append(blocks)
        raise Recorded

    for rank in range(num_ranks):
        with pytest.raises(Recorded):
            of_shards(shards, rank=rank, num_ranks=num_ranks, exchange=record)
    return [
        of_shards(shards, rank=rank, num_ranks=num_ranks, exchange=lambda _: blocks_of_ranks) for rank in range(num_ranks)
    ]


def same_bits(one: Statistics, other: Statistics) -> bool:
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in FIELDS)


def test_a_mean_of_ten_thousand_does_not_hide_a_deviation_of_one() -> None:
    """E[x²] − E[x]² in float32 gives a variance of 8 for such values, or a negative one."""
    values = drawn(400_000, 1e4, 1.0, 1)
    naive = (values**2).mean(dtype=np.float32) - values.mean(dtype=np.float32) ** 2
    exact = values.astype(np.float64).var(axis=0)
    result = of_shards([values])
    assert abs(float(naive) - exact[0]) > 0.5
    assert np.allclose(result.variance, exact, rtol=1e-12)


@pytest.mark.parametrize(("mean", "deviation"), [(1e3, 1.0), (1e3, 1e-3), (0.0, 1.0), (-1e6, 10.0), (5.0, 0.0)])
def test_statistics_are_those_of_the_whole(mean: float, deviation: float) -> None:
    """Blocks would be merged with wrong weights."""
    values = drawn(NUM_ROWS, mean, deviation)
    whole, result = values.astype(np.float64), of_shards([values[:77], values[77:77], values[77:9000], values[9000:]])
    assert (result.count == NUM_ROWS).all()
    assert np.allclose(result.mean, whole.mean(axis=0), rtol=1e-13)
    assert np.allclose(result.variance, whole.var(axis=0), rtol=1e-11)
    assert (result.variance >= 0).all()
    assert np.array_equal(result.least, whole.min(axis=0))
    assert np.array_equal(result.greatest, whole.max(axis=0))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 16])
def test_the_bits_do_not_depend_on_ranks_or_shards(num_ranks: int) -> None:
    """A network trained on four ranks would be scaled differently from one of one rank. There are fewer than 16 blocks."""
    values = drawn(NUM_ROWS, 300.0, 7.0)
    alone = of_shards([values])
    generator = np.random.default_rng(1)
    for _ in range(2):
        cuts = np.sort(generator.integers(0, NUM_ROWS, 4))
        assert same_bits(alone, of_shards(np.split(values, cuts)))
        assert all(same_bits(alone, result) for result in on_ranks(np.split(values, cuts), num_ranks))


def test_the_order_of_rows_may_change_the_last_bits() -> None:
    """The comparison of bits above could not fail."""
    values = drawn(NUM_ROWS, 300.0, 7.0)
    assert not same_bits(of_shards([values]), of_shards([values[::-1]]))


def test_missing_values_do_not_count() -> None:
    """A column with NaN would have NaN as its mean, and one without a value would raise a warning."""
    values = drawn(10_000, 5.0, 2.0)
    values[::3, 0] = np.nan
    values[:, 2] = np.nan
    result = of_shards([values])
    assert np.allclose(result.mean[:2], np.nanmean(values[:, :2].astype(np.float64), axis=0), rtol=1e-13)
    assert np.allclose(result.variance[:2], np.nanvar(values[:, :2].astype(np.float64), axis=0), rtol=1e-11)
    assert result.count.tolist() == [np.isfinite(values[:, 0]).sum(), 10_000, 0]
    assert np.isnan([result.mean[2], result.variance[2], result.least[2], result.greatest[2]]).all()


def test_columns_together_are_one_column() -> None:
    """The points of a Lorenz-96 ring, which have equal distributions, would be scaled differently."""
    values = drawn(5000, 2.0, 3.0) + np.float32([0.0, 10.0, -4.0])
    result, whole = of_shards([values]).of_all(), values.astype(np.float64)
    assert result.count.tolist() == [values.size]
    assert np.allclose([result.mean[0], result.variance[0]], [whole.mean(), whole.var()], rtol=1e-12)
    assert [result.least[0], result.greatest[0]] == [whole.min(), whole.max()]


def test_what_cannot_be_measured_is_refused() -> None:
    """An infinite value would make every statistic NaN without a word, on every rank."""
    values = drawn(BLOCK_ROWS * 2, 0.0, 1.0)
    values[5, 1] = np.inf
    with pytest.raises(UserError, match=r"^the column sst has infinite values"):
        of_shards([values], names=["tair", "sst", "sss"])
    with pytest.raises(UserError, match="no rows to take"):
        of_shards([values[:0]])


def test_outside_of_a_launched_job_nothing_is_exchanged() -> None:
    """Statistics would wait for ranks that do not exist."""
    assert statistics.ranks() == {}
