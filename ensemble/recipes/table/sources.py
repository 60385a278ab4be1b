"""Reading the files of one table: the cells of each column as they were written, with the file and line of each row.

    table = read([Path("a.csv"), Path("b.parquet")], census)
    table.texts("order_id", "id")     # pl.Series of String: ids exactly as they were written; null where the cell is empty
    table.place(481)                  # 'a.csv:483'

CSV, TSV and JSON lines hold text; Parquet has types. `cells.py` determines the kind of each column over all files. The files
in a folder named `KEY=VALUE`, as Spark and Hive write it, have a column KEY with this value.
"""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import polars as pl

from ensemble.data import records
from ensemble.data.census import MALFORMED, Census, Example
from ensemble.data.values import MOST_EXACT
from ensemble.errors import UserError, listed

HEADER, NO_CELLS = "the header again", "lines of delimiters alone at the end"
FOLDER_KEY = "the column '{0}' is read from the names of folders such as {0}={1}"
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value that Hive writes into the name of a folder whose rows have none."""
WHOLE_FLOAT = r"^([+-]?(?:0|[1-9]\d*))\.0+$"
SMALL_FLOAT = r"^-?\d(?:\.\d+)?e-\d\d+$"
"""Matches 1e-05, as Python writes this float."""
WHOLE_SECONDS = r" 00:00:00(?:\.0{6})?$|(:\d\d)\.0{6}$"
"""Matches the end of a time that `as_text` removes: midnight, or a fraction of 0. Categories that earlier versions of this
project stored still have it, as has a CSV file that pandas wrote from days beside times."""
MICROSECONDS_PER_DAY = 86_400_000_000
MICROSECONDS_PER_UNIT = {"us": 1, "ms": 1000}
FURTHEST = 7_800_000_000_000_000_000
"""Microseconds since 1970, in the year 249,142: with later times polars raises PanicException."""
NO_ID = "{} holds floats such as {}, and ids are texts or whole numbers below 2^53 (2^24 in 32 bits): write it as text"
ROUNDED = r"^[1-9][.,]\d+E\+\d\d$"
"""Matches 1.23457E+11, as Excel shows and exports a long whole number."""
GIVE_NAMES = (
    "give each field a name, with no line above the names, and enclose a field with quotes in quotes, with its own quotes "
    "doubled"
)
GIVE_ALL_NAMES = (
    "give each field a name, also the field of row names or numbers that R writes first; if each line ends with a "
    "delimiter, end the header with one too"
)
COMMENT = r"#[# ]"
"""The beginning of a comment, but not of the names `#` and `#chrom`."""
NO_COMMENTS = "remove the lines above the names of the columns, as `grep -v '^#' OLD > NEW` does with comments"
NO_BLANKS = "remove the blanks before quotes, since a field with quotes begins with one"


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of all files, one file after the other."""

    pieces: dict[str, list[pl.Series]]
    """The cells of each column, a series for each file: String, or a type of Parquet."""
    nested: dict[str, str]
    """Columns of lists, bytes and other values that are no single number, text, boolean or time, with their kind."""
    floats: dict[str, str]
    """Columns of JSON lines with floats that cannot be ids, each with the first of these floats."""
    files: Sequence[Path]
    are_json: Sequence[bool]
    """Whether each file has JSON lines, in which the decimal separator is always a point."""
    file_number: np.ndarray
    """(num_rows,) index in `files`."""
    line: np.ndarray
    """(num_rows,) line number from 1 on; in Parquet, row number."""
    notes: tuple[str, ...] = ()
    """Messages about unusual data."""

    @property
    def columns(self) -> list[str]:
        return list(self.pieces)

    @property
    def height(self) -> int:
        return len(self.line)

    def place(self, row: int) -> str:
        """File and line of a row, as in a.csv:483."""
        return f"{self.files[self.file_number[row]].name}:{self.line[row]}"

    def by_file(self, cells: pl.Series) -> list[pl.Series]:
        """A column, (num_rows,), cut into a series for each file."""
        sizes = np.bincount(self.file_number, minlength=len(self.files)).tolist()
        return [cells.slice(end - size, size) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]

    def texts(self, column: str, setting: str) -> pl.Series:
        """A column as ids: texts exactly as written, null for empty cells; whole numbers of any type with all digits.

        Raises `UserError`, which names the `setting`, for a column of lists or bytes, for floats that are not whole or not
        exact, for whole numbers that Excel has rounded, and for texts with a NUL byte, at which C libraries would truncate
        them.
        """
        if column in self.nested:
            raise UserError(f"{setting}={column} holds {self.nested[column]}: ids are texts or whole numbers")
        if column in self.floats:
            raise UserError(NO_ID.format(f"{setting}={column}", self.floats[column]))
        pieces = self.pieces[column]
        texts = in_one_notation(pl.concat([_ids(piece, f"{setting}={column}") for piece in pieces]), pieces)
        texts = texts.set(texts == "", None)
        if len(rows := texts.str.contains("\0", literal=True).arg_true()):
            raise UserError(f"{setting}={column} has a NUL byte in {self.place(rows[0])}: remove it")
        if len(rows := texts.str.contains(ROUNDED).arg_true()):
            raise UserError(
                f"{setting}={column} holds '{texts[rows[0]]}' in {self.place(rows[0])}, which Excel has rounded, so "
                "different ids may be equal: format the column as a number without decimals, and export it again"
            )
        return texts


