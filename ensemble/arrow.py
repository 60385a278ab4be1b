"""Arrow folders that `datasets.load_from_disk` opens, written in constant memory and gathered without a loop over rows.

Measured on 2 cores: a vectorised gather from memory-mapped Arrow reads millions of rows per CPU second, and `dataset[i]` of
`datasets` about six thousand. So a batch is gathered by a few numpy index operations on views of the mapped file.
"""

import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble.commands import imports
from ensemble.errors import UserError

imports.pyarrow_alone()

FILE = "data-00000-of-00001.arrow"
DTYPES = {
    pa.int64(): "int64",
    pa.int32(): "int32",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.large_string(): "large_string",
    pa.string(): "string",
    pa.bool_(): "bool",
}
"""The names that `datasets` gives to these types."""


class TableWriter(AbstractContextManager["TableWriter"]):
    """Writes record batches of one schema to a folder as a stream: only the current batch is in memory."""

    def __init__(self, folder: Path, schema: pa.Schema):
        folder.mkdir(parents=True)
        self.folder, self.schema, self.num_rows = folder, schema, 0
        self._writer = pa.ipc.new_stream(str(folder / FILE), schema)

    def write(self, table: pa.Table) -> None:
        """Append a table as one record batch, so that a reader gets few, long chunks. A table without rows adds none."""
        if table.num_rows:
            (batch,) = table.cast(self.schema).combine_chunks().to_batches()
            self._writer.write_batch(batch)
            self.num_rows += table.num_rows

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._writer.close()
        if error is None:
            write_description(self.folder, self.schema, self.num_rows, [FILE])


def write_table(folder: Path, table: pa.Table) -> None:
    """Write a folder with the rows of one table. Raises `UserError` for a frame of another library."""
    if not isinstance(table, pa.Table):
        fix = "convert it, as by pyarrow.Table.from_pandas(…), to_arrow() of polars or pyarrow.table(…)"
        raise UserError(f"write_table for {folder.name} gets a {type(table).__name__}, not a pyarrow.Table: {fix}")
    with TableWriter(folder, table.schema) as writer:
        writer.write(table)


def join(folder: Path, parts: Sequence[Path]) -> None:
    """Write a folder with the rows of `parts`, in order, by links to their files.

    parts : Arrow folders with one file each and the same schema
    """
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for part, name in zip(parts, names, strict=True):
        link(part / FILE, folder / name)
    tables = [open_table(part) for part in parts]
    write_description(folder, tables[0].schema, sum(table.num_rows for table in tables), names)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_description(folder: Path, schema: pa.Schema, num_rows: int, names: Sequence[str]) -> None:
    """Write the two JSON files by which `datasets` recognises the folder."""
    info: dict[str, Any] = {"description": "", "citation": "", "homepage": "", "license": ""}
    kinds = {field.name: DTYPES.get(field.type) for field in schema}
    if all(kinds.values()):  # written without `datasets`, whose import takes a second
        info["features"] = {name: {"dtype": kind, "id": None, "_type": "Value"} for name, kind in kinds.items()}
    else:
        from datasets import DatasetInfo, Features

        info = dataclasses.asdict(DatasetInfo(features=Features.from_arrow_schema(schema)))
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=1), encoding="utf-8")
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": f"{num_rows:016x}",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")


def open_table(folder: str | Path) -> pa.Table:
    """The memory-mapped table in an Arrow folder; `UserError` if it is missing or damaged."""
    if not Path(folder).exists():
        raise UserError(f"{folder} does not exist: the prepared data have no such part")
    try:  # read without `datasets`, whose import takes a second
        state, info = (
            json.loads((Path(folder) / name).read_text(encoding="utf-8")) for name in ("state.json", "dataset_info.json")
        )
        files = [Path(folder) / file["filename"] for file in state["_data_files"]]
        table = pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
        if set(info["features"]) != set(table.column_names):
            raise ValueError("dataset_info.json lists other columns than the files have")
        return table
    except PermissionError:
        raise UserError(f"{folder} cannot be read (Permission denied): check its permissions") from None
    except (OSError, ValueError, TypeError, AttributeError, KeyError, pa.ArrowException) as error:
        raise UserError(f"{folder} is not valid prepared data ({' '.join(str(error).split())}): prepare it again") from None


class Column:
    """A column of a memory-mapped table, from which rows are gathered by number.

    A column of numbers gives arrays of shape (n,), and one of fixed-size lists of length k arrays of shape (n, k). The file
    is never read as a whole: each chunk is a numpy view of the mapped file. Only a chunk of floating-point numbers with
    nulls is copied, since these become NaN.
    """

    def __init__(self, table: pa.Table, name: str):
        self.views = [_view(chunk) for chunk in table[name].chunks if len(chunk)] or [_view(table[name].combine_chunks())]
        self._ends = np.cumsum([len(view) for view in self.views])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The values at `rows`, integers of any shape. The result has that shape, and for lists a last axis of length k."""
        if len(self.views) == 1:
            return self.views[0][rows]
        chunk_of_row = np.searchsorted(self._ends, rows, side="right")
        first = self.views[0]
        result = np.empty(rows.shape + first.shape[1:], first.dtype)
        for chunk in np.unique(chunk_of_row):
            here = chunk_of_row == chunk
            start = self._ends[chunk] - len(self.views[chunk])
            result[here] = self.views[chunk][rows[here] - start]
        return result

    def all(self) -> np.ndarray:
        """The whole column: a view of the file if the table has one chunk, otherwise a copy."""
        return self.views[0] if len(self.views) == 1 else np.concatenate(self.views)


def read_columns(folder: str | Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Whole columns of the table in an Arrow folder, as by `Column.all`."""
    table = open_table(folder)
    return {name: Column(table, name).all() for name in names}


def array(values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """A column of numbers from values (n,), or of fixed-size lists from values (n, …). kind : the numbers' type."""
    flat = pa.array(np.ascontiguousarray(values).ravel(), kind)
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, math.prod(values.shape[1:]))


def _view(values: pa.Array) -> np.ndarray:
    if pa.types.is_fixed_size_list(values.type):
        return values.flatten().to_numpy().reshape(len(values), values.type.list_size)
    return values.to_numpy(zero_copy_only=not pa.types.is_floating(values.type))


def ranges(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the integer ranges [begin, end). Returns their integers, and for each integer the number of its range.

    `begin` and `end` have shape (n,); the results have shape (sum of lengths,).
    """
    lengths = end - begin
    range_number = np.repeat(np.arange(len(begin)), lengths)
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts - begin, lengths), range_number


def stored_names(columns: Iterable[str], taken: Iterable[str]) -> list[str]:
    """A name for each of `columns`, all distinct and none in `taken`. They consist of letters, digits and underscores, since
    the tree libraries refuse brackets, commas and quotes."""
    used, names = set(taken), []
    for column in columns:
        name = plain = re.sub(r"\W+", "_", column).strip("_") or "column"
        number = 2
        while name in used:
            name, number = f"{plain}_{number}", number + 1
        used.add(name)
        names.append(name)
    return names
