"""Generated interactions for the benchmarks of next_item: text files for public implementations, and prepared data."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from ensemble.recipes.next_item import prepare
from ensemble.recipes.next_item.settings import PrepareConfig

TIMES_EACH = 5
"""The smallest number of interactions of an item, so that the 5-core keeps all items."""


def movielens_lengths(num_users: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths as in MovieLens 1M: at least 20, median 105, mean 165."""
    return np.clip(generator.lognormal(np.log(105), 0.95, num_users), 20, 2314).astype(np.int64)


def beauty_lengths(num_users: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths as in Amazon's reviews of beauty products: at least 5, mean 8.9."""
    return 4 + generator.geometric(1 / 4.9, num_users)


def write(folder: Path, lengths: np.ndarray, num_items: int, generator: np.random.Generator) -> None:
    """Write data/pairs.txt (user, item), data/times.txt (user, item, rating, seconds), and the folder prepared/.

    Both files are sorted by user and time. The popularity of items follows a power law. Half of the intervals
    are 0, the others log-normal with a median of an hour.
    """
    total = int(lengths.sum())
    assert total >= TIMES_EACH * num_items
    share = 1 / np.arange(20, num_items + 20)
    items = 1 + generator.permutation(num_items)[np.searchsorted(share.cumsum() / share.sum(), generator.random(total))]
    items[generator.permutation(total)[: TIMES_EACH * num_items]] = np.tile(np.arange(1, num_items + 1), TIMES_EACH)
    users = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    between = np.where(generator.random(total) < 0.5, 0, np.ceil(generator.lognormal(np.log(3600), 2, total)))
    elapsed = between.cumsum().astype(np.int64)
    seconds = 10**9 + elapsed - np.repeat(elapsed[lengths.cumsum() - lengths], lengths)
    ratings = generator.integers(1, 6, total)
    (folder / "data").mkdir(parents=True)
    _write_lines(folder / "data" / "pairs.txt", " ", users, items)
    _write_lines(folder / "data" / "times.txt", "\t", users, items, ratings, seconds)
    config = PrepareConfig(source=(str(folder / "data" / "times.txt"),), out=str(folder / "prepared"))
    with redirect_stdout(StringIO()):  # prepare prints how many rows were read
        prepare.prepare(config)


def _write_lines(file: Path, delimiter: str, *columns: np.ndarray) -> None:
    table = pa.table({str(number): column for number, column in enumerate(columns)})
    csv.write_csv(table, file, csv.WriteOptions(include_header=False, delimiter=delimiter))
