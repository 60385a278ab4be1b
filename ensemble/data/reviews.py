"""Raw review and metadata files to canonical polars frames: streamed in blocks, every bad row counted.

    census = Census()
    for frame in read_reviews(expand_sources(["hub:All_Beauty", "more/*.jsonl.gz"], cache), census):
        ...                                   # REVIEW_SCHEMA, about 32 MB of raw text at a time
    print(census.table())
    census.check(max_bad_fraction=0.01)

What can be read, recognised by what is in the file and never by its name:

    JSON lines, plain or gzip     Amazon Reviews 2023 and 2018, reviews and metadata
    Parquet                       the same columns
    CSV and TSV, plain or gzip    Amazon Reviews 2023 (benchmark and joined), UserId,ProductId,Rating,Timestamp, MovieLens
    any of them                   with the user's own mapping of columns

A block is parsed at once with an explicit schema. Only where that fails is the block read again record by record, to name
its bad lines and to keep the good ones; the same parser decides in the end, so a block's size never changes what is kept.
CSV is quoted as RFC 4180 says, so that a text may span lines and a stray quote is an error; tab-separated files have no
quoting. Times are UTC.
"""

import ast
import codecs
import csv
import datetime
import difflib
import glob
import gzip
import io
import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ensemble.errors import UserError

REVIEW_SCHEMA: dict[str, pl.DataType] = {
    "product_id": pl.String(),
    "user_id": pl.String(),
    "time_ms": pl.Int64(),  # UTC, milliseconds since 1970
    "rating": pl.Float32(),  # stars, 0.5 to 5
    "text": pl.String(),  # title, newline, text; null where the format has neither or they were not asked for
    "helpful_votes": pl.Int32(),  # null where the format does not record them; the same for the next two
    "verified": pl.Boolean(),
    "num_images": pl.Int32(),
    "source_file": pl.Int16(),  # index into the list of files
    "source_line": pl.Int64(),  # the first line is 1; in Parquet, the first row
}
PRODUCT_SCHEMA: dict[str, pl.DataType] = {
    "product_id": pl.String(),
    "title": pl.String(),
    "store": pl.String(),
    "category": pl.String(),  # the main category, or else the last of the categories
    "price": pl.Float64(),  # null where unknown; the lowest of a range
}

MALFORMED = "malformed line"
NO_PRODUCT = "missing product id"
NO_USER = "missing user id"
NO_TIME = "missing time"
BAD_RATING = "impossible rating"
TOO_OLD = "date before 1995"
TOO_NEW = "date after the file's end"
BAD_KINDS = (MALFORMED, NO_PRODUCT, NO_USER, NO_TIME, BAD_RATING, TOO_OLD, TOO_NEW)
"""Why a reader drops a row: the first of these that is true of it."""

LOWEST_RATING, HIGHEST_RATING = 0.5, 5.0  # MovieLens gives half stars, from a half
YEAR_1995_MS = 788_918_400_000  # Amazon opened in July 1995; the oldest review of the 2023 release is of May 1996
DAY_S = 86_400
SMALLEST_MILLISECONDS = 1e11  # in seconds this would be the year 5138, in milliseconds it is 1973

BLOCK_BYTES = 32 << 20
HEAD_BYTES = 1 << 20
HEAD_RECORDS = 1000
GZIP_BYTES = 1 << 17
LONGEST_RECORD_BYTES = 64 << 20
PARQUET_ROW_BYTES = 400  # about one review with its text, to make Parquet's blocks as large as the others
PARQUET_BUFFER_BYTES = 1 << 20  # without it a whole column of a row group is in memory
NUM_OFFENDERS = 5
EXCERPT_CHARACTERS = 80

csv.field_size_limit(LONGEST_RECORD_BYTES)  # the csv module refuses fields of more than 128 KiB, which reviews may be

QUOTING: dict[str, Literal[0, 3]] = {",": csv.QUOTE_MINIMAL, "\t": csv.QUOTE_NONE}

HUB_REPOSITORY = "McAuley-Lab/Amazon-Reviews-2023"
HUB_FILES = {"reviews": "raw/review_categories/{}.jsonl", "products": "raw/meta_categories/meta_{}.jsonl"}


@dataclass(frozen=True, kw_only=True)
class Format:
    """Which column of a file holds which of our fields; the unit of time is told by the values."""

    name: str
    fields: Mapping[str, str]
    sparse: tuple[str, ...] = ()
    """Fields that a JSON line leaves out where they are zero or empty."""


REVIEW_FIELDS = ("product_id", "user_id", "rating", "time", "title", "text", "helpful_votes", "verified", "images")
PRODUCT_FIELDS = ("product_id", "title", "categories", "main_category", "store", "price")
REQUIRED_FIELDS = {"reviews": REVIEW_FIELDS[:4], "products": PRODUCT_FIELDS[:3]}


