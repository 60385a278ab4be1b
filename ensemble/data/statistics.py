"""Mean, standard deviation, minimum, maximum and count of columns, bitwise equal on any number of ranks.

The rows of all shards, one shard after the other, are cut into blocks of a fixed number of rows, whatever the lengths of the
shards. A block is reduced by a two-pass sum in float64, and blocks are merged in pairs, in their order (Chan, Golub and
LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979). A rank reduces a range of blocks;
the results of all blocks are exchanged, and every rank merges all of them. So the result depends on nothing but the rows and
their order.

    statistics = of_shards([array_of_file_1, array_of_file_2])                    # one process
    statistics = of_shards(shards, **ranks())                                    # every rank of a launched job

E[x²] − E[x]² in float32 is not an alternative: for a mean of 1e4 and a standard deviation of 1 it gives a variance of 8.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ensemble.errors import UserError

BLOCK_ROWS = 4096
"""Rows per block. Another value changes the last bits of the results."""
Exchange = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Takes the array of this rank, and returns those of all ranks in their order."""


class Shard(Protocol):
    """Rows in one place: a (rows, columns) array, or anything that gives such arrays for slices of its rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of each column, in which NaN is a missing value; arrays of shape (columns,), float64 except `count`.

    For a column without values, all but `count` are NaN.
    """

    count: np.ndarray
    """Values that are not NaN, int64."""
    mean: np.ndarray
    variance: np.ndarray
    """The mean squared distance from the mean, 0 or more."""
    least: np.ndarray
    greatest: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation: the root of `variance`."""
        return np.sqrt(self.variance)

    def of_columns(self, columns: slice | np.ndarray) -> "Statistics":
        """The statistics of some of the columns. columns : a slice, or (columns,) bool."""
        return Statistics(*(getattr(self, field.name)[columns] for field in dataclasses.fields(self)))

    def of_all(self) -> "Statistics":
        """The statistics of the values of all columns, as one column."""
        if not self.count.any():
            return self.of_columns(slice(1))
        known = self.of_columns(self.count > 0)
        weight = known.count / known.count.sum()
        mean = (weight * known.mean).sum()
        variance = (weight * (known.variance + (known.mean - mean) ** 2)).sum()
        values = (known.count.sum(), mean, variance, known.least.min(), known.greatest.max())
        return Statistics(*(np.array([value]) for value in values))

    def repeated(self, times: int) -> "Statistics":
        """The statistics of one column, repeated for `times` columns."""
        return Statistics(*(np.repeat(getattr(self, field.name), times) for field in dataclasses.fields(self)))


def of_shards(
    shards: Sequence[Shard],
    *,
    rank: int = 0,
    num_ranks: int = 1,
    exchange: Exchange | None = None,
    names: Sequence[str] = (),
) -> Statistics:
    """Statistics of the columns of all shards together.

    shards : (rows, columns) each, of any lengths, also 0. Every rank is given all of them, and reads a part of their rows.
    rank, num_ranks, exchange : those of a launched job; see `ranks`. Without `exchange` there is one rank.
    names : the names of the columns, for errors.
    Raises `UserError` for an infinite value, and if there are no rows. Peak memory is that of a block and of five numbers
    for each block and column.
    """
    ends = np.cumsum([len(shard) for shard in shards], dtype=np.int64)
    num_rows = int(ends[-1]) if len(ends) else 0
    num_blocks = -(-num_rows // BLOCK_ROWS)
    if not num_blocks:
        raise UserError("there are no rows to take statistics of: check the data")
    first, last = (number * num_blocks // num_ranks for number in (rank, rank + 1))
    num_columns = _rows(shards, ends, 0, 1).shape[1]
    own_blocks = np.empty((last - first, 5, num_columns))
    for number in range(first, last):
        begin, end = number * BLOCK_ROWS, min((number + 1) * BLOCK_ROWS, num_rows)
        own_blocks[number - first] = _of_block(_rows(shards, ends, begin, end))
    blocks = np.concatenate(exchange(own_blocks)) if exchange else own_blocks
    assert blocks.shape == (num_blocks, 5, num_columns)
    while len(blocks) > 1:
        merged = _merged(blocks[0 : len(blocks) - 1 : 2], blocks[1::2])
        blocks = np.concatenate([merged, blocks[len(merged) * 2 :]])
    count, mean, squares, least, greatest = blocks[0]
    has_values = count > 0
    infinite = np.flatnonzero(has_values & (np.isinf(least) | np.isinf(greatest)))
    if infinite.size:  # after the exchange, so that every rank raises it
        name = names[infinite[0]] if names else f"number {infinite[0]}"
        raise UserError(f"the column {name} has infinite values, which have no mean: remove them from the data")
    return Statistics(
        count=count.astype(np.int64),
        mean=np.where(has_values, mean, np.nan),
        variance=np.divide(squares, count, out=np.full(num_columns, np.nan), where=has_values),
        least=np.where(has_values, least, np.nan),
        greatest=np.where(has_values, greatest, np.nan),
    )


def ranks() -> dict[str, Any]:
    """The arguments of `of_shards` for this process: its rank in a launched job, or none if it is the only process."""
    if "torch" not in sys.modules:
        return {}
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return {}
    num_ranks = distributed.get_world_size()

    def exchange(own: np.ndarray) -> Sequence[np.ndarray]:
        arrays: list[Any] = [None] * num_ranks
        distributed.all_gather_object(arrays, own)
        return arrays

    return {"rank": distributed.get_rank(), "num_ranks": num_ranks, "exchange": exchange}


def _rows(shards: Sequence[Shard], ends: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Rows [begin, end) of all shards, float64."""
    parts = []
    first, last = int(np.searchsorted(ends, begin, side="right")), int(np.searchsorted(ends, end))
    for shard, shard_end in zip(shards[first : last + 1], ends[first : last + 1].tolist(), strict=True):
        start = shard_end - len(shard)
        parts.append(np.asarray(shard[max(begin - start, 0) : min(end, shard_end) - start], np.float64))
    return np.concatenate(parts)


