"""Conversion of columns of review and metadata files to the types and units of `reviews.REVIEW_SCHEMA`.

Ids are text, exactly as in the file: `007`, ` 7` and `7` are three ids, and `None` is an id. Only an empty cell is
missing. Whole numbers of any length are ids in their decimal form. Floating-point numbers are ids only if they are whole and
below 2^53, or 2^24 in 32 bits: pandas writes a column of integers with missing values like that. Any other floating-point
number is an error in a column of such numbers, as in Parquet; in JSON lines only its row is bad.
"""

import ast
import datetime
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ensemble.data import parquet, records
from ensemble.data.octets import Bytes
from ensemble.errors import UserError

IDS = ("product_id", "user_id")
SMALLEST_MILLISECONDS = 1e11  # in seconds this would be the year 5138, in milliseconds it is 1973
SMALLEST_MICROSECONDS = 1e14
SMALLEST_NANOSECONDS = 1e17
_SCIENTIFIC = re.compile(r"\d(\.\d{0,5})?[eE]\+?(09|9|1\d)")  # how a spreadsheet shows a time since 1970: 1.68E+12
LARGEST_TIME = 1e20  # in nanoseconds the year 5138; a larger number is not a time
YEAR_1995_S = 788_918_400  # Amazon opened in July 1995; the oldest review of the 2023 release is of May 1996
MOST_EXACT: dict[pl.DataType, int] = {pl.Float64(): records.MOST_EXACT, pl.Float32(): 2**24}
"""From this number on, two whole numbers may have the same floating-point value."""
ODD_TEXT = r"^[\[{]|^(?:true|false)$|^-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$"
"""Text of an id that may have been a list, an object, a truth value or a number in JSON."""
INTEGER = r"^-?\d+$"
LONG_INTEGER = r"^-?\d{16,}$"
"""Text of an integer that may be 2^53 or more, which as a float would be rounded."""
LINES_AT_ONCE_BYTES = 1 << 17

NUMBER, TEXT, DATE, TRUTH, LIST = "numbers", "text", "dates", "true or false", "lists"
ACCEPTED: dict[str, tuple[str, ...]] = {
    "rating": (NUMBER, TEXT),
    "time": (DATE, NUMBER, TEXT),
    "verified": (TRUTH, NUMBER, TEXT),
    "helpful_votes": (LIST, NUMBER, TEXT),
    "images": (LIST, TEXT),
    "categories": (LIST, TEXT),
}
"""The types of Parquet columns that are accepted for a field. For all other fields these are text and numbers."""


def check_types(path: Path, fields: Mapping[str, str]) -> None:
    """Raise `UserError` for a column of a Parquet file whose type its field cannot have, such as a list as an id.

    fields : the schema's field -> the file's column, which the file has exactly once. The file has a row.
    """
    batch = next(parquet.batches(path, list(fields.values()), 1))
    types = parquet.frame(path, batch).schema
    for field, column in fields.items():
        accepted, dtype = ACCEPTED.get(field, (TEXT, NUMBER)), types[column]
        if field == "time" and dtype == pl.Float32:
            raise UserError(
                f"the column '{column}' of {path} has times as 32-bit floats, which are rounded to two minutes: export them "
                "as whole numbers or 64-bit floats"
            )
        if not dtype.is_(pl.Null) and _kind(dtype, field) not in accepted:
            another = ", or name another one with columns" if "user_id" in fields else ""  # metadata have no such setting
            raise UserError(
                f"the column '{column}' of {path} has the type {batch.schema.field(column).type}, and the {field} must be "
                f"{' or '.join(accepted)}: convert the column{another}"
            )


def _kind(dtype: pl.DataType, field: str) -> str:
    if isinstance(dtype, pl.Struct) and field == "images":  # Amazon's images come as a struct of lists
        return LIST if dtype.fields and dtype.fields[0].dtype == pl.List else "something else"
    if isinstance(dtype, pl.List):
        is_flat = dtype.inner in (pl.String, pl.Null) or (field == "helpful_votes" and dtype.inner.is_numeric())
        return LIST if is_flat or field == "images" else "something else"
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return TEXT
    if isinstance(dtype, pl.Date | pl.Datetime):
        return DATE
    return NUMBER if dtype.is_numeric() else TRUTH if dtype == pl.Boolean else "something else"