def _columns(fields: Sequence[str], columns: str) -> dict[str, str]:
    return dict(zip(fields, columns.split(), strict=False))


REVIEW_FORMATS = (
    Format(
        name="Amazon Reviews 2023",
        fields=_columns(
            REVIEW_FIELDS, "parent_asin user_id rating timestamp title text helpful_vote verified_purchase images"
        ),
    ),
    Format(
        name="Amazon Reviews 2018",
        fields=_columns(REVIEW_FIELDS, "asin reviewerID overall unixReviewTime summary reviewText vote verified image"),
        sparse=("helpful_votes", "images"),
    ),
    Format(name="Amazon ratings", fields=_columns(REVIEW_FIELDS, "ProductId UserId Rating Timestamp")),
    Format(name="MovieLens ratings", fields=_columns(REVIEW_FIELDS, "movieId userId rating timestamp")),
    Format(
        name="RecBole .inter",
        fields=_columns(REVIEW_FIELDS, "item_id:token user_id:token rating:float timestamp:float"),
    ),
)
PRODUCT_FORMATS = (
    Format(
        name="Amazon metadata 2023",
        fields=_columns(PRODUCT_FIELDS, "parent_asin title categories main_category store price"),
    ),
    Format(
        name="Amazon metadata 2018",
        fields=_columns(PRODUCT_FIELDS, "asin title category main_cat brand price"),
    ),
)
YOUR_COLUMNS = "your columns"

# JSON is parsed with these types first, which is faster, then, where a value has another type, with everything as text.
# `helpful_votes` and `price` are numbers in one release and text in the other, so they are always read as text.
JSON_TYPES: dict[str, pl.DataType] = {
    "rating": pl.Float64(),
    "time": pl.Int64(),
    "verified": pl.Boolean(),
    "images": pl.List(pl.String),
    "categories": pl.List(pl.String),
}


class Offender(NamedTuple):
    """A row that was dropped, and where it stands."""

    file: str
    line: int
    excerpt: str


