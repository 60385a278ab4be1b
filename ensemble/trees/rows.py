"""One split of prepared data as a tree library reads it: memory-mapped columns, a batch at a time, or a rank's shard."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import folders
from ensemble.arrow import Column, open_table
from ensemble.errors import UserError
from ensemble.task import task_of

ROWS_PER_BATCH = 1 << 17
NUM_BLOCKS = 1024


class TreeData:
    """One split as a tree library reads it; nothing is copied before a batch is asked for.

    With `num_ranks` it is the shard of `rank`. Rows are stored by week, so each rank gets every num_ranks-th of about
    `NUM_BLOCKS` equal blocks: all weeks on all ranks, as evenly as blocks can be dealt, and still memory-mapped.
    """

    def __init__(self, folder: str | Path, split: str, about: dict[str, Any], rank: int = 0, num_ranks: int = 1):
        if split not in about["splits"]:
            raise UserError(f"{folder} has no split '{split}': it has {', '.join(about['splits'])}")
        self.table = open_table(Path(folder) / "rows" / split)
        self.task = task_of(about)
        self.features = [feature["name"] for feature in about["features"]]
        self.categories = {
            feature["name"]: feature["categories"] for feature in about["features"] if feature.get("categories")
        }
        self._taken: np.ndarray | None = None
        self.whole = self.table
        """The rows of all ranks."""
        if num_ranks > 1:
            self.table = _shard(self.table, rank, num_ranks)

    def __len__(self) -> int:
        return self.table.num_rows if self._taken is None else len(self._taken)

    def take(self, rows: np.ndarray) -> "TreeData":
        """The same split with only these rows, in this order."""
        taken = copy.copy(self)
        taken._taken = rows if self._taken is None else self._taken[rows]
        return taken

    def replaced(self, columns: dict[str, np.ndarray]) -> "TreeData":
        """The same split with other values, (num_rows,) float32, of some features, which are no categories any more."""
        assert self._taken is None
        changed = copy.copy(self)
        for name, values in columns.items():
            changed.table = changed.table.set_column(changed.table.column_names.index(name), name, pa.array(values))
        changed.whole = changed.table
        changed.categories = {name: number for name, number in self.categories.items() if name not in columns}
        return changed

    def joined(self, other: "TreeData") -> "TreeData":
        """These rows and then those of another split; nothing is copied."""
        assert self._taken is None
        assert other._taken is None
        both = copy.copy(self)
        both.table = pa.concat_tables([self.table, other.table])
        return both

    def column(self, name: str) -> np.ndarray:
        whole = self.table[name].to_numpy()
        return whole if self._taken is None else whole[self._taken]

    def column_of_all(self, name: str) -> np.ndarray:
        """A column of the rows of all ranks; of rows that were taken, of those."""
        return self.whole[name].to_numpy() if self._taken is None else self.column(name)

    def feature_table(self) -> pa.Table:
        """The features as an Arrow table of float32 columns: still memory-mapped, but for rows that were taken."""
        if self._taken is None:
            return self.table.select(self.features)
        return pa.table({name: Column(self.table, name).take(self._taken) for name in self.features})

    def batches(self) -> Iterator[np.ndarray]:
        """Features (n, F) float32, a batch of rows at a time."""
        columns = [Column(self.table, name) for name in self.features] if self._taken is not None else []
        for start in range(0, len(self), ROWS_PER_BATCH):
            if self._taken is None:
                batch = self.table.slice(start, ROWS_PER_BATCH)
                yield np.stack([batch[name].to_numpy() for name in self.features], axis=1)
            else:
                rows = self._taken[start : start + ROWS_PER_BATCH]
                yield np.stack([column.take(rows) for column in columns], axis=1)


def description(data: str | Path) -> dict[str, Any]:
    """The manifest of data that trees can learn from; `UserError` for data of a recipe that gives no features or no task."""
    about = folders.read_manifest(data)
    lacking = "table of features" if not about.get("features") else "task" if "task" not in about else ""
    if lacking:
        raise UserError(
            f"{data} has no {lacking} for trees: it was prepared for the recipe {about['recipe']}, whose networks "
            "scripts/train.py trains"
        )
    return about


def _shard(table: pa.Table, rank: int, num_ranks: int) -> pa.Table:
    """Every num_ranks-th block of a table, from block `rank` on; nothing is copied."""
    block = math.ceil(table.num_rows / max(NUM_BLOCKS, num_ranks))
    pieces = [table.slice(start, block) for start in range(rank * block, table.num_rows, num_ranks * block)]
    if num_ranks * block > table.num_rows:
        raise UserError(f"{num_ranks} ranks cannot share the {table.num_rows} rows of the training split: start fewer")
    return pa.concat_tables(pieces)
