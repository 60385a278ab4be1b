"""The files of one table to columns of cells as they were written, each cell with its file and line.

    table = read([Path("a.csv"), Path("b.parquet")], census)
    table.texts("order_id")     # pl.Series of String: ids exactly as they were written; null where the cell is empty
    table.place(481)            # 'a.csv:483'

CSV, TSV and JSON lines hold text; Parquet has types of its own. What a column holds is decided over all files, in
`cells.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from ensemble.data import records
from ensemble.data.census import MALFORMED, Census, Example
from ensemble.errors import UserError

NO_ID = "{} holds floats such as {}, and ids are texts or whole numbers below 2^53: write it as text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of all files, one file after the other."""

    pieces: dict[str, list[pl.Series]]
    """The cells of each column, a series for each file: String, or a type of Parquet's."""
    no_cells: dict[str, str]
    """Columns whose values are no single cells, such as lists, and what they hold."""
    floats: dict[str, str]
    """Columns of JSON lines with floats that are no ids, and the first of these."""
    files: Sequence[Path]
    file_number: np.ndarray
    """(num_rows,) which of the files."""
    line: np.ndarray
    """(num_rows,) from 1 on; in Parquet, the row."""
    notes: tuple[str, ...] = ()
    """Sentences on what a person might not expect."""

    @property
    def columns(self) -> list[str]:
        return list(self.pieces)

    @property
    def height(self) -> int:
        return len(self.line)

    def place(self, row: int) -> str:
        """The file and the line of a row."""
        return f"{self.files[self.file_number[row]].name}:{self.line[row]}"

    def texts(self, column: str, setting: str) -> pl.Series:
        """A column as ids: text exactly as it was written, null where the cell is empty; whole numbers in full.

        Raises `UserError`, which names the `setting`, for a column of floats that are not all whole, of lists or bytes, and
        for a text with a NUL byte, which C libraries would cut off.
        """
        if column in self.no_cells:
            raise UserError(f"{setting}={column} holds {self.no_cells[column]}: ids are texts or whole numbers")
        if column in self.floats:
            raise UserError(NO_ID.format(f"{setting}={column}", self.floats[column]))
        texts = pl.concat([_ids(piece, f"{setting}={column}") for piece in self.pieces[column]])
        texts = texts.set(texts == "", None)
        if len(rows := texts.str.contains("\0", literal=True).arg_true()):
            raise UserError(f"{setting}={column} has a NUL byte in {self.place(rows[0])}: remove it")
        return texts


def read(files: Sequence[Path], census: Census) -> Table:
    """All rows of the files; `UserError` for files that are not of one table."""
    frames: list[pl.DataFrame] = []
    lines: list[np.ndarray] = []
    may_lack: list[bool] = []
    no_cells: dict[str, str] = {}
    floats: dict[str, str] = {}
    notes: list[str] = []
    for path in files:
        file = records.look(path)
        nested: set[str] = set()
        names = file.names
        if isinstance(file.layout, records.JsonLines):
            names, nested, of_file = records.keys(file)
            floats = {**{name: f"{value} ({path.name}:{line})" for name, (value, line) in of_file.items()}, **floats}
        shown = _shown(path, names)
        layout = "Parquet" if file.layout is None else "JSON lines"
        if isinstance(file.layout, records.Delimited):
            layout = {"\t": "tab-separated", ";": "CSV with semicolons", ",": "CSV"}[file.layout.delimiter]
        census.files.append({"file": path.name, "format": f"{layout}, {len(names)} columns"})
        # By position, since `source_line` may be a column's name
        fields = {str(position): name for position, name in enumerate(names)}
        blocks = []
        for rows, malformed in records.read_blocks(file, fields, {}, records.BLOCK_BYTES):
            census.read(rows.height + len(malformed))
            examples = (Example(path.name, record.line, records.excerpt(record.octets)) for record in malformed)
            census.drop(MALFORMED, len(malformed), examples)
            blocks.append(rows)
        if not blocks:
            raise UserError(f"{path} has no rows below its header: check how it was made, or leave it out")
        frame = pl.concat(blocks, how="vertical_relaxed")
        lines.append(frame["source_line"].to_numpy())
        frames.append(frame.select(*fields).rename(dict(zip(fields, shown, strict=True))))
        may_lack.append(isinstance(file.layout, records.JsonLines))
        no_cells |= {name: str(kind) for name, kind in frames[-1].schema.items() if not _holds_cells(kind)}
        no_cells |= dict.fromkeys(nested, "lists or objects")
        if isinstance(file.layout, records.Delimited) and all(records.is_number(name) for name in names):
            notes.append(f"the first line of {path.name} gives the names of the columns, and all are numbers: is it a row?")
    names = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    for path, frame, lacks in zip(files, frames, may_lack, strict=True):
        for name in names:
            if name not in frame.columns and not lacks:
                raise UserError(f"{path} has no column '{name}', which another of the files has: give files of one table")
            if name not in frame.columns:
                notes.append(f"no record of {path.name} has the key '{name}': its cells are empty there")
    return Table(
        pieces={
            name: [frame[name] if name in frame.columns else pl.repeat(None, frame.height, dtype=pl.Null, eager=True)
                   for frame in frames]
            for name in names
        },
        no_cells=no_cells,
        floats=floats,
        files=files,
        file_number=np.repeat(np.arange(len(files)), [len(numbers) for numbers in lines]),
        line=np.concatenate(lines),
        notes=tuple(notes),
    )  # fmt: skip


def _shown(path: Path, names: list[str]) -> list[str]:
    """The names of a file's columns, the number for one without a name; `UserError` where two are the same."""
    for name, count in Counter(names).items():
        if count > 1:
            what = f"two columns '{name}'" if name else "two columns without a name"
            raise UserError(f"{path} has {what}: give each its own name")
    shown = [name or f"column {position}" for position, name in enumerate(names, start=1)]
    if len(set(shown)) < len(shown):
        raise UserError(f"{path} has a column without a name beside one that is called 'column …': give it a name")
    return shown


def _holds_cells(kind: pl.DataType) -> bool:
    return (
        kind.is_numeric()
        or kind in (pl.String, pl.Boolean, pl.Date, pl.Null)
        or isinstance(kind, pl.Categorical | pl.Enum | pl.Datetime)
    )


def _ids(piece: pl.Series, what: str) -> pl.Series:
    """A piece of a column as text, floats as whole numbers."""
    if piece.dtype.is_float():
        known = piece.drop_nulls().drop_nans()
        odd = known.filter((known != known.floor()) | (known.abs() >= records.MOST_EXACT) | known.is_infinite())
        if len(odd):
            raise UserError(NO_ID.format(what, repr(odd[0])))
    return as_text(whole(piece))


def whole(piece: pl.Series) -> pl.Series:
    """A piece of floats as whole numbers, if it holds no others."""
    if not piece.dtype.is_float():
        return piece
    known = piece.drop_nulls().drop_nans()
    is_whole = ((known == known.floor()) & (known.abs() < records.MOST_EXACT)).all()
    return piece.fill_nan(None).cast(pl.Int64) if is_whole else piece.fill_nan(None)


def as_text(piece: pl.Series) -> pl.Series:
    """A piece of a column as text: numbers and truth values as JSON writes them, dates as ISO 8601 does."""
    if isinstance(piece.dtype, pl.Datetime):
        naive = piece.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if piece.dtype.time_zone else piece
        return naive.dt.to_string("%Y-%m-%d %H:%M:%S%.6f")
    return piece.cast(pl.String)