def read(files: Sequence[Path], census: Census, with_copies: bool = False) -> Table:
    """Read all rows of the files. with_copies : whether files may have equal rows without a message.

    Files that end after their header are left out with a message, if another file has rows of these columns. Raises
    `UserError` for another file without rows, and for files with different columns; JSON lines may lack some columns.
    """
    raw_files = [records.look(path) for path in files]
    ends = {file.path for file in raw_files if not file.head and file.start >= file.path.stat().st_size}
    columns = {frozenset(file.names) for file in raw_files if file.path not in ends}
    headers = [file.path.name for file in raw_files if file.path in ends and frozenset(file.names) in columns]
    raw_files = [file for file in raw_files if file.path not in ends or frozenset(file.names) not in columns]
    files = [file.path for file in raw_files]
    frames: list[pl.DataFrame] = []
    lines: list[np.ndarray] = []
    nested: dict[str, str] = {}
    floats: dict[str, str] = {}
    notes = [f"files without rows below their header are left out: {listed(headers, 3)}"] if headers else []
    folder_keys: dict[str, str | None] = {}
    for path, file in zip(files, raw_files, strict=True):
        names = file.names
        nested_keys: set[str] = set()
        file_floats: dict[str, tuple[float, int]] = {}
        if isinstance(file.layout, records.JsonLines):
            names, nested_keys, file_floats = records.keys(file)
            if not names:
                raise UserError(f"no record of {path} has a key: check how it was made, or leave it out")
        column_names = _column_names(path, names)
        column_of = dict(zip(names, column_names, strict=True))
        nested |= {column_of[name]: "lists or objects" for name in nested_keys}
        first_floats = {column_of[name]: f"{value} ({path.name}:{line})" for name, (value, line) in file_floats.items()}
        floats = first_floats | floats
        layout = "Parquet" if file.layout is None else "JSON lines"
        if isinstance(file.layout, records.Delimited):
            layout = {"\t": "tab-separated", ";": "CSV with semicolons", "|": "CSV with vertical bars", ",": "CSV"}[
                file.layout.delimiter
            ]
        census.files.append({"file": path.name, "format": f"{layout}, {len(names)} columns"})
        # By position, since a column may be named `source_line`
        fields = {str(position): name for position, name in enumerate(names)}
        frame = _rows(file, fields, census)
        lines.append(frame["source_line"].to_numpy())
        frame = frame.select(*fields).rename(dict(zip(fields, column_names, strict=True)))
        frame = frame.with_columns(_clocks(column) for column in frame if column.dtype in (pl.Time, pl.Duration))
        frame = frame.with_columns(_near(column) for column in frame if isinstance(column.dtype, pl.Date | pl.Datetime))
        new_keys = {name: value for name, value in _keys_of_folders(path).items() if name not in column_names}
        folder_keys = new_keys | folder_keys
        frames.append(frame.with_columns(pl.lit(value, pl.String).alias(name) for name, value in new_keys.items()))
        nested |= {name: str(kind) for name, kind in frames[-1].schema.items() if not _is_scalar(kind)}
        num_numbers = sum(records.is_number(name) for name in names)
        if isinstance(file.layout, records.Delimited) and 2 * num_numbers >= len(names) > 0:
            how_many = "all" if num_numbers == len(names) else f"{num_numbers} of {len(names)}"
            notes.append(
                f"the first line of {path.name} gives the names of the columns, and {how_many} are numbers: is it a row?"
            )
    schemas = [frame.schema for frame in frames]  # once, since polars builds a new schema at each access
    names = list(dict.fromkeys(itertools.chain.from_iterable(schemas)))
    for path, file, schema in zip(files, raw_files, schemas, strict=True):
        for name in (name for name in names if name not in schema):
            if not isinstance(file.layout, records.JsonLines):  # a record of JSON lines may lack a key
                raise UserError(f"{path} has no column '{name}', which another of the files has: give files of one table")
            notes.append(f"no record of {path.name} has the key '{name}': its cells are empty there")
    notes += [FOLDER_KEY.format(name, value or HIVE_NULL) for name, value in folder_keys.items()]
    notes += [] if with_copies else _copies(files, frames, schemas, names)
    return Table(
        pieces={
            name: [frame[name] if name in schema else pl.repeat(None, frame.height, dtype=pl.Null, eager=True)
                   for frame, schema in zip(frames, schemas, strict=True)]
            for name in names
        },
        nested=nested,
        floats=floats,
        files=files,
        are_json=[isinstance(file.layout, records.JsonLines) for file in raw_files],
        file_number=np.repeat(np.arange(len(files)), [len(numbers) for numbers in lines]),
        line=np.concatenate(lines),
        notes=tuple(notes),
    )  # fmt: skip


