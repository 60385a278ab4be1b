"""Conversion of pandas and polars DataFrames to Arrow tables, and of results back to the same kind of frame."""

import datetime
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from ensemble.errors import Failure, UserError, full_temporary_disk, is_disk_full

FromArrow = Callable[[pa.Table], Any]


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A new folder for temporary files. Raises `Failure` if there can be none."""
    try:
        return tempfile.TemporaryDirectory(prefix="ensemble-")
    except OSError as error:  # such as a folder that was deleted since this process has started
        raise Failure(f"no temporary files can be written ({error}): create their folder again") from None


def as_files(rows: Any, file: Path) -> tuple[list[str], FromArrow]:
    """The paths of files with the rows, and a function that converts an Arrow table to the same kind of frame: polars for
    paths.

    rows : a path, a list of paths, or rows as for `to_arrow`, which are written to the temporary Parquet file `file`.
    """
    paths = rows if isinstance(rows, (list, tuple)) else [rows]
    if isinstance(rows, (list, tuple)) and not rows:
        raise UserError("the list of files is empty: give at least one path")
    if all(isinstance(path, (str, Path)) for path in paths):
        import polars

        return [str(path) for path in paths], polars.from_arrow
    table, from_arrow = to_arrow(rows)
    write(table, file)
    return [str(file)], from_arrow


def to_arrow(rows: Any) -> tuple[pa.Table, FromArrow]:
    """The rows as an Arrow table, and a function that converts an Arrow table to the same kind of frame as `rows`.

    rows : a pandas or polars DataFrame, or an Arrow table. Raises `UserError` for anything else, for a frame without rows or
    columns, and for a column of mixed types. Neither library is imported here: whoever passes a frame has imported it.
    """
    polars, pandas = (sys.modules.get(name) for name in ("polars", "pandas"))
    kinds = (pa.Table, *(library.DataFrame for library in (polars, pandas) if library))
    if not isinstance(rows, kinds):
        raise UserError(
            f"rows are of the type {type(rows).__name__}: give a path, a pandas or polars DataFrame, or an Arrow table"
        )
    if 0 in rows.shape:
        raise UserError(f"the frame has {rows.shape[0]} rows and {rows.shape[-1]} columns: give at least one of each")
    if isinstance(rows, pa.Table):
        return rows, lambda table: table
    if polars and isinstance(rows, polars.DataFrame):
        try:
            return rows.to_arrow(), polars.from_arrow
        except pa.ArrowException as error:  # a type that Arrow does not have, such as Int128
            raise UserError(f"the frame cannot be read ({error}): give its columns other types") from None
    return _from_pandas(rows), lambda table: _to_pandas(table, rows)


def write(table: pa.Table, path: str | Path) -> None:
    """Write rows as a temporary Parquet file. Raises `UserError` for a column that it cannot hold, such as one of empty
    dicts, and for a full disk."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(table, path, compression="none")
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_disk_full(error):
            raise full_temporary_disk() from None
        reason = " ".join(str(error).split())
        raise UserError(f"the rows cannot be stored as Parquet ({reason}): leave that column out, or convert it") from None


def _to_pandas(table: pa.Table, rows: Any) -> Any:
    """The table as a DataFrame, with the index of `rows`, by which pandas joins columns, if it has one row for each of them
    in their order."""
    frame = table.to_pandas()
    has_row_order = "row_id" in frame and len(frame) == len(rows) and frame["row_id"].is_monotonic_increasing
    return frame.set_axis(rows.index) if has_row_order else frame


def _refuse_mixed_times(name: str, cells: Any) -> None:
    """Raise `UserError` if only some of the objects have a time, or a time zone: Arrow would remove the time or the zone."""
    if cells.dtype != object:
        return
    kinds = set()
    for cell in cells:
        if isinstance(cell, datetime.datetime):
            if cell == cell:  # NaT, a missing time, differs from itself
                kinds.add("times with a zone" if cell.tzinfo else "times without a zone")
        elif isinstance(cell, datetime.date):
            kinds.add("dates without a time")
    if len(kinds) > 1:
        raise UserError(f"the column '{name}' has {' and '.join(sorted(kinds))}: convert it, as by pandas.to_datetime")


def _of_arrow_types(cells: Any) -> Any:
    """A pandas column with values of types that Arrow has: all values of a sparse column, the first time of a period, texts
    for intervals, and texts for categories that are numbers, booleans or intervals, such as 3 for the float 3.0."""
    kind = type(cells.dtype).__name__
    if kind == "SparseDtype":
        return cells.sparse.to_dense()
    if kind == "PeriodDtype":
        return cells.dt.to_timestamp()
    if kind == "IntervalDtype":
        return cells.astype("object").map(str, na_action="ignore")
    if not hasattr(cells, "cat") or cells.cat.categories.dtype.kind not in "biufO":
        return cells

    def text(category: Any) -> str:
        is_whole = isinstance(category, float) and category.is_integer()
        return str(category).lower() if isinstance(category, bool) else str(int(category) if is_whole else category)

    categories = cells.cat.categories.tolist()
    dtype = cells.cat.categories.dtype  # float32, Float32 or float[pyarrow]
    if dtype.kind == "f" and dtype.itemsize == 4:  # as 64 bits 0.1 would be 0.10000000149011612, unlike in a file
        categories = [float(str(category)) for category in cells.cat.categories.to_numpy()]
    return cells.cat.rename_categories([text(category) for category in categories])


def _from_pandas(rows: Any) -> pa.Table:
    """An Arrow table of a pandas DataFrame, without its index. A categorical column of texts is a dictionary array."""
    names = [str(name) for name in rows.columns]
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise UserError(f"two columns are named '{repeated[0]}': rename one")
    left_out = ", ".join(str(name) for name in rows.index.names if name is not None and str(name) not in names)
    if left_out or (rows.index.name is None and rows.index.dtype.kind == "M"):
        description = left_out or "of dates"
        print(f"warning: the index {description} is no column and is left out: reset_index() makes it one", file=sys.stderr)
    columns = {}
    for position, name in enumerate(names):
        cells = rows.iloc[:, position]
        _refuse_mixed_times(name, cells)
        try:
            column = pa.Array.from_pandas(_of_arrow_types(cells))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the column '{name}' cannot be read ({reason}): give all its cells one type") from None
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(column.type) and column.type.value_type not in (pa.string(), pa.large_string()):
            column = column.dictionary_decode()
        columns[name] = column
    return pa.table(columns)