class Census:
    """How many rows were read, kept, and dropped for which reason, with the first offenders of each kind.

    Always `rows_read == rows_kept + sum(dropped.values())`. Later stages drop rows too (duplicates): they call `drop`.
    """

    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_kept = 0
        self.dropped: dict[str, int] = {}
        self.offenders: dict[str, list[Offender]] = {}
        self.files: list[dict[str, str]] = []

    def read(self, rows: int) -> None:
        """Count rows that were read: they are kept until `drop` says otherwise."""
        self.rows_read += rows
        self.rows_kept += rows

    def drop(self, kind: str, count: int, offenders: Iterable[Offender] = ()) -> None:
        """Count `count` of the rows read as dropped; the first few offenders of a kind are remembered."""
        if count == 0:
            return
        self.rows_kept -= count
        assert self.rows_kept >= 0, "more rows dropped than were read"
        self.dropped[kind] = self.dropped.get(kind, 0) + count
        first = self.offenders.setdefault(kind, [])
        first.extend(offender for offender, _ in zip(offenders, range(NUM_OFFENDERS - len(first)), strict=False))

    def check(self, max_bad_fraction: float) -> None:
        """Raise `UserError` with the list of what was dropped when more than `max_bad_fraction` of the rows were bad.

        Bad are the kinds in `BAD_KINDS`; what a later stage drops (duplicates) is counted but is no fault of the file.
        """
        bad = sum(self.dropped.get(kind, 0) for kind in BAD_KINDS)
        if self.rows_read and bad <= max_bad_fraction * self.rows_read and bad < self.rows_read:
            return
        share = bad / max(self.rows_read, 1)
        mend = "mend the files, or allow more with max_bad_fraction"
        if self.dropped.get(TOO_NEW, 0) * 2 > bad:
            mend = "a file's end is its modification time unless you give it with until"
        raise UserError(
            f"{bad:,} of {self.rows_read:,} rows are bad ({share:.2%}, allowed are {max_bad_fraction:.2%}): "
            f"{mend}\n{self.table()}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole census for a manifest: plain dicts, lists, strings and whole numbers."""
        return {
            "rows_read": self.rows_read,
            "rows_kept": self.rows_kept,
            "dropped": {
                kind: {"count": count, "first": [offender._asdict() for offender in self.offenders[kind]]}
                for kind, count in self.dropped.items()
            },
            "files": self.files,
        }

    def table(self) -> str:
        """The census for the screen: how each file was understood, the counts, the first offenders."""
        counts = {"rows read": self.rows_read, **self.dropped, "rows kept": self.rows_kept}
        width = max(len(f"{count:,}") for count in counts.values())
        lines = [f"{file['file']}: " + ", time in ".join(list(file.values())[1:]) for file in self.files]
        for kind, count in counts.items():
            lines.append(f"  {count:>{width},}  {kind}")
            for offender in self.offenders.get(kind, []):
                lines.append(f"  {'':{width}}    {offender.file}:{offender.line}: {offender.excerpt}")
        return "\n".join(lines)


def expand_sources(
    sources: Sequence[str | Path], cache_dir: str | Path, kind: Literal["reviews", "products"] = "reviews"
) -> list[Path]:
    """The files that paths, globs and `hub:CATEGORY` stand for, in their order, each once.

    A category of `hub:` is downloaded into `cache_dir`: its reviews, or its products' metadata, as `kind` says.
    Raises `UserError` for no source at all, a path that does not exist or is a folder, a glob that matches nothing, and a
    download that fails.
    """
    if not sources:
        raise UserError(f"no {kind} are given: name at least one file, glob or hub:CATEGORY")
    found: dict[Path, Path] = {}
    for source in map(str, sources):
        if source.startswith("hub:"):
            paths = [_download(source.removeprefix("hub:"), Path(cache_dir), kind)]
        elif glob.has_magic(source) and not Path(source).exists():
            paths = [path for path in map(Path, sorted(glob.glob(source, recursive=True))) if path.is_file()]
            if not paths:
                raise UserError(f"no file matches '{source}': check the pattern, and quote it against the shell")
        elif Path(source).is_dir():
            raise UserError(f"{source} is a folder: name its files, as in '{source.rstrip('/')}/*.jsonl.gz'")
        elif Path(source).exists():
            paths = [Path(source)]
        else:
            raise UserError(f"the file {source} does not exist: check the path")
        for path in paths:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def read_reviews(
    files: Sequence[str | Path],
    census: Census,
    *,
    columns: Mapping[str, str] | None = None,
    until_ms: int | None = None,
    with_text: bool = True,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pl.DataFrame]:
    """Read reviews as frames of `REVIEW_SCHEMA`, never empty, in the order of the files; `census` counts every row.

    files : what `expand_sources` gives. All of them are recognised before the first block is read.
    columns : our field -> the file's column, for files of another kind: product_id, user_id, rating and time are needed,
        title, text, helpful_votes, verified and images may be given. Numbers count the columns of a CSV without header.
    until_ms : reviews after this moment (UTC) are dropped; by default a day after each file's modification time.
    with_text : False leaves `text` null and does not pay for it.
    block_bytes : of raw text in memory at once; it changes no row.

    Raises `UserError` for an empty or damaged file (with the byte), and for one that no known format fits.
    """
    if columns is not None:
        _check_columns(columns)
    formats = REVIEW_FORMATS if columns is None else (Format(name=YOUR_COLUMNS, fields=columns, sparse=REVIEW_FIELDS[4:]),)
    sources = [_recognise(Path(file), formats, "reviews") for file in files]
    times = [_time_unit(source) for source in sources]
    for source, time in zip(sources, times, strict=True):
        census.files.append({"file": str(source.path), "format": source.name, "time": time})
    return _reviews(sources, times, census, until_ms, with_text, block_bytes)


def read_products(files: Sequence[str | Path], census: Census, *, block_bytes: int = BLOCK_BYTES) -> Iterator[pl.DataFrame]:
    """Read products' metadata as frames of `PRODUCT_SCHEMA`, never empty; give it a census of its own.

    A product may come more than once; a price that is no amount of money is null. Raises `UserError` as `read_reviews`.
    """
    sources = [_recognise(Path(file), PRODUCT_FORMATS, "products") for file in files]
    for source in sources:
        census.files.append({"file": str(source.path), "format": source.name})
    return _products(sources, census, block_bytes)


# ------------------------------------------------------------------------------------------------ raw rows to our tables


def _reviews(
    sources: list["_Source"], times: list[str], census: Census, until_ms: int | None, with_text: bool, block_bytes: int
) -> Iterator[pl.DataFrame]:
    for index, (source, time) in enumerate(zip(sources, times, strict=True)):
        last_ms = until_ms if until_ms is not None else int((source.path.stat().st_mtime + DAY_S) * 1000)
        skip = () if with_text else ("title", "text")
        fields = {field: column for field, column in source.fields.items() if field not in skip}
        for raw in _blocks(source, fields, census, block_bytes):
            rows = raw.with_columns(
                product_id=_word("product_id"),
                user_id=_word("user_id"),
                time_ms=_time_ms(raw.schema["time"], time),
                rating=pl.col("rating").cast(pl.Float64, strict=False),
            )
            defect = (
                pl.when(pl.col("product_id").is_null())
                .then(pl.lit(NO_PRODUCT))
                .when(pl.col("user_id").is_null())
                .then(pl.lit(NO_USER))
                .when(pl.col("time_ms").is_null())
                .then(pl.lit(NO_TIME))
                .when(~pl.col("rating").is_between(LOWEST_RATING, HIGHEST_RATING).fill_null(False))
                .then(pl.lit(BAD_RATING))
                .when(pl.col("time_ms") < YEAR_1995_MS)
                .then(pl.lit(TOO_OLD))
                .when(pl.col("time_ms") > last_ms)
                .then(pl.lit(TOO_NEW))
            )
            good = _keep_good(raw, rows, defect, source, census, REQUIRED_FIELDS["reviews"])
            if good.is_empty():
                continue
            if "images" in fields:
                good = good.with_columns(_lists(good["images"]))
            yield good.select(
                "product_id",
                "user_id",
                "time_ms",
                pl.col("rating").cast(pl.Float32),
                text=_text(fields),
                helpful_votes=_helpful_votes(fields),
                verified=_verified(fields),
                num_images=_num_images(fields),
                source_file=pl.lit(index, pl.Int16),
                source_line="source_line",
            )


def _products(sources: list["_Source"], census: Census, block_bytes: int) -> Iterator[pl.DataFrame]:
    for source in sources:
        for raw in _blocks(source, source.fields, census, block_bytes):
            rows = raw.with_columns(product_id=_word("product_id"))
            defect = pl.when(pl.col("product_id").is_null()).then(pl.lit(NO_PRODUCT))
            good = _keep_good(raw, rows, defect, source, census, ("product_id", "title"))
            if good.is_empty():
                continue
            absent = [pl.lit(None, pl.String).alias(f) for f in PRODUCT_FIELDS if f not in good.columns]
            good = good.with_columns(absent).with_columns(
                _word("title"),
                _word("store"),
                _word("main_category"),
                categories=_lists(good["categories"]).list.last().str.strip_chars().replace("", None),
            )
            price = pl.col("price").cast(pl.String).str.strip_chars()
            amount = price.str.extract(r"^(?:(?i)from\s+)?(?:USD|\$)?\s*(\d[\d,]*(?:\.\d+)?)(?:\s*-.*)?$")
            yield good.select(
                "product_id",
                "title",
                "store",
                # the 2018 release has some main categories as a picture: <img … alt="AMAZON FASHION"/>
                category=pl.coalesce(
                    pl.col("main_category").str.extract('^<img.* alt="([^"]+)"'), "main_category", "categories"
                ),
                price=amount.str.replace_all(",", "").cast(pl.Float64),
            )


def _keep_good(
    raw: pl.DataFrame, rows: pl.DataFrame, defect: pl.Expr, source: "_Source", census: Census, shown: Sequence[str]
) -> pl.DataFrame:
    """The rows without a defect; the others are counted by kind, with their raw values as excerpt."""
    defects = rows.select(defect.alias("defect"))["defect"]
    if defects.null_count() == rows.height:
        return rows
    for (kind,), bad in raw.with_columns(defect=defects).drop_nulls("defect").group_by("defect", maintain_order=True):
        first = bad.head(NUM_OFFENDERS).select(*shown, "source_line").to_dicts()
        excerpts = (", ".join(f"{field}={_shown(row[field])}" for field in shown) for row in first)
        offenders = (
            Offender(str(source.path), row["source_line"], excerpt) for row, excerpt in zip(first, excerpts, strict=True)
        )
        census.drop(str(kind), bad.height, offenders)
    return rows.filter(defects.is_null())


def _shown(value: Any) -> str:
    """A value in an excerpt, the same whether it was parsed as a number or as text."""
    return "" if value is None else str(value).removesuffix(".0")[:EXCERPT_CHARACTERS]


def _word(field: str) -> pl.Expr:
    """Text without blanks around it; null where there is none, as empty files and pandas write it."""
    text = pl.col(field).cast(pl.String).str.strip_chars()
    return pl.when(text.is_in(["", "None", "null", "nan"])).then(None).otherwise(text).alias(field)


def _time_ms(dtype: pl.DataType, unit: str) -> pl.Expr:
    """The moment in UTC milliseconds; null where the value is none."""
    time = pl.col("time")
    if dtype.is_temporal():
        return time.dt.epoch("ms")
    if unit == "dates":
        text = time.cast(pl.String).str.strip_chars().str.replace("T", " ").str.replace(r"\s*(Z|UTC|\+00:?00)$", "")
        return pl.coalesce(
            text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ms", strict=False),
            text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("ms")),
        ).dt.epoch("ms")
    if dtype.is_integer() and unit == "milliseconds":
        return time.cast(pl.Int64)
    number = time.cast(pl.Float64, strict=False)
    return (number if unit == "milliseconds" else number * 1000).cast(pl.Int64, strict=False)