# ---------------------------------------------------------------------------------------------------------------- ids


def identifiers(values: pl.Series, lines: pl.Series, path: Path, column: str) -> pl.Series:
    """A column of ids as text; null for empty cells. Raises `UserError` for a number that is not whole."""
    if values.dtype.is_float() or values.dtype.is_decimal():
        values = _whole(values, lines, path, column)
    text = values.cast(pl.String)
    return text.set(text == "", None).alias(values.name)


def _whole(values: pl.Series, lines: pl.Series, path: Path, column: str) -> pl.Series:
    """Floating-point or decimal numbers as the text of integers."""
    if values.dtype.is_decimal():
        whole = values.cast(pl.String).str.extract(r"^(-?\d+)(?:\.0*)?$")
    else:
        values = values.fill_nan(None)
        exact = (values.floor() == values) & (values.abs() < MOST_EXACT[values.dtype])
        whole = values.set(~exact, None).cast(pl.Int64).cast(pl.String)
    lost = values.is_not_null() & whole.is_null()
    if lost.any():
        first = int(lost.arg_max() or 0)
        raise UserError(
            f"{path}, row {lines[first]}: the id {values[first]} in the column '{column}' is a floating-point number that "
            "is not an exact whole number: ids are text or integers, so write the column as one of them"
        )
    return whole


