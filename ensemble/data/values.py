"""The columns of review and metadata files, whatever their type, to the values of `reviews.REVIEW_SCHEMA`.

Ids are text, exactly as written: `007`, ` 7` and `7` are three ids, and `None` is one too; only an empty cell, or one
of blanks alone, is missing.
Whole numbers of any length are ids in their decimal form. Floating-point numbers are ids only if all of them are whole and
below 2^53: that is how pandas writes a column of integers in which some are missing.
"""

import ast
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from ensemble.data import records
from ensemble.data.octets import Bytes
from ensemble.errors import UserError

IDS = ("product_id", "user_id")
SMALLEST_MILLISECONDS = 1e11  # in seconds this would be the year 5138, in milliseconds it is 1973
SMALLEST_MICROSECONDS = 1e14
SMALLEST_NANOSECONDS = 1e17
LARGEST_TIME = 1e20  # in nanoseconds the year 5138; beyond it a number is no time
YEAR_1995_S = 788_918_400
MOST_EXACT: dict[pl.DataType, int] = {pl.Float64(): records.MOST_EXACT, pl.Float32(): 2**24}
"""From here on two whole numbers have one value in floating point."""
ODD_TEXT = r"^[\[{]|^(?:true|false)$|^-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$"
INTEGER = r"^-?\d+$"
ROUNDED = r"^-?\d{16,}$"
"""What a float from 2^53 on looks like as text."""
LINES_AT_ONCE_BYTES = 1 << 17

NUMBER, TEXT, DATE, TRUTH, LIST = "numbers", "text", "dates", "true or false", "lists"
HOLDS: dict[str, tuple[str, ...]] = {
    "product_id": (TEXT, NUMBER),
    "user_id": (TEXT, NUMBER),
    "rating": (NUMBER, TEXT),
    "time": (DATE, NUMBER, TEXT),
    "verified": (TRUTH, NUMBER, TEXT),
    "images": (LIST, TEXT),
    "categories": (LIST, TEXT),
}
"""What a column of Parquet may hold to be a field; all others are text or numbers."""


def check_types(path: Path, fields: Mapping[str, str]) -> None:
    """Raise `UserError` for a column of a Parquet file whose type cannot be that field, such as a list as an id.

    fields : our field -> the file's column, each of which the file has once.
    """
    schema = pq.read_schema(path)
    for field, column in fields.items():
        holds = HOLDS.get(field, (TEXT, NUMBER))
        found = pl.DataFrame(schema.empty_table().select([column])).schema[column]
        if not found.is_(pl.Null) and _kind(found, field) not in holds:
            raise UserError(
                f"the column '{column}' of {path} has the type {schema.field(column).type}, and the {field} must be "
                f"{' or '.join(holds)}: convert the column, or name another one with columns"
            )


def _kind(dtype: pl.DataType, field: str) -> str:
    if isinstance(dtype, pl.Struct) and field == "images":  # Amazon's images come as a struct of lists
        return LIST if dtype.fields and dtype.fields[0].dtype == pl.List else "something else"
    if isinstance(dtype, pl.List):
        return LIST if field == "images" or dtype.inner in (pl.String, pl.Null) else "nested lists"
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return TEXT
    if isinstance(dtype, pl.Date | pl.Datetime):
        return DATE
    return NUMBER if dtype.is_numeric() else TRUTH if dtype == pl.Boolean else "something else"


# ---------------------------------------------------------------------------------------------------------------- ids


def identifiers(values: pl.Series, lines: pl.Series, path: Path, column: str) -> pl.Series:
    """A column of ids as text; null where a cell is empty or blank. Raises `UserError` for a number that is not whole."""
    if values.dtype.is_float() or values.dtype.is_decimal():
        values = _whole(values, lines, path, column)
    text = values.cast(pl.String)
    return text.set(text.str.strip_chars() == "", None).alias(values.name)


def _whole(values: pl.Series, lines: pl.Series, path: Path, column: str) -> pl.Series:
    """Floating-point or decimal numbers as integers."""
    if values.dtype.is_decimal():
        whole, integers = values.cast(pl.String).str.extract(r"^(-?\d+)(?:\.0*)?$"), None
    else:
        values = values.fill_nan(None)
        exact = (values.floor() == values) & (values.abs() < MOST_EXACT[values.dtype])
        integers = values.zip_with(exact.fill_null(True), pl.Series([None], dtype=values.dtype))
        whole = integers.cast(pl.Int64).cast(pl.String)
    lost = values.is_not_null() & whole.is_null()
    if lost.any():
        at = int(lost.arg_max() or 0)
        raise UserError(
            f"{path}, row {lines[at]}: the id {values[at]} in the column '{column}' is a floating-point number that is no "
            "exact whole number: ids are text or integers, so write the column as one of them"
        )
    return whole


