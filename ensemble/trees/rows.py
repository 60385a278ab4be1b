"""One split of prepared data for a tree library: memory-mapped columns, batches of rows, and the shard of a rank."""

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
    """One split for a tree library; nothing is copied before a batch is requested.

    With `num_ranks` above 1 it is the shard of `rank`. Rows are sorted by time, so the split is divided into about
    `NUM_BLOCKS` equal blocks, which are dealt to the ranks in a random order. So a rank has rows of all times, still
    memory-mapped.
    """

    def __init__(self, folder: str | Path, split: str, manifest: dict[str, Any], rank: int = 0, num_ranks: int = 1):
        if split not in manifest["splits"]:
            raise UserError(f"{folder} has no split '{split}': it has {', '.join(manifest['splits'])}")
        self.table = open_table(Path(folder) / "rows" / split)
        self.task = task_of(manifest)
        self.features = [feature["name"] for feature in manifest["features"]]
        self.categories = {
            feature["name"]: feature["categories"] for feature in manifest["features"] if feature.get("categories")
        }
        """The number of categories of each categorical feature."""
        self._rows: np.ndarray | None = None
        """The rows that `take` selected; None for all."""
        self.whole = self.table
        """The rows of all ranks."""
        if num_ranks > 1:
            self.table = _shard(self.table, rank, num_ranks)

    def __len__(self) -> int:
        return self.table.num_rows if self._rows is None else len(self._rows)

    def take(self, rows: np.ndarray) -> "TreeData":
        """The split with these rows only, in this order."""
        selection = copy.copy(self)
        selection._rows = rows if self._rows is None else self._rows[rows]
        return selection

    def replaced(self, columns: dict[str, np.ndarray]) -> "TreeData":
        """The split with other values, (num_rows,) float32, of some features, which are no longer categorical."""
        assert self._rows is None
        changed = copy.copy(self)
        for name, values in columns.items():
            changed.table = changed.table.set_column(changed.table.column_names.index(name), name, pa.array(values))
        changed.whole = changed.table
        changed.categories = {name: number for name, number in self.categories.items() if name not in columns}
        return changed

    def joined(self, other: "TreeData") -> "TreeData":
        """These rows, followed by those of another split; nothing is copied, and `whole` stays the same."""
        assert self._rows is None
        assert other._rows is None
        both = copy.copy(self)
        both.table = pa.concat_tables([self.table, other.table])
        return both

    def column(self, name: str) -> np.ndarray:
        column = self.table[name].to_numpy()
        return column if self._rows is None else column[self._rows]

    def column_of_all(self, name: str) -> np.ndarray:
        """A column with the rows of all ranks; after `take`, with the selected rows."""
        return self.whole[name].to_numpy() if self._rows is None else self.column(name)

    def feature_table(self) -> pa.Table:
        """The features as an Arrow table of float32 columns, memory-mapped unless rows are selected or values replaced."""
        if self._rows is None:
            return self.table.select(self.features)
        return pa.table({name: Column(self.table, name).take(self._rows) for name in self.features})

    def matrix(self) -> np.ndarray:
        """All features, (num_rows, F) float32."""
        return np.concatenate(list(self.batches()))

    def batches(self) -> Iterator[np.ndarray]:
        """Features (n, F) float32, in batches of rows."""
        columns = [Column(self.table, name) for name in self.features] if self._rows is not None else []
        for start in range(0, len(self), ROWS_PER_BATCH):
            if self._rows is None:
                batch = self.table.slice(start, ROWS_PER_BATCH)
                yield np.stack([batch[name].to_numpy() for name in self.features], axis=1)
            else:
                rows = self._rows[start : start + ROWS_PER_BATCH]
                yield np.stack([column.take(rows) for column in columns], axis=1)


def tree_manifest(data: str | Path) -> dict[str, Any]:
    """The manifest of data for trees; `UserError` for data of a recipe without a table of features or a task."""
    manifest = folders.read_manifest(data)
    lacking = "table of features" if not manifest.get("features") else "task" if "task" not in manifest else ""
    if lacking:
        raise UserError(
            f"{data} has no {lacking} for trees: it was prepared for the recipe {manifest['recipe']}, whose networks "
            "scripts/train.py trains"
        )
    return manifest


def _shard(table: pa.Table, rank: int, num_ranks: int) -> pa.Table:
    """The blocks of a rank, in order, without a copy. They are drawn at random, since every
    num_ranks-th block could contain only a few products."""
    rows_per_block = math.ceil(table.num_rows / max(NUM_BLOCKS, num_ranks))
    if num_ranks * rows_per_block > table.num_rows:
        raise UserError(f"{num_ranks} ranks cannot share the {table.num_rows} rows of the training split: start fewer ranks")
    blocks = np.random.default_rng(0).permutation(math.ceil(table.num_rows / rows_per_block))[rank::num_ranks]
    return pa.concat_tables(table.slice(start, rows_per_block) for start in np.sort(blocks) * rows_per_block)