def _of_block(rows: np.ndarray) -> np.ndarray:
    """Count, mean, sum of squared distances from the mean, minimum and maximum of each column, (5, columns)."""
    columns = np.ascontiguousarray(rows.T)  # so that each sum is pairwise over contiguous numbers
    is_value = ~np.isnan(columns)
    count = is_value.sum(axis=1)
    divisor = np.maximum(count, 1)
    with np.errstate(invalid="ignore"):  # of infinite values, which are refused later
        # The mean of the distances from a first estimate of the mean is the rounding error of this estimate
        estimate = np.where(is_value, columns, 0).sum(axis=1) / divisor
        distance = np.where(is_value, columns - estimate[:, None], 0)
        correction = distance.sum(axis=1) / divisor
        squares = np.maximum((distance**2).sum(axis=1) - count * correction**2, 0)
    least = np.where(is_value, columns, np.inf).min(axis=1)
    greatest = np.where(is_value, columns, -np.inf).max(axis=1)
    return np.stack([count, estimate + correction, squares, least, greatest])


def _merged(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Merge pairs of blocks, each (pairs, 5, columns), by the formula of Chan et al."""
    (count_1, mean_1, squares_1, least_1, most_1), (count_2, mean_2, squares_2, least_2, most_2) = (
        np.moveaxis(blocks, 1, 0) for blocks in (first, second)
    )
    count = count_1 + count_2
    share = np.divide(count_2, count, out=np.zeros_like(count), where=count > 0)
    with np.errstate(invalid="ignore"):
        distance = mean_2 - mean_1
        mean = mean_1 + share * distance
        squares = squares_1 + squares_2 + distance**2 * count_1 * share
    return np.stack([count, mean, squares, np.minimum(least_1, least_2), np.maximum(most_1, most_2)], axis=1)