def _keys_of_folders(path: Path) -> dict[str, str | None]:
    """The values of folders such as `year=2024` on the path of a file, by name."""
    pairs = [part.split("=", 1) for part in path.parent.parts if part.find("=") > 0]
    return {unquote(name): None if value == HIVE_NULL else unquote(value) for name, value in pairs}


def _rows(file: records.RawFile, fields: dict[str, str], census: Census) -> pl.DataFrame:
    """The valid rows of a file, with their lines as `source_line`; other rows are counted in `census`.

    fields : a name for each column of the result, and the file's column.
    """
    name, is_delimited = file.path.name, isinstance(file.layout, records.Delimited)
    blocks: list[pl.DataFrame] = []
    first_malformed: records.Record | None = None
    num_malformed = 0
    for rows, malformed in records.read_blocks(file, fields, {}, records.BLOCK_BYTES):
        census.read(rows.height + len(malformed))
        examples = (Example(name, record.line, records.excerpt(record.octets)) for record in malformed)
        census.drop(MALFORMED, len(malformed), examples)
        first_malformed = first_malformed or next(iter(malformed), None)
        num_malformed += len(malformed)
        if is_delimited:
            # Files that were joined by `cat` repeat the header, with the byte order mark before it
            are_names = (pl.col(field).str.strip_prefix("\ufeff").str.strip_chars() == fields[field] for field in fields)
            is_header = pl.all_horizontal(are_names).fill_null(False)
            repeated = rows.filter(is_header)["source_line"]
            census.drop(HEADER, len(repeated), (Example(name, line, ", ".join(fields.values())) for line in repeated))
            rows = rows.filter(~is_header)
        blocks.append(rows)
    if not blocks:
        raise UserError(f"{file.path} has no rows below its header: check how it was made, or leave it out")
    rows = pl.concat(blocks, how="vertical_relaxed")
    is_filled = pl.any_horizontal(pl.col(field).cast(pl.String).str.strip_chars() != "" for field in fields)
    # Excel writes lines of delimiters below a table
    if is_delimited and len(fields) > 1 and not rows.tail(1).select(is_filled).to_series().any():
        filled = rows.select(is_filled).to_series().fill_null(False)
        num_empty = int(filled.reverse().arg_max() or 0) if filled.any() else rows.height
        lines = rows["source_line"].tail(num_empty)
        census.drop(NO_CELLS, num_empty, (Example(name, line, "") for line in lines))
        rows = rows.head(rows.height - num_empty)
    excerpt = records.excerpt(first_malformed.octets) if first_malformed else ""
    has_other_encoding = "\ufffd" in excerpt  # the error of the census names the encoding
    # Comments without a delimiter are rows of one field
    is_comment = re.match(COMMENT, next(iter(fields.values()))) is not None
    has_rows = not rows.is_empty() and not (is_comment and rows.select(pl.first().str.starts_with("#").all()).item())
    has_rows &= len(fields) > 1 or num_malformed < rows.height  # else the header is a title, and the rows further titles
    if isinstance(file.layout, records.Delimited) and first_malformed and not (has_rows or has_other_encoding):
        text = first_malformed.octets.decode(errors="replace")
        num_fields = len(next(csv.reader(text.splitlines(), delimiter=file.layout.delimiter), []))
        advice = GIVE_ALL_NAMES if num_fields == len(fields) + 1 else GIVE_NAMES
        advice = NO_BLANKS if re.search(rf'{re.escape(file.layout.delimiter)} +"', text) else advice
        advice = NO_COMMENTS if is_comment else advice
        names = f"{'names' if len(fields) > 1 else 'name'} ({listed(fields.values())})"
        how_many = f"only {rows.height} of {rows.height + num_malformed:,} lines" if rows.height else "no line"
        raise UserError(
            f"{how_many} of {file.path} can be read: the header has {len(fields)} {names}, and line {first_malformed.line} "
            f"is '{excerpt}': {advice}"
        )
    return rows