class OddIds:
    """Which lines of a JSON-lines file have an id that is neither text nor an exact whole number.

    Parsed as text, an object or `true` looks like the text that reads the same. So where an id reads like one, its line is
    read once more: from then on the file is read twice, side by side. Files of ordinary ids are not. Long whole numbers are
    looked at only where one of the first records has a float as an id, as pandas writes whole numbers beside gaps.
    """

    def __init__(self, file: records.RawFile, columns: Sequence[str]):
        self.path, self.columns = file.path, columns
        self._has_floats = any(isinstance(row.get(column), float) for row in file.head for column in columns)
        self._rows: Iterator[tuple[int, bytes]] | None = None
        self._line = 0

    def among(self, texts: pl.DataFrame) -> pl.Series:
        """(num_rows,) bool, for blocks in the file's order. texts : one column per id, as parsed, and `source_line`."""
        ids = pl.all().exclude("source_line")
        suspect = ids.str.contains(ODD_TEXT) & ~ids.str.contains(INTEGER)
        suspect |= ids.str.contains(ROUNDED) & self._has_floats
        lines = texts.filter(pl.any_horizontal(suspect).fill_null(False))["source_line"]
        wanted = set(lines.to_list())
        if self._rows is None:
            self._rows = enumerate(_lines(self.path), 1)
        odd = []
        while wanted and self._line < lines[-1]:
            self._line, line = next(self._rows)
            if self._line in wanted and self._has_odd(line):
                odd.append(self._line)
        return texts["source_line"].is_in(odd)

    def _has_odd(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # such as a number of more than 4,300 digits
            return True
        return any(_is_odd(row.get(column)) for column in self.columns)


def have_keys(path: Path, columns: Sequence[str]) -> bool:
    """Whether each key stands in some line of a JSON-lines file."""
    missing = {json.dumps(column, ensure_ascii=False).encode() for column in columns}
    for line in _lines(path):
        missing -= {key for key in missing if key in line}
        if not missing:
            return True
    return False


def _is_odd(value: object) -> bool:
    if isinstance(value, float):
        return not records.is_exact(value)
    return isinstance(value, bool | list | dict)


def _lines(path: Path) -> Iterator[bytes]:
    with Bytes(path) as stream:
        rest = b""
        while piece := stream.read(LINES_AT_ONCE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.removeprefix(b"\xef\xbb\xbf") for line in whole)
        yield rest


# ---------------------------------------------------------------------------------------------------------------- times


def time_unit(values: Sequence[object], path: Path, column: str) -> str:
    """How a file writes time: 'milliseconds', 'seconds' (since 1970) or 'dates', by the first values of its column."""
    values = [value for value in values if value not in (None, "")]
    if any(isinstance(value, datetime.date) for value in values):  # a column of dates in Parquet
        return "dates"
    texts = pl.DataFrame({"time": [str(value) for value in values]}, schema={"time": pl.String})
    dates = texts.select(time_ms(pl.String(), "dates")).to_series().drop_nulls()
    numbers = texts["time"].cast(pl.Float64, strict=False)
    numbers = numbers.filter(numbers.is_finite())
    fine = numbers.filter((numbers >= SMALLEST_MICROSECONDS) & (numbers < LARGEST_TIME))
    if 2 * len(fine) > max(len(numbers), len(dates)):
        unit, divisor = ("nanoseconds", 10**6) if fine[0] >= SMALLEST_NANOSECONDS else ("microseconds", 1000)
        raise UserError(
            f"the times of {path}, column '{column}', are {unit} since 1970, as in {fine[0]:.0f}: divide them by {divisor:,}"
            ", for times are read in seconds or milliseconds"
        )
    if len(numbers) >= max(len(dates), 1):
        return "milliseconds" if (numbers >= SMALLEST_MILLISECONDS).sum() > len(numbers) / 2 else "seconds"
    if len(dates):
        return "dates"
    first = f", as in '{values[0]}'" if values else ""
    raise UserError(
        f"{path} has no time in its column '{column}'{first}: it must hold seconds or milliseconds since 1970, "
        "or dates such as 2023-03-31, 2023-03-31 23:59:59 or 2023-03-31T23:59:59+05:30"
    )


def time_ms(dtype: pl.DataType, unit: str) -> pl.Expr:
    """The moment in UTC milliseconds; null where the value is none."""
    time = pl.col("time")
    if dtype.is_temporal():
        return time.dt.epoch("ms")
    if unit == "dates":
        text = time.cast(pl.String).str.strip_chars().str.replace("T", " ").str.replace(r"\s*(Z|UTC|\+00:?00)$", "")
        zoned = text.str.replace(r"\s+([+-]\d\d:?\d\d)$", "$1")
        return pl.coalesce(
            zoned.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_unit="ms", strict=False).dt.replace_time_zone(None),
            text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ms", strict=False),
            text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("ms")),
        ).dt.epoch("ms")
    number = time.cast(pl.Float64, strict=False)
    return (number if unit == "milliseconds" else number * 1000).cast(pl.Int64, strict=False)


def has_other_unit(dtype: pl.DataType, unit: str) -> pl.Expr:
    """Whether a number is a plausible time in another unit than its file's, in which it would be no plausible one."""
    if dtype.is_temporal() or unit == "dates":
        return pl.lit(False)
    number = pl.col("time").cast(pl.Float64, strict=False)
    if unit == "seconds":
        return number.is_between(SMALLEST_MILLISECONDS, LARGEST_TIME)
    return number.is_between(YEAR_1995_S, SMALLEST_MILLISECONDS, closed="left") | number.is_between(
        SMALLEST_MICROSECONDS, LARGEST_TIME
    )