class InvalidIds:
    """Finds the rows of a file with an id that contains a NUL, or in JSON lines is neither text nor an exact whole number.

    Parsed as text, an object or `true` cannot be distinguished from a string with the same characters. So if the text of an
    id matches `ODD_TEXT`, its line is parsed once more. For this purpose the file is read a second time, up to this line;
    a file without such ids is read only once. Long whole numbers are checked only if one of the first records has a float as
    an id, which is how pandas writes columns of integers with missing values.

    fields : the schema's field -> the file's column.
    """

    def __init__(self, file: records.RawFile, fields: Mapping[str, str]):
        self._is_json = isinstance(file.layout, records.JsonLines)
        self._columns = [fields[field] for field in IDS if field in fields]
        self._has_floats = any(isinstance(row.get(column), float) for row in file.head for column in self._columns)
        self._lines, self._line = enumerate(_lines(file.path), 1), 0

    def are_invalid(self, texts: pl.DataFrame) -> pl.Series:
        """Whether each row has an invalid id, (num_rows,) bool. It must be called with the blocks in the order of the file.

        texts : one column for each id, as text, and `source_line`.
        """
        ids = pl.all().exclude("source_line")
        has_nul = texts.select(pl.any_horizontal(ids.str.contains("\0", literal=True)).fill_null(False)).to_series()
        if not self._is_json:
            return has_nul
        suspect = ids.str.contains(ODD_TEXT) & ~ids.str.contains(INTEGER)
        suspect |= ids.str.contains(LONG_INTEGER) & self._has_floats
        lines = texts.filter(pl.any_horizontal(suspect).fill_null(False))["source_line"]
        suspect_lines = set(lines.to_list())
        invalid = []
        while suspect_lines and self._line < lines[-1]:
            self._line, line = next(self._lines)
            if self._line in suspect_lines and self._has_invalid_id(line):
                invalid.append(self._line)
        return has_nul | texts["source_line"].is_in(invalid)

    def _has_invalid_id(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # such as a number of more than 4,300 digits
            return True
        ids = [row.get(column) for column in self._columns]
        has_inexact = any(isinstance(value, float) and not records.is_exact(value) for value in ids)
        return has_inexact or any(isinstance(value, bool | list | dict) for value in ids)


def have_keys(path: Path, columns: Sequence[str]) -> bool:
    """Whether each of the names occurs in some line of a JSON-lines file, in quotes; keys and values are not told apart."""
    forms_of = {name: {json.dumps(name, ensure_ascii=escaped).encode() for escaped in (True, False)} for name in columns}
    missing = set(columns)
    for line in _lines(path):
        missing -= {name for name in missing if any(form in line for form in forms_of[name])}
        if not missing:
            return True
    return False


def _lines(path: Path) -> Iterator[bytes]:
    with Bytes(path) as stream:
        rest = b""
        while piece := stream.read(LINES_AT_ONCE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line.removeprefix(b"\xef\xbb\xbf") for line in whole)
        yield rest


# ---------------------------------------------------------------------------------------------------------------- times


CALENDAR = r"^((?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(?:[01]\d|2[0-3])?(?:[0-5]\d){0,2}(?:\.0)?$"
"""Matches 20240131, 202401311259 and 20240131125959; its group is the day."""


def time_unit(values: Sequence[object], path: Path, column: str) -> str:
    """The format of a column of times: 'milliseconds', 'seconds' (since 1970) or 'dates'. values : its first values.

    Raises `UserError` if most times have another form, if one was rounded, such as 1.68E+12, or if no value is a time.
    """
    values = [value for value in values if value not in (None, "")]
    if any(isinstance(value, datetime.date) for value in values):  # a column of dates in Parquet
        return "dates"
    rounded = next((value for value in values if isinstance(value, str) and _SCIENTIFIC.fullmatch(value.strip())), None)
    if rounded is not None:
        raise UserError(
            f"the times of {path}, column '{column}', lost digits, as in '{rounded}': export them as whole numbers"
        )
    texts = pl.DataFrame({"time": [str(value) for value in values]}, schema={"time": pl.String})
    dates = texts.select(time_ms(pl.String(), "dates")).to_series().drop_nulls()
    numbers = texts.select(as_number("time", pl.String())).to_series()
    numbers = numbers.filter(numbers.is_finite())
    calendar = texts["time"].str.strip_chars().str.extract(CALENDAR, 1).str.to_date("%Y%m%d", strict=False).drop_nulls()
    if 2 * len(calendar) > max(len(numbers), len(dates)):
        shown = next(str(value) for value in values if re.fullmatch(CALENDAR, str(value).strip()))
        raise UserError(
            f"the times of {path}, column '{column}', are calendar dates without separators, as in {shown}: write "
            f"{calendar[0]}, since numbers are read as seconds or milliseconds since 1970"
        )
    finer = numbers.filter((numbers >= SMALLEST_MICROSECONDS) & (numbers < LARGEST_TIME))
    if 2 * len(finer) > max(len(numbers), len(dates)):
        unit, divisor = ("nanoseconds", 10**6) if finer[0] >= SMALLEST_NANOSECONDS else ("microseconds", 1000)
        raise UserError(
            f"the times of {path}, column '{column}', are {unit} since 1970, as in {finer[0]:.0f}: divide them by "
            f"{divisor:,}, since times are read in seconds or milliseconds"
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
    """The column `time` as UTC milliseconds since 1970; null for values that are not times. unit : from `time_unit`."""
    time = pl.col("time")
    if dtype.is_temporal():
        return time.dt.epoch("ms")
    if unit == "dates":
        text = time.cast(pl.String).str.strip_chars().str.replace(r"^(\S+-\d\d)T", "${1} ")
        text = text.str.replace(r"\s*(Z|UTC|[+]00(:?00)?)$", "").str.replace(r"^(\S+ \d\d:\d\d)(\s*[+-].*)?$", "${1}:00$2")
        return pl.coalesce(
            text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%#z", time_unit="ms", strict=False).dt.replace_time_zone(None),
            text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ms", strict=False),
            text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("ms")),
        ).dt.epoch("ms")
    number = as_number("time", dtype)
    return (number if unit == "milliseconds" else (number * 1000).round()).cast(pl.Int64, strict=False)


def has_other_unit(dtype: pl.DataType, unit: str) -> pl.Expr:
    """Whether a number is not a plausible time in the unit of its file, but is one in another unit."""
    if dtype.is_temporal() or unit == "dates":
        return pl.lit(False)
    number = as_number("time", dtype)
    if unit == "seconds":
        return number.is_between(SMALLEST_MILLISECONDS, LARGEST_TIME)
    return number.is_between(YEAR_1995_S, SMALLEST_MILLISECONDS, closed="left") | number.is_between(
        SMALLEST_MICROSECONDS, LARGEST_TIME
    )


# ---------------------------------------------------------------------------------------------------------------- others


def as_number(field: str, dtype: pl.DataType) -> pl.Expr:
    """A column of numbers or of text as float64; null for text that is not a number. Blanks around a number, as after the
    comma in `ann, 5, 1700000000`, are no part of it."""
    column = pl.col(field)
    return (column.str.strip_chars() if dtype == pl.String else column).cast(pl.Float64, strict=False)


def names(*fields: str) -> pl.Expr:
    """Titles or names without surrounding blanks; null for an empty one, also if a program wrote it as None, null or nan."""
    return pl.col(fields).cast(pl.String).str.strip_chars().replace(["", "None", "null", "nan"], None)


def text(fields: Sequence[str]) -> pl.Expr | None:
    """The columns `fields`, such as title and text, joined by newlines; null in rows without any of them.

    Returns None if `fields` is empty.
    """
    if not fields:
        return None
    texts = [pl.col(field).cast(pl.String) for field in fields]
    return pl.when(pl.any_horizontal(text.is_not_null() for text in texts)).then(
        pl.concat_str(texts, separator="\n", ignore_nulls=True)
    )


def helpful_votes() -> pl.Expr:
    """Votes as a whole number, null for anything else, such as 1.234. The 2018 release has '1,234'. The 2014 release has
    [helpful votes, all votes], such as [2, 3], of which the first number is used."""
    text = pl.col("helpful_votes").cast(pl.String).str.strip_chars()
    plain = text.str.strip_chars_start("[").str.replace_all(r",( ?\d+\])?", "")
    text = pl.when(text.str.contains(r"^(\d{1,3}(,\d{3})+|\[\d+, ?\d+\])$")).then(plain).otherwise(text)
    number = text.cast(pl.Float64, strict=False)
    is_count = number.is_finite() & (number == number.floor()) & (number >= 0)
    return pl.when(is_count).then(number.clip(upper_bound=2**31 - 1)).cast(pl.Int32)


def verified() -> pl.Expr:
    """Whether the purchase was verified; null for a word that means neither yes nor no."""
    word = pl.col("verified").cast(pl.String).str.strip_chars().str.to_lowercase()
    is_true = word.is_in(["true", "t", "yes", "y", "1", "1.0"])
    return pl.when(is_true | word.is_in(["false", "f", "no", "n", "0", "0.0"])).then(is_true)


def unreadable(rows: pl.DataFrame, field: str, value: pl.Expr) -> pl.DataFrame:
    """The rows in which the field is not empty, but `value`, the field as converted, is null."""
    suspect = rows.filter(value.is_null() & pl.col(field).is_not_null())
    text = pl.col(field).cast(pl.String).str.strip_chars().str.to_lowercase()
    return suspect.filter(~text.is_in(["", "none", "null", "nan", "-", "—"]))


def lists(values: pl.Series) -> pl.Series:
    """Convert lists, structs of lists (Parquet), of which the first is used, or printed lists (CSV) to a column of lists."""
    if isinstance(values.dtype, pl.Struct):
        return values.struct.field(values.dtype.fields[0].name).alias(values.name)
    if values.dtype != pl.String:
        return values.cast(pl.List(pl.String)) if values.dtype == pl.Null else values
    with warnings.catch_warnings(action="ignore"):  # of Python, about a text such as 2in1 or with a backslash
        return pl.Series(values.name, [_list(text) for text in values], pl.List(pl.String))


def num_images(images: pl.Series) -> pl.Series:
    """The number of items of each list. In a column of text, a number of up to four digits is itself the number of items."""
    counts = lists(images).list.len()
    if images.dtype != pl.String:
        return counts
    numbers = images.str.extract(r"^\s*(\d{1,4})(?:\.0+)?\s*$")  # pandas writes 3.0 in a column with missing values
    return numbers.cast(counts.dtype).zip_with(numbers.is_not_null(), counts)


def _printed(text: str) -> Any:
    """The object that Python or NumPy printed. NumPy prints no commas: ['A' 'B'], of which Python would join the items."""
    in_python = re.sub(r"array\((\[[^]]*\]), dtype=object\)", r"\1", text)
    return ast.literal_eval(re.sub(r"""(?<=['"}])\s+(?=['"{])""", ", ", in_python))


def _list(text: str | None) -> list[str | None]:
    """The items of a list that was printed as JSON, by Python or by NumPy. Of an object of lists, the items of its first
    list. Any other text is one item."""
    if text is None or text.strip().lower() in ("", "[]", "{}", "none", "null", "nan"):
        return []
    for parse in (json.loads, _printed):
        try:
            items = parse(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # TypeError: for {{}}, a set of dicts
            continue
        if isinstance(items, dict):
            items = next(iter(items.values()), [])
        if isinstance(items, list | tuple):
            return [item if item is None else str(item) for item in items]
    return [text]


# ---------------------------------------------------------------------------------------------------------------- prices

_CURRENCY = r"(?:[A-Z]{0,3}[$€£¥₹]|[A-Z]{3})?"
AMOUNT = rf"^(?:(?i:from)\s+)?{_CURRENCY}\s*([.,]?\d[\d.,]*)\s*{_CURRENCY}(?:\s*[-–—].*)?$"
# By decimal mark: a pattern of numbers, and a pattern of numbers that cannot have the other mark. Lakhs are written 1,23,456
NUMBERS_WITH = {
    ".": (r"^(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d+)(?:\.\d+)?$|^\.\d+$", r"^\d*\.(?:\d{1,2}|\d{4,})$|,\d{3}\.\d|,\d{2,3},"),
    ",": (r"^(?:\d{1,3}(?:\.\d{2,3})*\.\d{3}|\d+)(?:,\d+)?$|^,\d+$", r"^\d*,(?:\d{1,2}|\d{4,})$|\.\d{3},\d|\.\d{2,3}\."),
}
TOLERATED_MARKS = 0.01
"""The share of prices that may contradict the decimal mark of their file, among the prices that only one mark explains. They
become null."""


def decimal_mark(prices: Iterator[pl.Series], path: Path) -> str:
    """The decimal mark of a file's prices, '.' or ','; '.' unless more prices have a comma.

    `12,50` has a decimal comma, `12.50` a decimal point, and `1,234` could have either. Raises `UserError` if more
    than the share `TOLERATED_MARKS` of the prices that only one mark explains have the rarer mark.
    """
    count_of = dict.fromkeys(NUMBERS_WITH, 0)
    first: dict[str, str] = {}
    for values in prices:
        if values.dtype.is_numeric():
            continue
        amounts = values.to_frame("price").select(_amounts()).to_series().drop_nulls()
        for mark, (_, only_with_mark) in NUMBERS_WITH.items():
            matches = amounts.filter(amounts.str.contains(only_with_mark))
            count_of[mark] += len(matches)
            if len(matches):
                first.setdefault(mark, matches[0])
    if min(count_of.values()) > TOLERATED_MARKS * sum(count_of.values()):
        raise UserError(
            f"prices of {path} have a decimal point, as in {first['.']} ({count_of['.']:,} of them), and a decimal comma, "
            f"as in {first[',']} ({count_of[',']:,}): write all of them with a point"
        )
    return "," if count_of[","] > count_of["."] else "."


def _amounts() -> pl.Expr:
    """The digits and marks of the column `price`, without a currency, a range, blanks and apostrophes between thousands."""
    text = pl.col("price").cast(pl.String).str.strip_chars()
    for _ in range(2):  # a match includes the digits on both sides, so 1 234 567 needs two passes
        text = text.str.replace_all(r"(\d)[ \u00a0\u202f'’](\d{3})", "$1$2")
    return text.str.extract(AMOUNT)


def price(mark: str) -> pl.Expr:
    """The column `price` as an amount of money, for a range the lowest; null for other text. mark : from `decimal_mark`."""
    amount = _amounts()
    other = "," if mark == "." else "."
    plain = amount.str.replace_all(other, "", literal=True).str.replace(mark, ".", literal=True)
    return pl.when(amount.str.contains(NUMBERS_WITH[mark][0])).then(plain.cast(pl.Float64, strict=False))
