"""Read raw files in blocks of rows. The format of a file is recognised by its content, never by its name.

    file = look("reviews.jsonl.gz")             # JSON lines, CSV or TSV, plain or gzip; or Parquet
    for frame, malformed in read_blocks(file, {"time": "timestamp"}, {"time": pl.Int64()}, BLOCK_BYTES):
        ...                                     # columns `time` and `source_line`; malformed records separately

A block is parsed as a whole. Only if that fails is it parsed record by record, to report the malformed lines and keep the
others. The same parser is used in both cases, so the size of a block never changes which rows are kept. CSV, with commas,
semicolons or vertical bars, is quoted as in RFC 4180: a field may span lines, and a stray quote is an error. Tab-separated
files have no quoting, unless all quotes in the first lines with quotes enclose fields.
"""

import codecs
import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv

from ensemble.data import parquet
from ensemble.data.octets import BEGINS_A_DICT, DICTS_TO_JSON, ONE_OBJECT, Bytes, refuse_foreign, repeated_key
from ensemble.errors import UserError, visible

BLOCK_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
"""Bytes at the beginning of a file by which its format is recognised."""
HEAD_RECORDS = 1000
"""The largest number of records that are parsed of these bytes."""
MOST_HEADER_LINES = 20
"""The maximum number of lines of a header whose quoted names contain newlines."""
MOST_LINES = 0.9
"""Semicolons are preferred to commas if at least this share of the lines has as many fields as the first (`_delimiter`)."""
LONGEST_RECORD_BYTES = 64 << 20
CHECKED_RECORDS = 1000
"""Minimum number of evenly spaced records of a JSON lines block that are checked for repeated keys. This takes 3 % of the
time of reading; checking all records would take three times as long as reading."""
PARQUET_ROW_BYTES = 400  # assumed size of a review with its text, so that blocks of Parquet are as large as those of text
EXCERPT_CHARACTERS = 80
LONE_SURROGATE = rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])"
"""In JSON, the first half of a pair of \\u escapes without the second half. It is invalid; polars would read it as NUL."""
UNESCAPED = rb"(?<!\\)(?:\\\\)*"
"""Before an escape: an even number of backslashes, so that the next backslash begins an escape."""
MOST_EXACT = 2**53
"""From here on, float64 cannot represent all whole numbers."""

csv.field_size_limit(LONGEST_RECORD_BYTES)  # the default of the csv module, 128 KiB, is too small for some reviews

PARQUET = b"PAR1"
BEGINS_A_LIST = re.compile(rb"\s*\[\s*(?:[\[\]{\"\d-]|true\b|false\b|null\b)")
"""The beginning of a JSON list, but not a name in brackets, with which the header of a CSV may begin."""
MOST_LINES_OF_A_TEXT = 1000
"""A quoted field with more lines in the head of a file was opened by a stray quote."""
EXCEL_SEPARATOR = re.compile(rb"sep=[\t,;|](?=\r?\n)")


class Record(NamedTuple):
    """A line of text, or several lines if it contains quoted newlines; `line` is the number of the first."""

    line: int
    octets: bytes


Block = tuple[pl.DataFrame, list[Record]]
"""Rows with their `source_line`, and the malformed records."""


class JsonLines:
    """One JSON object on each line."""

    quoted = False  # no record contains newlines in quotes

    def parse(self, block: bytes, fields: Mapping[str, str], types: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
        """One row per record, without blank ones; None if a record is malformed or a value has a wrong type.

        fields : a column of the result -> the file's column. types : of columns of the result; others are read as text.
        """
        schema = {column: types.get(field, pl.String()) for field, column in fields.items()}
        if _has_lone_surrogate(block):
            return None
        try:
            frame = pl.read_ndjson(block, schema=schema)
        except pl.exceptions.PolarsError:
            return None
        return frame.select(pl.col(column).alias(field) for field, column in fields.items())

    def is_valid(self, octets: bytes) -> bool:
        """A fast check of one record: False only for records that `parse` rejects, and for most of them."""
        try:
            return not _has_lone_surrogate(octets) and isinstance(json.loads(octets), dict)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, kw_only=True)