def _copies(files: Sequence[Path], frames: list[pl.DataFrame], schemas: list[pl.Schema], names: list[str]) -> list[str]:
    """Messages about files most of whose rows are in an earlier file too, such as the same table in two formats."""
    as_type: dict[str, pl.DataType] = {}
    # Dates and booleans are left out if the files store them as different types, since their texts would differ
    for name in names:
        kinds = {schema[name] for schema in schemas if name in schema and _is_scalar(schema[name])}
        if len(kinds) == 1:
            as_type[name] = pl.String()
        elif kinds and all(kind.is_numeric() or kind == pl.String for kind in kinds):
            as_type[name] = pl.Float64()
    if len(frames) < 2 or not as_type:
        return []
    keys = []
    for frame, schema in zip(frames, schemas, strict=True):
        cells = [
            pl.col(name).cast(kind, strict=False) if name in schema else pl.lit(None, kind).alias(name)
            for name, kind in as_type.items()
        ]
        keys.append(frame.select(cells).hash_rows())
    # A file is compared with each earlier file only if these together have most of its rows: there may be thousands of files
    rows = pl.DataFrame({"key": pl.concat(keys), "file": np.repeat(np.arange(len(keys)), [len(key) for key in keys])})
    in_earlier = rows.filter(pl.col("file") > pl.col("file").min().over("key"))["file"]
    num_in_earlier = np.bincount(in_earlier.to_numpy(), minlength=len(keys))
    notes = []
    for number, key in enumerate(keys):
        is_suspect = num_in_earlier[number] > len(key) / 2 and key.n_unique() > len(key) / 2
        for earlier, other in enumerate(keys[:number] if is_suspect else ()):
            num_copies = int(key.is_in(other.implode()).sum())
            if num_copies > len(key) / 2:
                notes.append(
                    f"{num_copies:,} of {len(key):,} rows of {files[number].name} are in {files[earlier].name} too: leave "
                    "copies out, since the prediction of a row that is also in training is too good"
                )
    return notes


def _column_names(path: Path, names: list[str]) -> list[str]:
    """The names of a file's columns without surrounding blanks, 'column 3' for one without a name. Raises `UserError` for
    duplicates, names with a NUL byte, and names that polars reads as a pattern."""
    names = [name.strip() for name in names]  # as `records.look` does for CSV, so that all formats give the same names
    for name, count in Counter(names).items():
        if count > 1:
            what = f"two columns '{name}'" if name else "two columns without a name"
            fix = "" if name else ", and delete empty columns and lines above the names"
            fix += ", in a line above the first one if that is a row" if records.is_number(name) else ""
            raise UserError(f"{path} has {what}: give each its own name{fix}")
    for name in names:
        if "\0" in name:
            raise UserError(
                f"{path} has a column whose name {name[:20]!r} holds a NUL byte: rename it, or convert the file to UTF-8, "
                "as `iconv -f utf-16le -t utf-8` does from UTF-16"
            )
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise UserError(f"{path} has a column '{name}', and * and ^…$ are patterns of names in polars: rename it")
    filled = [name or f"column {position}" for position, name in enumerate(names, start=1)]
    if len(set(filled)) < len(filled):
        raise UserError(f"{path} has a column without a name and one that is called 'column …': give the former a name")
    return filled