def _text(fields: Mapping[str, str]) -> pl.Expr:
    """Title, newline, text; null where a row has neither."""
    parts = [pl.col(field).cast(pl.String) for field in ("title", "text") if field in fields]
    if not parts:
        return pl.lit(None, pl.String)
    return pl.when(pl.any_horizontal(part.is_not_null() for part in parts)).then(
        pl.concat_str(parts, separator="\n", ignore_nulls=True)
    )


def _helpful_votes(fields: Mapping[str, str]) -> pl.Expr:
    """Votes as a whole number; the 2018 release writes '1,234', and nothing at all for none."""
    if "helpful_votes" not in fields:
        return pl.lit(None, pl.Int32)
    votes = pl.col("helpful_votes")
    number = votes.cast(pl.String).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
    whole = number.clip(-(2**31), 2**31 - 1).cast(pl.Int32, strict=False)
    return pl.when(votes.is_null()).then(0).otherwise(whole).cast(pl.Int32)


def _verified(fields: Mapping[str, str]) -> pl.Expr:
    if "verified" not in fields:
        return pl.lit(None, pl.Boolean)
    word = pl.col("verified").cast(pl.String).str.to_lowercase()
    known = {"true": True, "1": True, "y": True, "false": False, "0": False, "n": False}
    return word.replace_strict(known, default=None, return_dtype=pl.Boolean)


