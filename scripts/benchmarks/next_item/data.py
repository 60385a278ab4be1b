"""Generated interactions for the next_item benchmarks, in the lines that the public references read, and prepared by us."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from ensemble.recipes.next_item import prepare
from ensemble.recipes.next_item.settings import PrepareConfig

TIMES_EACH = 5
"""Every item is taken as often at least, so that no filter leaves one out."""


def movielens_lengths(num_users: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths like MovieLens 1M's: at least 20, half below 105, 165 in the mean."""
    return np.clip(generator.lognormal(np.log(105), 0.95, num_users), 20, 2314).astype(np.int64)


def beauty_lengths(num_users: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths like those of Amazon's reviews of beauty products: at least 5, 8.9 in the mean."""
    return 4 + generator.geometric(1 / 4.9, num_users)


def write(folder: Path, lengths: np.ndarray, num_items: int, generator: np.random.Generator) -> None:
    """data/pairs.txt (user, item) and data/times.txt (user, item, rating, seconds), by user and time, and prepared/.

    Items are popular by a power law. Half of the times between are 0, the others log-normal, an hour in the median.
    """
    total = int(lengths.sum())
    assert total >= TIMES_EACH * num_items
    share = 1 / np.arange(20, num_items + 20)
    items = 1 + generator.permutation(num_items)[np.searchsorted(share.cumsum() / share.sum(), generator.random(total))]
    items[generator.permutation(total)[: TIMES_EACH * num_items]] = np.tile(np.arange(1, num_items + 1), TIMES_EACH)
    users = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    between = np.where(generator.random(total) < 0.5, 0, np.ceil(generator.lognormal(np.log(3600), 2, total)))
    # One user begins where another ends, which is of no account
    since = between.cumsum().astype(np.int64)
    seconds = 10**9 + since - np.repeat(since[lengths.cumsum() - lengths], lengths)
    ratings = generator.integers(1, 6, total)
    (folder / "data").mkdir(parents=True)
    _write_lines(folder / "data" / "pairs.txt", " ", users, items)
    _write_lines(folder / "data" / "times.txt", "\t", users, items, ratings, seconds)
    config = PrepareConfig(source=(str(folder / "data" / "times.txt"),), out=str(folder / "prepared"))
    with redirect_stdout(StringIO()):  # how many rows were read
        prepare.prepare(config)


def _write_lines(file: Path, delimiter: str, *columns: np.ndarray) -> None:
    table = pa.table({str(number): column for number, column in enumerate(columns)})
    csv.write_csv(table, file, csv.WriteOptions(include_header=False, delimiter=delimiter))