def _clocks(cells: pl.Series) -> pl.Series:
    """Times of day and durations as texts that number_units.py reads: 13:45:00, and -1 days 23:59:00 for one minute less
    than 0."""
    if cells.dtype == pl.Time:
        return cells.dt.to_string("%H:%M:%S%.f")
    microseconds = _near(cells).dt.total_microseconds()
    time = (microseconds % MICROSECONDS_PER_DAY * 1000).cast(pl.Time)  # from nanoseconds
    clocks = pl.format("{} days {}", microseconds // MICROSECONDS_PER_DAY, _clocks(time))
    return pl.select(clocks.alias(cells.name)).to_series()


def _near(times: pl.Series) -> pl.Series:
    """Dates, times or durations, those beyond `FURTHEST` replaced by it. Nanoseconds do not reach so far."""
    unit = times.dtype.time_unit if isinstance(times.dtype, pl.Datetime | pl.Duration) else ""
    if unit == "ns":
        return times
    furthest = FURTHEST // (MICROSECONDS_PER_UNIT[unit] if unit else MICROSECONDS_PER_DAY)
    return times.to_physical().clip(-furthest, furthest).cast(times.dtype)


def _is_scalar(kind: pl.DataType) -> bool:
    return (
        kind.is_numeric()
        or kind in (pl.String, pl.Boolean, pl.Date, pl.Null)
        or isinstance(kind, pl.Categorical | pl.Enum | pl.Datetime)
    )


def _ids(piece: pl.Series, setting: str) -> pl.Series:
    """The ids in a column of one file, as texts. Raises `UserError`, which begins with `setting`, for inexact floats."""
    if piece.dtype.is_float():
        known = piece.drop_nulls().drop_nans()
        inexact = known.filter((known != known.floor()) | (known.abs() >= MOST_EXACT[piece.dtype]))
        if len(inexact):
            raise UserError(NO_ID.format(setting, repr(inexact[0])))
    return as_text(piece)


def as_text(piece: pl.Series) -> pl.Series:
    """Values as text, equal for equal values of different types: numbers and booleans as in JSON, 3 for 3.0, dates in
    ISO 8601, and a time at midnight as its date alone."""
    if piece.dtype.is_float():
        is_whole = (piece == piece.floor()) & (piece.abs() < records.MOST_EXACT)
        integers = piece.set(~is_whole, None).fill_nan(None).cast(pl.Int64)
        return piece.fill_nan(None).cast(pl.String).zip_with(integers.is_null(), integers.cast(pl.String))
    if isinstance(piece.dtype, pl.Datetime):
        return in_utc(piece).dt.to_string("%Y-%m-%d %H:%M:%S%.6f").str.replace(WHOLE_SECONDS, "${1}")
    texts = piece.cast(pl.String)
    return texts.str.replace(r"(\.\d*[1-9])0+$|\.0+$", "${1}") if piece.dtype.is_decimal() else texts


def in_one_notation(texts: pl.Series, pieces: Sequence[pl.Series]) -> pl.Series:
    """The `texts` of a column; as `as_text` writes them if some files store numbers, booleans or dates, and others texts.

    pieces : the column in each file.
    """
    are_values = [piece.dtype.is_numeric() or piece.dtype.is_temporal() or piece.dtype == pl.Boolean for piece in pieces]
    return as_in_frames(texts) if any(are_values) and not all(are_values) else texts


def as_in_frames(texts: pl.Series) -> pl.Series:
    """Texts such as True, 3.0 and 1e-05 of CSV in the notation in which `as_text` writes the values of Parquet files and
    data frames: true, 3 and 0.00001."""
    truths = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
    small = texts.set(~texts.str.contains(SMALL_FLOAT), None).cast(pl.Float64).cast(pl.String)
    texts = texts.zip_with(small.is_null(), small)
    return texts.replace(truths).str.replace(WHOLE_FLOAT, "${1}").str.replace(WHOLE_SECONDS, "${1}")


def in_utc(piece: pl.Series) -> pl.Series:
    """Times with a time zone in UTC, without the zone; other types unchanged."""
    if isinstance(piece.dtype, pl.Datetime) and piece.dtype.time_zone:
        return piece.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return piece