def _num_images(fields: Mapping[str, str]) -> pl.Expr:
    """The length of the list of images; the 2018 release leaves an empty one out."""
    if "images" not in fields:
        return pl.lit(None, pl.Int32)
    return pl.col("images").list.len().fill_null(0).cast(pl.Int32)


def _lists(values: pl.Series) -> pl.Series:
    """A column of lists: as it is, from a struct of lists (Parquet), or from text that prints a list (CSV)."""
    if isinstance(values.dtype, pl.Struct):
        return values.struct.field(values.dtype.fields[0].name).alias(values.name)
    if values.dtype != pl.String:
        return values
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


# ------------------------------------------------------------------------------------------------- files to raw rows


class _Record(NamedTuple):
    """A line of text, or several where a quoted newline is inside, with the number of the first."""

    line: int
    octets: bytes


_Block = tuple[pl.DataFrame, list[_Record]]  # sound rows with their `source_line`, and the malformed records


@dataclass(frozen=True, kw_only=True)
class _JsonLines:
    """One JSON object on each line."""

    start: int  # bytes before the first record: the byte order mark, the header
    first_line: int = 1  # of the first record
    quoted = False  # whether a record may hold newlines, in quotes

    def parse(self, block: bytes, fields: Mapping[str, str], typed: bool = False) -> pl.DataFrame | None:
        """One row per record, blank ones left out; None where any record is malformed.

        Without `typed` every column is text, and a value of an unexpected type is no reason to refuse the block.
        """
        types = JSON_TYPES if typed else {}
        schema = {column: types.get(field, pl.String()) for field, column in fields.items()}
        try:
            frame = pl.read_ndjson(block, schema=schema)
        except pl.exceptions.PolarsError:
            return None
        return frame.select(pl.col(column).alias(field) for field, column in fields.items())

    def sound(self, octets: bytes) -> bool:
        """A quick look at one record: False for most of those that `parse` would refuse, and for no other."""
        try:
            return isinstance(json.loads(octets), dict)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, kw_only=True)
class _Delimited:
    """Comma- or tab-separated text. `parse` and `sound` as in `_JsonLines`; every column is text."""

    header: list[str]
    delimiter: str
    start: int
    first_line: int

    @property
    def quoted(self) -> bool:
        return self.delimiter == ","

    def parse(self, block: bytes, fields: Mapping[str, str], typed: bool = False) -> pl.DataFrame | None:
        if not self._well_quoted(block):
            return None
        names = [str(position) for position in range(len(self.header))]
        wanted = {field: names[self.header.index(column)] for field, column in fields.items()}
        try:
            block.decode()  # pyarrow looks only at the columns that it converts
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
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame.select(pl.col(name).alias(field) for field, name in wanted.items())

    def sound(self, octets: bytes) -> bool:
        try:
            rows = _rows(octets.decode(), self.delimiter)
        except (UnicodeDecodeError, csv.Error):
            return False
        return len(rows) == 1 and len(rows[0]) == len(self.header) and self._well_quoted(octets)

    def _well_quoted(self, octets: bytes) -> bool:
        """Whether every quote opens a field, closes one, or stands doubled in one, so that `_cut` and pyarrow agree."""
        if not self.quoted or b'"' not in octets:
            return True
        array = np.frombuffer(octets, np.uint8)
        quotes = np.flatnonzero(array == ord('"'))
        if len(quotes) % 2:
            return False
        opening, closing = quotes[::2], quotes[1::2]
        doubled = opening[1:] == closing[:-1] + 1
        # What precedes the first byte is the last one, by Python's indexing: a newline, as it should be.
        opens = np.isin(array[opening - 1], np.frombuffer(b",\n", np.uint8))
        closes = np.isin(array[closing + 1], np.frombuffer(b",\r\n", np.uint8))
        opens[1:] |= doubled
        closes[:-1] |= doubled
        return bool(opens.all() and closes.all())