# ---------------------------------------------------------------------------------------------------------------- others


def word(field: str) -> pl.Expr:
    """A title or a name without blanks around it; null where there is none, as empty files and pandas write it."""
    text = pl.col(field).cast(pl.String).str.strip_chars()
    return pl.when(text.is_in(["", "None", "null", "nan"])).then(None).otherwise(text).alias(field)


def text(fields: Sequence[str]) -> pl.Expr | None:
    """Title, newline, text; null where a row has neither."""
    if not fields:
        return None
    texts = [pl.col(field).cast(pl.String) for field in fields]
    return pl.when(pl.any_horizontal(text.is_not_null() for text in texts)).then(
        pl.concat_str(texts, separator="\n", ignore_nulls=True)
    )


def helpful_votes() -> pl.Expr:
    """Votes as a whole number; the 2018 release writes '1,234'."""
    number = pl.col("helpful_votes").cast(pl.String).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
    return number.clip(-(2**31), 2**31 - 1).cast(pl.Int32, strict=False)


def verified() -> pl.Expr:
    word = pl.col("verified").cast(pl.String).str.strip_chars().str.to_lowercase()
    known = {**dict.fromkeys(("true", "t", "yes", "y", "1", "1.0"), True),
             **dict.fromkeys(("false", "f", "no", "n", "0", "0.0"), False)}  # fmt: skip
    return word.replace_strict(known, default=None, return_dtype=pl.Boolean)


def is_unreadable(field: str, value: pl.Expr) -> pl.Expr:
    """Whether a cell holds something of which `value`, the field's reading, is null."""
    text = pl.col(field).cast(pl.String).str.strip_chars().str.to_lowercase()
    return value.is_null() & ~text.is_in(["", "none", "null", "nan", "-"]).fill_null(True)


def lists(values: pl.Series) -> pl.Series:
    """A column of lists: as it is, from a struct of lists (Parquet), or from text that prints a list (CSV)."""
    if isinstance(values.dtype, pl.Struct):
        return values.struct.field(values.dtype.fields[0].name).alias(values.name)
    if values.dtype != pl.String:
        return values.cast(pl.List(pl.String)) if values.dtype == pl.Null else values
    return pl.Series(values.name, [_list(text) for text in values], pl.List(pl.String))


def _list(text: str | None) -> list[str]:
    """The items of a list printed as JSON or by Python; a word that is no list is one item."""
    if text in (None, "", "[]", "None", "null"):
        return []
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(items, list | tuple):
            return [str(item) for item in items]
    return [text]


# ---------------------------------------------------------------------------------------------------------------- prices

AMOUNT = r"^(?:(?i)from\s+)?(?:USD|EUR|GBP|[$€£])?\s*(\d[\d.,]*)(?:\s*(?:USD|EUR|GBP|[$€£]))?(?:\s*-.*)?$"
WITH = {  # what numbers look like by their decimal mark, and those of which no number with the other mark is
    ".": (r"^(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?$", r"^\d+\.(?:\d{1,2}|\d{4,})$|,\d{3}\.\d|,\d{3},"),
    ",": (r"^(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?$", r"^\d+,(?:\d{1,2}|\d{4,})$|\.\d{3},\d|\.\d{3}\."),
}
TOLERATED_MARKS = 0.01
"""The part of a file's prices that may contradict its decimal mark; these are no amounts."""


def decimal_mark(prices: Iterator[pl.Series], path: Path) -> str:
    """Whether a file writes prices with a decimal point or comma: '.' unless its prices show a comma.

    `12,50` shows a comma, `12.50` a point, and `1,234` could be either. Raises `UserError` for a file that shows both.
    """
    shown = dict.fromkeys(WITH, 0)
    first: dict[str, str] = {}
    for values in prices:
        if values.dtype.is_numeric():
            continue
        amounts = values.cast(pl.String).str.strip_chars().str.extract(AMOUNT).drop_nulls()
        for mark, (_, sign) in WITH.items():
            found = amounts.filter(amounts.str.contains(sign))
            shown[mark] += len(found)
            if len(found):
                first.setdefault(mark, found[0])
    if min(shown.values()) > TOLERATED_MARKS * sum(shown.values()):
        raise UserError(
            f"prices of {path} have a decimal point, as in {first['.']} ({shown['.']:,} of them), and a decimal comma, as "
            f"in {first[',']} ({shown[',']:,}): write all of them with a point"
        )
    return "," if shown[","] > shown["."] else "."


def price(mark: str) -> pl.Expr:
    """The amount of money, the lowest of a range; null where there is none."""
    amount = pl.col("price").cast(pl.String).str.strip_chars().str.extract(AMOUNT)
    other = "," if mark == "." else "."
    plain = amount.str.replace_all(other, "", literal=True).str.replace(mark, ".", literal=True)
    return pl.when(amount.str.contains(WITH[mark][0])).then(plain.cast(pl.Float64, strict=False))