class Delimited:
    """Fields between commas, semicolons, tabs or bars. `parse` and `is_valid` as in `JsonLines`; every column is text."""

    header: list[str]
    delimiter: str
    quoted: bool

    def parse(self, block: bytes, fields: Mapping[str, str], types: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
        if self.quoted and not _well_quoted(block, self.delimiter):
            return None
        names = [str(position) for position in range(len(self.header))]  # names in a header may repeat
        first = dict(zip(reversed(self.header), reversed(names), strict=True))
        wanted = {field: first[column] for field, column in fields.items()}
        try:
            block.decode()  # pyarrow checks only the columns that it converts
            table = pa.csv.read_csv(
                pa.BufferReader(block),
                pa.csv.ReadOptions(use_threads=False, column_names=names, block_size=len(block) + 1),
                pa.csv.ParseOptions(
                    delimiter=self.delimiter, quote_char='"' if self.quoted else False, newlines_in_values=self.quoted
                ),
                pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.large_string()), include_columns=list(set(wanted.values()))
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        return pl.DataFrame(table).select(pl.col(name).alias(field) for field, name in wanted.items())

    def is_valid(self, octets: bytes) -> bool:
        try:
            rows = _rows(octets.decode(), self.delimiter, self.quoted)
        except (UnicodeDecodeError, csv.Error):
            return False
        return [len(row) for row in rows] == [len(self.header)] and (not self.quoted or _well_quoted(octets, self.delimiter))


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file whose format was recognised by `look`."""

    path: Path
    layout: JsonLines | Delimited | None
    """None for Parquet."""
    names: list[str]
    """Names of the columns; for JSON lines the keys of the first records."""
    head: list[dict[str, Any]]
    """The first valid rows."""
    start: int = 0
    """Bytes before the first record: the byte order mark and the header."""
    first_line: int = 1
    """Line number of the first record."""


def look(path: str | Path, headless: bool = False) -> RawFile:
    """Recognise the format of a file, the names of its columns, and its first valid rows.

    headless : the first line of a CSV is data, and the columns get the names '1', '2', ….

    Raises `UserError` for a file that is empty, damaged, or of an unknown format.
    """
    path = Path(path)
    with Bytes(path) as stream:
        head = stream.read(HEAD_BYTES)
    if head[257:262] == b"ustar" or (stream.is_gzip and head.startswith(PARQUET)):
        raise UserError(f"{path} is {'Parquet in gzip' if head.startswith(PARQUET) else 'a tar archive'}: unpack it")
    refuse_foreign(path, head)
    if head.startswith(PARQUET):
        batch = next(parquet.batches(path, None, HEAD_RECORDS), None)
        if batch is None:
            raise UserError(f"{path} has no rows: check how it was made, or leave it out")
        return RawFile(path=path, layout=None, names=batch.schema.names, head=parquet.rows(batch))
    text = head.removeprefix(codecs.BOM_UTF8)
    start = len(head) - len(text)
    if not text.strip():
        raise UserError(f"{path} is empty: check how it was made, or leave it out")
    if line := EXCEL_SEPARATOR.match(text):
        raise UserError(f"the first line of {path} is {line[0].decode()!r}, which only Excel knows: delete the line")
    if BEGINS_A_LIST.match(text):
        raise UserError(_no_objects(path, text))
    json_lines = text.lstrip().startswith(b"{")
    delimiter = _delimiter(text)
    quoted = not json_lines and (delimiter != "\t" or _has_quoted_fields(path))
    blocks = _cut(io.BytesIO(text).read, path, HEAD_BYTES, quoted, 1)
    records = [record for block in blocks for record in _split(*block)][:HEAD_RECORDS]
    if json_lines:
        layout = JsonLines()
        objects = [json.loads(record.octets) for record in records if layout.is_valid(record.octets)]
        if not objects:
            fix = DICTS_TO_JSON if BEGINS_A_DICT.match(text) else "write one on each line"
            if any("\ufffd" in record.octets.decode(errors="replace") for record in records):
                fix = "convert it to UTF-8, as `iconv -f latin1 -t utf-8` does from Latin-1, and write one on each line"
            raise UserError(f"{path} begins with '{excerpt(text)}', which is not a JSON object: {fix}")
        if len(records) == 1 and objects[0] and all(isinstance(value, list | dict) for value in objects[0].values()):
            raise UserError(ONE_OBJECT.format(path))
        names = list(dict.fromkeys(name for row in objects for name in row))
        return RawFile(path=path, layout=layout, names=names, head=objects, start=start)
    rows = [row for record in records for row in _rows(record.octets.decode(errors="replace"), delimiter, quoted)]
    if headless:
        names, first_line = [str(number) for number in range(1, len(rows[0]) + 1)], 1
    else:
        header = records[0].octets
        try:
            header.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"the header of {path} is not UTF-8 text (byte 0x{header[error.start]:x} after "
                f"'{excerpt(header[: error.start])}'): convert it, as `iconv -f latin1 -t utf-8` does from Latin-1"
            ) from None
        names, rows = [name.strip() for name in rows[0]], rows[1:]
        while rows and not names[-1] and all(len(row) < len(names) for row in rows):  # the header ends with a delimiter
            names.pop()
        start += text.index(header.removesuffix(b"\n")) + len(header)
        first_line = records[0].line + header.count(b"\n")
    return RawFile(
        path=path,
        layout=Delimited(header=names, delimiter=delimiter, quoted=quoted),
        names=names,
        head=[dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)],
        start=start,
        first_line=first_line,
    )


def _no_objects(path: Path, text: bytes) -> str:
    """The error for a file that begins with a JSON list, depending on the lines after the first."""
    first, _, rest = (part.strip() for part in text.lstrip().partition(b"\n"))
    try:
        values = json.loads(first)
    except (ValueError, RecursionError):  # it ends on a later line, or after the head
        values, rest = [], b""
    has_objects = any(isinstance(value, dict) for value in values)
    command = "`jq -c '.[]'`" if not rest or has_objects else "`jq -c '{id: .[0], x: .[1]}'`"
    if not rest:
        return f"{path} is one JSON list: write one object per line, as {command} does"
    if BEGINS_A_LIST.match(rest):
        return (
            f"each line of {path} is a JSON list, such as '{excerpt(first)}': write one object per line, as {command} does"
        )
    shown = f"the first line of {path} is a JSON list, '{excerpt(first)}', and the lines below it are"
    if rest.startswith(b"{"):
        return f"{shown} objects: remove it, or write an object in its place"
    return f"{shown} not: write one JSON object per line"


def read_blocks(
    file: RawFile, fields: Mapping[str, str], types: Mapping[str, pl.DataType], block_bytes: int
) -> Iterator[Block]:
    """Blocks of about `block_bytes` of a file: frames with the columns of `fields` and `source_line`, and malformed records.

    fields : a column of the frame -> the file's column.
    types : the usual types of fields in JSON lines, which are faster to read than text. A block with a value of another
        type, and every CSV, is read as text. Parquet files contain types.

    Raises `UserError` for a damaged file, with the position of the damage, and for a JSON object that has a key twice, if
    its record is one of those that are checked (`CHECKED_RECORDS`).
    """
    if (layout := file.layout) is None:
        yield from _parquet_blocks(file.path, fields, block_bytes)
        return
    with Bytes(file.path) as stream:
        stream.read(file.start)
        for block, ends, lines in _cut(stream.read, file.path, block_bytes, layout.quoted, file.first_line):
            if isinstance(layout, JsonLines):
                for number in range(0, len(ends), max(1, len(ends) // CHECKED_RECORDS)):
                    start = int(ends[number - 1]) if number else 0
                    _refuse_repeated_key(file.path, Record(int(lines[number]), block[start : ends[number]]))
            frame = layout.parse(block, fields, types)
            # `frame` has no row for a blank line, so with blank lines its height cannot be compared
            no_blanks = bool((np.diff(ends, prepend=0) > len(b"\r\n")).all())
            if frame is not None and frame.height == len(ends) and no_blanks:
                yield _with_lines(frame, lines), []
            else:
                yield _salvage(_split(block, ends, lines), layout, fields)


def keys(file: RawFile) -> tuple[list[str], set[str], dict[str, tuple[float, int]]]:
    """Read the keys of a file of JSON lines.

    Returns all keys in order of appearance, the keys that have a list or an object as a value, and for each key with a float
    that is not an exact whole number the first such float and its line.

    Raises `UserError`, with the line, for a record that has a key twice.
    """
    keys_in_order: dict[str, None] = {}
    nested: set[str] = set()
    floats: dict[str, tuple[float, int]] = {}
    with Bytes(file.path) as stream:
        stream.read(file.start)
        for block, ends, lines in _cut(stream.read, file.path, BLOCK_BYTES, False, file.first_line):
            for record in _split(block, ends, lines):
                try:
                    pairs = json.loads(record.octets, object_pairs_hook=tuple)
                except (ValueError, RecursionError):
                    continue  # reported by `read_blocks`
                if not isinstance(pairs, tuple) or _has_lone_surrogate(record.octets):
                    continue
                names = dict.fromkeys(name for name, _ in pairs)
                if len(names) < len(pairs):
                    _refuse_repeated_key(file.path, record)
                keys_in_order |= names
                nested.update(name for name, value in pairs if isinstance(value, list | tuple))
                for name, value in pairs:
                    if isinstance(value, float) and math.isfinite(value) and name not in floats and not is_exact(value):
                        floats[name] = (value, record.line)
    return list(keys_in_order), nested, floats


def _refuse_repeated_key(path: Path, record: Record) -> None:
    if (key := repeated_key(record.octets)) is not None:
        raise UserError(f"{path}, line {record.line}: the key '{key}' occurs twice: keep one of them")


def _has_lone_surrogate(octets: bytes) -> bool:
    # The second pattern is twenty times slower
    return bool(re.search(LONE_SURROGATE, octets) and re.search(UNESCAPED + LONE_SURROGATE, octets))


def is_exact(number: float) -> bool:
    """Whether a float is a whole number, and no other whole number is rounded to it, so that it can be an id."""
    return number.is_integer() and abs(number) < MOST_EXACT


def is_number(word: str) -> bool:
    """Whether a string is a number in Python's notation."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def excerpt(octets: bytes) -> str:
    """`EXCERPT_CHARACTERS` characters of a text, on one line: the first, or those around a fault that explains an error."""
    text = visible(octets.decode(errors="replace").strip())
    fault = re.search("\ufffd|:\\s*-?(NaN|Infinity)\\b", text)  # not UTF-8, or no number of JSON
    begin = fault.start() - EXCERPT_CHARACTERS // 2 if fault and fault.start() > EXCERPT_CHARACTERS - 20 else 0
    return "…" * (begin > 0) + text[begin : begin + EXCERPT_CHARACTERS]


def _parquet_blocks(path: Path, fields: Mapping[str, str], block_bytes: int) -> Iterator[Block]:
    rows_read = 0
    for batch in parquet.batches(path, list(set(fields.values())), max(1, block_bytes // PARQUET_ROW_BYTES)):
        frame = parquet.frame(path, batch).select(pl.col(column).alias(field) for field, column in fields.items())
        yield _with_lines(frame, np.arange(rows_read + 1, rows_read + frame.height + 1)), []
        rows_read += frame.height


def _salvage(records: list[Record], layout: JsonLines | Delimited, fields: Mapping[str, str]) -> Block:
    """Parse the valid records of a block with a malformed or blank line, or with a value of an unexpected type."""
    frames = [pl.DataFrame(schema={**dict.fromkeys(fields, pl.String), "source_line": pl.Int64})]

    def keep(part: list[Record]) -> bool:
        frame = layout.parse(b"".join(record.octets for record in part), fields, types={})
        if frame is None or frame.height != len(part):
            return False
        frames.append(_with_lines(frame, [record.line for record in part]))
        return True

    def bisect(part: list[Record]) -> list[Record]:
        if not part or keep(part):
            return []
        middle = len(part) // 2
        return bisect(part[:middle]) + bisect(part[middle:]) if middle else part

    if keep(records):
        return pl.concat(frames), []
    valid: list[Record] = []
    malformed: list[Record] = []
    for record in records:
        # A quote that is never closed makes one record of many lines: each line is then checked alone
        for piece in [record] if layout.is_valid(record.octets) else _lines(record):
            (valid if layout.is_valid(piece.octets) else malformed).append(piece)
    malformed += bisect(valid)
    return pl.concat(frames), sorted(malformed)


def _with_lines(frame: pl.DataFrame, lines: np.ndarray | list[int]) -> pl.DataFrame:
    return frame.with_columns(source_line=pl.Series(lines, dtype=pl.Int64))


def _split(block: bytes, ends: np.ndarray, lines: np.ndarray) -> list[Record]:
    """The records of a block that are not blank."""
    starts = [0, *ends[:-1].tolist()]
    records = (Record(line, block[a:b]) for line, a, b in zip(lines.tolist(), starts, ends.tolist(), strict=True))
    return [record for record in records if record.octets.strip(b" \r\n")]


def _lines(record: Record) -> list[Record]:
    octets = io.BytesIO(record.octets)
    return [Record(line, text) for line, text in enumerate(octets, record.line) if text.strip(b" \r\n")]


def _rows(text: str, delimiter: str, quoted: bool) -> list[list[str]]:
    """The fields of each row that is not blank."""
    lines = io.StringIO(text, newline="")
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return [row for row in csv.reader(lines, delimiter=delimiter, quoting=quoting) if row]


def _well_quoted(octets: bytes, delimiter: str) -> bool:
    """Whether every quote opens a field, closes one, or is doubled within one, so that `_cut` and pyarrow agree."""
    if b'"' not in octets:
        return True
    array = np.frombuffer(octets, np.uint8)
    quotes = np.flatnonzero(array == ord('"'))
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    doubled = opening[1:] == closing[:-1] + 1
    # Index -1, before the first byte, is the last byte, which is a newline
    opens = np.isin(array[opening - 1], np.frombuffer(delimiter.encode() + b"\n", np.uint8))
    closes = np.isin(array[closing + 1], np.frombuffer(delimiter.encode() + b"\r\n", np.uint8))
    opens[1:] |= doubled
    closes[:-1] |= doubled
    return bool(opens.all() and closes.all())


def _delimiter(head: bytes) -> str:
    """The character that separates the fields.

    Of tab, comma, semicolon and bar it is the only one in the first record; without any, the comma. If there are several,
    candidates are those with which at least half of the other lines have as many fields as the first. Of these it is the
    tab, or else the one with the most fields. A semicolon is preferred to a comma, which may be a decimal mark, if at least
    `MOST_LINES` of the lines have as many fields with it as the first, and the others, such as a footer, contain none."""
    text = head.lstrip()
    lines_of_header = text.split(b"\n", MOST_HEADER_LINES)[:MOST_HEADER_LINES]
    cuts = itertools.accumulate(lines_of_header, lambda cut, line: cut + b"\n" + line)
    first = next((cut for cut in cuts if cut.count(b'"') % 2 == 0), lines_of_header[0])  # the first record
    marks = [mark for mark in "\t,;|" if mark.encode() in first]
    if len(marks) < 2:
        return (marks or [","])[0]
    lines = text[: HEAD_BYTES // 8].splitlines(keepends=True)[:HEAD_RECORDS]
    is_cut = sum(map(len, lines)) < len(text)
    num_fields = {}
    for mark in marks:
        rows = [row for row in csv.reader((line.decode(errors="replace") for line in lines), delimiter=mark) if row]
        rows = rows[:-1] if is_cut and len(rows) > 2 else rows  # the last one may end within a field
        is_like_first = [len(row) == len(rows[0]) for row in rows[1:]]
        num_fields[mark] = len(rows[0]) if sum(is_like_first) * 2 >= len(is_like_first) else 0
        others = [row for row, is_like in zip(rows[1:], is_like_first, strict=True) if not is_like]
        are_most_alike = sum(is_like_first) >= MOST_LINES * len(is_like_first) and all(len(row) == 1 for row in others)
        if mark == ";" and num_fields[mark] > 1 and are_most_alike:
            num_fields[","] = 0
    return marks[0] if num_fields.get("\t", 0) > 1 else max(marks, key=lambda mark: num_fields[mark])


def _has_quoted_fields(path: Path) -> bool:
    """Whether the quotes in the first lines of a tab-separated file that have any are all as in RFC 4180."""
    lines = rest = b""
    with Bytes(path) as stream:
        while b'"' not in lines and (piece := stream.read(HEAD_BYTES)):
            head, newline, rest = (rest + piece).removeprefix(codecs.BOM_UTF8).rpartition(b"\n")
            lines = head + newline
        is_end = not stream.read(1)
    lines += rest + b"\n" if is_end else b""
    quotes, ends = (np.flatnonzero(np.frombuffer(lines, np.uint8) == ord(mark)) for mark in '"\n')
    ends = ends[np.searchsorted(quotes, ends) % 2 == 0]  # others are within a quoted field
    complete = lines[: ends[-1] + 1] if len(ends) else b""
    most_open = 0 if is_end else MOST_LINES_OF_A_TEXT
    is_closed = lines.count(b"\n", len(complete)) <= most_open
    return b'"' in complete and is_closed and _well_quoted(complete, "\t")


def _cut(
    read: Callable[[int], bytes], path: Path, block_bytes: int, quoted: bool, first_line: int
) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Blocks that end where a record ends, with the end (a byte offset) and the first line of each of their records.

    A newline ends a record unless an odd number of quotes precedes it. A missing newline at the end of the file is added,
    and the byte 0x1A with which DOS ends a file is removed. If a quote is still open at the end of the file, the rest of the
    file is one record; if it is still open after `LONGEST_RECORD_BYTES`, the lines that were read so far are one. Raises
    `UserError` for a longer line."""
    rest, line = b"", first_line
    while True:
        piece = read(block_bytes)
        block = rest + piece if piece else rest.removesuffix(b"\x1a")
        if not piece and block and not block.endswith(b"\n"):
            block += b"\n"
        octets = np.frombuffer(block, np.uint8)
        newlines = np.flatnonzero(octets == ord("\n"))
        last = np.arange(len(newlines))  # indices of the newlines that end a record
        if quoted and b'"' in block:
            last = last[np.searchsorted(np.flatnonzero(octets == ord('"')), newlines) % 2 == 0]
        if not piece or (len(last) == 0 and len(block) > LONGEST_RECORD_BYTES):
            if len(newlines) == 0 and block:
                raise UserError(f"line {line} of {path} is longer than {LONGEST_RECORD_BYTES:,} bytes: split it")
            last = np.union1d(last, np.arange(len(newlines))[-1:])
        if len(last):
            ends = newlines[last] + 1
            yield block[: ends[-1]], ends, line + np.concatenate([[0], last[:-1] + 1])
            line += int(last[-1]) + 1
            block = block[ends[-1] :]
        if not piece:
            return
        rest = block