@dataclass(frozen=True, kw_only=True)
class _Parquet:
    """Typed columns; a line is a row."""


_Text = _JsonLines | _Delimited


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A file that was recognised."""

    path: Path
    name: str  # of its format
    fields: Mapping[str, str]  # our field -> the file's column, for the fields that the file has
    layout: _Text | _Parquet
    head: list[dict[str, Any]]  # some of its first rows


def _blocks(source: _Source, fields: Mapping[str, str], census: Census, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Frames with one column per field, and `source_line`; malformed lines go to the census."""
    if isinstance(source.layout, _Parquet):
        blocks = _parquet_blocks(source.path, fields, block_bytes)
    else:
        blocks = _text_blocks(source.path, source.layout, fields, block_bytes)
    for frame, malformed in blocks:
        census.read(frame.height + len(malformed))
        offenders = (Offender(str(source.path), record.line, _excerpt(record.octets)) for record in malformed)
        census.drop(MALFORMED, len(malformed), offenders)
        if frame.height:
            yield frame


def _parquet_blocks(path: Path, fields: Mapping[str, str], block_bytes: int) -> Iterator[_Block]:
    rows_read = 0
    for batch in _batches(path, list(set(fields.values())), max(1, block_bytes // PARQUET_ROW_BYTES)):
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        frame = frame.select(pl.col(column).alias(field) for field, column in fields.items())
        yield _with_lines(frame, np.arange(rows_read + 1, rows_read + frame.height + 1)), []
        rows_read += frame.height


def _batches(path: Path, columns: list[str] | None, num_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with pa.parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER_BYTES) as file:
            for batch in file.iter_batches(num_rows, columns=columns, use_threads=False):
                batch.validate(full=True)  # polars panics at text, or metadata, that is no UTF-8
                yield batch.replace_schema_metadata(None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a sound Parquet file ({' '.join(str(error).split())}): get it again") from None


def _text_blocks(path: Path, layout: _Text, fields: Mapping[str, str], block_bytes: int) -> Iterator[_Block]:
    with _Bytes(path) as stream:
        stream.read(layout.start)
        for block, ends, lines in _cut(stream.read, path, block_bytes, layout.quoted, layout.first_line):
            frame = layout.parse(block, fields, typed=True)
            # A blank line is no row, but its record must not be taken for one that two rows fill.
            no_blanks = bool((np.diff(ends, prepend=0) > len(b"\r\n")).all())
            if frame is not None and frame.height == len(ends) and no_blanks:
                yield _with_lines(frame, lines), []
            else:
                yield _salvage(_split(block, ends, lines), layout, fields)


def _salvage(records: list[_Record], layout: _Text, fields: Mapping[str, str]) -> _Block:
    """Read what can be read of a block that holds a malformed line, a blank one, or a value of an unexpected type."""
    frames = [pl.DataFrame(schema={**dict.fromkeys(fields, pl.String), "source_line": pl.Int64})]

    def keep(part: list[_Record]) -> bool:
        frame = layout.parse(b"".join(record.octets for record in part), fields)
        if frame is None or frame.height != len(part):
            return False
        frames.append(_with_lines(frame, [record.line for record in part]))
        return True

    def bisect(part: list[_Record]) -> list[_Record]:
        if not part or keep(part):
            return []
        middle = len(part) // 2
        return bisect(part[:middle]) + bisect(part[middle:]) if middle else part

    if keep(records):
        return pl.concat(frames), []
    sound: list[_Record] = []
    malformed: list[_Record] = []
    for record in records:
        # A quote that is never closed makes one record of many lines: each is then judged alone.
        for piece in [record] if layout.sound(record.octets) else _lines(record):
            (sound if layout.sound(piece.octets) else malformed).append(piece)
    malformed += bisect(sound)
    return pl.concat(frames), sorted(malformed)


def _with_lines(frame: pl.DataFrame, lines: np.ndarray | list[int]) -> pl.DataFrame:
    return frame.with_columns(source_line=pl.Series(lines, dtype=pl.Int64))


def _split(block: bytes, ends: np.ndarray, lines: np.ndarray) -> list[_Record]:
    """The records of a block that are not blank."""
    starts = [0, *ends[:-1].tolist()]
    records = (_Record(line, block[a:b]) for line, a, b in zip(lines.tolist(), starts, ends.tolist(), strict=True))
    return [record for record in records if record.octets.strip(b" \r\n")]


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """The fields of each row that is not blank."""
    lines = io.StringIO(text, newline="")
    return [row for row in csv.reader(lines, delimiter=delimiter, quoting=QUOTING[delimiter]) if row]


def _lines(record: _Record) -> list[_Record]:
    octets = io.BytesIO(record.octets)
    return [_Record(line, text) for line, text in enumerate(octets, record.line) if text.strip(b" \r\n")]


def _excerpt(octets: bytes) -> str:
    text = octets[: 4 * EXCERPT_CHARACTERS].decode(errors="replace").strip()
    return text.replace("\n", "\\n")[:EXCERPT_CHARACTERS]


def _cut(
    read: Callable[[int], bytes], path: Path, block_bytes: int, quoted: bool, first_line: int
) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Blocks that end where a record ends, with the end (a byte offset) and the first line of each of their records.

    A newline ends a record unless an odd number of quotes precedes it. The last newline of a file gets added if it lacks.
    A quote still open after `LONGEST_RECORD_BYTES`, or at the file's end, makes one record of what follows it.
    """
    rest, line = b"", first_line
    while True:
        piece = read(block_bytes)
        block = rest + piece
        if not piece and block and not block.endswith(b"\n"):
            block += b"\n"
        octets = np.frombuffer(block, np.uint8)
        newlines = np.flatnonzero(octets == ord("\n"))
        last = np.arange(len(newlines))  # of those, the last one of each record
        if quoted and b'"' in block:
            last = last[np.searchsorted(np.flatnonzero(octets == ord('"')), newlines) % 2 == 0]
        if not piece or (len(last) == 0 and len(block) > LONGEST_RECORD_BYTES):
            if len(newlines) == 0 and block:
                raise UserError(f"line {line} of {path} is longer than {LONGEST_RECORD_BYTES:,} bytes: cut it up")
            last = np.union1d(last, np.arange(len(newlines))[-1:])
        if len(last):
            ends = newlines[last] + 1
            yield block[: ends[-1]], ends, line + np.concatenate([[0], last[:-1] + 1])
            line += int(last[-1]) + 1
            block = block[ends[-1] :]
        if not piece:
            return
        rest = block


class _Bytes:
    """The bytes of a file, decompressed if it is gzip, from the first to the last.

    Raises `UserError` for a file that cannot be opened, and where a gzip stream is damaged or breaks off.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.position = 0
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
            packed = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
        self._gzip = gzip.GzipFile(fileobj=self._file) if packed else None

    def __enter__(self) -> "_Bytes":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        pieces = []
        while size > 0 and (piece := self._read_some(size)):
            pieces.append(piece)
            size -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def _read_some(self, size: int) -> bytes:
        try:
            # In small pieces, so that what precedes the damage is not lost with it.
            return self._gzip.read1(min(size, GZIP_BYTES)) if self._gzip else self._file.read(size)
        except EOFError:
            what = "breaks off"
        except (gzip.BadGzipFile, zlib.error) as error:
            what = f"is damaged ({error})"
        except OSError as error:
            raise UserError(f"{self.name} cannot be read ({error.strerror}): check the disk, or copy it again") from None
        raise UserError(
            f"the gzip stream of {self.name} {what} near byte {self._file.tell():,}, after {self.position:,} "
            "decompressed bytes: get the file again"
        )


# ------------------------------------------------------------------------------------------------- what a file is


FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}


def _recognise(path: Path, formats: Sequence[Format], kind: str) -> _Source:
    """Which of the formats a file has, told by its first bytes and the names of its columns."""
    headless = formats[0].name == YOUR_COLUMNS and all(column.isdigit() for column in formats[0].fields.values())
    layout, names, head = _look(path, headless)
    seen = f"its columns are {', '.join(names)[:300]}"
    if kind == "products" and any(_fits(format, names, "reviews") for format in REVIEW_FORMATS):
        raise UserError(f"{path} holds reviews, not product metadata ({seen}): give it among the reviews")
    for format in formats:
        sparse = format.sparse if isinstance(layout, _JsonLines) else ()
        fields = {field: column for field, column in format.fields.items() if column in names or field in sparse}
        if format.name == YOUR_COLUMNS and (
            lost := [format.fields[field] for field in format.fields if field not in fields]
        ):
            raise UserError(f"{path} has no column '{lost[0]}', which columns names: {seen}")
        if _fits(format, names, kind):
            if not head:
                raise UserError(f"{path} holds no sound row among its first ({seen}): check how it was made")
            if twice := [column for column in fields.values() if names.count(column) > 1]:
                raise UserError(f"{path} has two columns '{twice[0]}': rename one of them in its header")
            return _Source(path=path, name=format.name, fields=fields, layout=layout, head=head)
    if kind == "reviews" and any(_fits(format, names, "products") for format in PRODUCT_FORMATS):
        raise UserError(f"{path} holds product metadata, not reviews ({seen}): give it as the metadata")
    mend = "say with columns which are product_id, user_id, rating and time" if kind == "reviews" else "convert it"
    raise UserError(f"{path} fits no known format of {kind} ({seen}): {mend}")


def _fits(format: Format, names: Sequence[str], kind: str) -> bool:
    return all(format.fields[field] in names for field in REQUIRED_FIELDS[kind])


def _look(path: Path, headless: bool) -> tuple[_Text | _Parquet, list[str], list[dict[str, Any]]]:
    """How a file is laid out, the names of its columns, and its first sound rows."""
    with _Bytes(path) as stream:
        head = stream.read(HEAD_BYTES)
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise UserError(f"{path} is {what}: unpack or convert it to UTF-8 text, gzip or Parquet")
    if head.startswith(b"PAR1"):
        batch = next(_batches(path, None, HEAD_RECORDS), None)
        if batch is None:
            raise UserError(f"{path} has no rows: check how it was made, or leave it out")
        return _Parquet(), batch.schema.names, batch.to_pylist()
    start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    text = head[start:]
    if not text.strip():
        raise UserError(f"{path} is empty: check how it was made, or leave it out")
    if text.lstrip().startswith(b"["):
        raise UserError(f"{path} is one JSON list: write one object per line, as `jq -c '.[]'` does")
    json_lines = text.lstrip().startswith(b"{")
    delimiter = "\t" if b"\t" in text.lstrip().split(b"\n", 1)[0] else ","
    blocks = _cut(io.BytesIO(text).read, path, HEAD_BYTES, not json_lines and delimiter == ",", 1)
    records = [record for block in blocks for record in _split(*block)][:HEAD_RECORDS]
    if json_lines:
        layout = _JsonLines(start=start)
        objects = [json.loads(record.octets) for record in records if layout.sound(record.octets)]
        if not objects:
            raise UserError(f"{path} begins with '{_excerpt(text)}', which is no JSON object: write one on each line")
        return layout, list(dict.fromkeys(name for each in objects for name in each)), objects
    rows = [row for record in records for row in _rows(record.octets.decode(errors="replace"), delimiter)]
    if headless:
        names, first_line = [str(number) for number in range(1, len(rows[0]) + 1)], 1
    else:
        header = records[0].octets
        names, rows = [name.strip() for name in rows[0]], rows[1:]
        start += text.index(header.removesuffix(b"\n")) + len(header)
        first_line = records[0].line + header.count(b"\n")
    table = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    return _Delimited(header=names, delimiter=delimiter, start=start, first_line=first_line), names, table


def _time_unit(source: _Source) -> str:
    """How a file writes time: 'milliseconds', 'seconds' (since 1970) or 'dates', told by its first rows."""
    column = source.fields["time"]
    values = [value for row in source.head if (value := row.get(column)) not in (None, "")]
    texts = pl.DataFrame({"time": [str(value) for value in values]}, schema={"time": pl.String})
    num_dates = texts.select(_time_ms(pl.String(), "dates")).to_series().count()
    if any(isinstance(value, datetime.date) for value in values):  # a column of dates in Parquet
        num_dates = len(values)
    numbers = [number for value in values if math.isfinite(number := _number(value))]
    if numbers and len(numbers) >= num_dates:
        return "milliseconds" if statistics.median(numbers) >= SMALLEST_MILLISECONDS else "seconds"
    if num_dates:
        return "dates"
    first = f", as in '{values[0]}'" if values else ""
    raise UserError(
        f"{source.path} has no time in its column '{column}'{first}: it must hold seconds or milliseconds since 1970, "
        "or dates such as 2023-03-31 or 2023-03-31 23:59:59"
    )


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_columns(columns: Mapping[str, str]) -> None:
    """Raise `UserError` for a mapping that names a field of ours that is not there, or lacks one that is needed."""
    for field in columns:
        if field not in REVIEW_FIELDS:
            near = difflib.get_close_matches(field, REVIEW_FIELDS, n=1)
            mend = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(REVIEW_FIELDS)}"
            raise UserError(f"columns maps '{field}', which is no field of a review; {mend}")
    for field in REQUIRED_FIELDS["reviews"]:
        if field not in columns:
            raise UserError(f"columns does not say which column is the {field}: add {field}=NAME")


def _download(category: str, cache_dir: Path, kind: str) -> Path:
    """One file of the Amazon Reviews 2023 data set, from the hub or from `cache_dir`."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError, RemoteEntryNotFoundError

    name = HUB_FILES[kind].format(category)
    by_hand = f"download {name} of the data set {HUB_REPOSITORY} by hand and give its path instead of hub:{category}"
    try:
        return Path(hf_hub_download(HUB_REPOSITORY, name, repo_type="dataset", cache_dir=cache_dir))
    except RemoteEntryNotFoundError:
        raise UserError(
            f"there is no category '{category}' in {HUB_REPOSITORY}: write it as there, as in hub:All_Beauty"
        ) from None
    except (EntryNotFoundError, HTTPError, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"hub:{category} cannot be downloaded ({why}…): {by_hand}") from None
