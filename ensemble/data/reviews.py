"""Read raw review and metadata files in blocks, as polars frames of one schema; every bad row is counted.

    census = Census()
    for frame in read_reviews(expand_sources(["hub:All_Beauty", "more/*.jsonl.gz"], cache), census):
        ...                                   # REVIEW_SCHEMA, about 32 MB of raw text at a time
    print(census.table())
    census.check(max_bad_fraction=0.01)

Formats, recognised by the content of a file and never by its name:

    JSON lines, plain or gzip     Amazon Reviews 2023 and 2018, reviews and metadata; reviews of 2014
    Parquet                       the same columns
    CSV and TSV, plain or gzip    Amazon Reviews 2023, UserId,ProductId,Rating,Timestamp, MovieLens, .inter of RecBole
    any of them                   with the names of the setting columns, or with a mapping of columns from the user

`raw_files.py` finds the files, and `records.py` reads files of any content. This module gives the columns the names of the
schema; `values.py` converts them to its types and units. Times are UTC.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ensemble.data import records, values
from ensemble.data.census import (
    AFTER_UNTIL,
    BAD_ID,
    BAD_RATING,
    MALFORMED,
    NO_PRODUCT,
    NO_TIME,
    NO_USER,
    NUM_EXAMPLES,
    OTHER_UNIT,
    TOO_NEW,
    TOO_OLD,
    UNREADABLE,
    Census,
    Example,
)
from ensemble.data.raw_files import Kind
from ensemble.errors import UserError

REVIEW_SCHEMA: dict[str, pl.DataType] = {
    "product_id": pl.String(),
    "user_id": pl.String(),
    "time_ms": pl.Int64(),  # UTC, milliseconds since 1970
    "rating": pl.Float32(),  # stars, 0.5 to 5; null if with_rating=False
    "text": pl.String(),  # title, newline, text; null if the row has neither, or with_text=False
    "helpful_votes": pl.Int32(),  # null if the format does not have them; the same for the next two
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
    "price": pl.Float64(),  # null if unknown; the lowest of a range
}

LOWEST_RATING, HIGHEST_RATING = 0.5, 5.0  # MovieLens gives half stars, from a half
YEAR_1995_MS = 1000 * values.YEAR_1995_S
DAY_S = 86_400

TIME = re.compile(r"\d:\d\d|\d{4}-\d\d-\d\d")
"""Part of a date or time, which no name of a column of reviews has."""


def by_number(with_rating: bool = True) -> str:
    """The advice to name the columns of a file without a header by their numbers."""
    columns = "rating: 3, time: 4" if with_rating else "time: 3"
    return f"name the columns by their numbers, as in 'columns={{user_id: 1, product_id: 2, {columns}}}'"


class UnknownFormat(UserError):
    """A file with the columns of no known format, or without a column that the setting columns names."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """The column of each field of the schema; the unit of time follows from its values."""

    name: str
    fields: Mapping[str, str]
    """The schema's field -> the file's column."""
    sparse: tuple[str, ...] = ()
    """Fields that a JSON line omits if they are zero or empty."""


FIELDS: dict[Kind, tuple[str, ...]] = {
    "reviews": ("product_id", "user_id", "rating", "time", "title", "text", "helpful_votes", "verified", "images"),
    "products": ("product_id", "title", "categories", "main_category", "store", "price"),
}
REQUIRED_FIELDS: dict[Kind, tuple[str, ...]] = {"reviews": FIELDS["reviews"][:4], "products": FIELDS["products"][:3]}
YOUR_COLUMNS = "your columns"


def _format(name: str, kind: Kind, columns: str, sparse: tuple[str, ...] = ()) -> Format:
    """The format with these columns, in the order of `FIELDS`; the last ones may be missing."""
    return Format(name=name, fields=dict(zip(FIELDS[kind], columns.split(), strict=False)), sparse=sparse)


FORMATS: dict[Kind, tuple[Format, ...]] = {
    "reviews": (
        _format(
            "Amazon Reviews 2023",
            "reviews",
            "parent_asin user_id rating timestamp title text helpful_vote verified_purchase images",
        ),
        _format(
            "Amazon Reviews 2018",
            "reviews",
            "asin reviewerID overall unixReviewTime summary reviewText vote verified image",
            sparse=("helpful_votes", "images"),
        ),
        _format("Amazon Reviews 2014", "reviews", "asin reviewerID overall unixReviewTime summary reviewText helpful"),
        _format("Amazon ratings", "reviews", "ProductId UserId Rating Timestamp"),
        _format("MovieLens ratings", "reviews", "movieId userId rating timestamp"),
        _format("RecBole .inter", "reviews", "item_id:token user_id:token rating:float timestamp:float"),
        _format("names of the setting columns", "reviews", " ".join(FIELDS["reviews"])),
    ),
    "products": (
        _format("Amazon metadata 2023", "products", "parent_asin title categories main_category store price"),
        _format("Amazon metadata 2018", "products", "asin title category main_cat brand price"),
    ),
}

# The usual types in JSON. `helpful_votes` and `price` are numbers in one release and text in the other, so they are read as
# text
JSON_TYPES: dict[str, pl.DataType] = {
    "rating": pl.Float64(),
    "time": pl.Int64(),
    "verified": pl.Boolean(),
    "images": pl.List(pl.String),
    "categories": pl.List(pl.String),
}


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A file and its format."""

    file: records.RawFile
    format: str
    fields: Mapping[str, str]
    """The schema's field -> the file's column, for the fields that the file has. For JSON lines all fields of the format,
    since later lines may have keys that the first do not have."""
    zero_where_absent: frozenset[str]
    """Fields whose absence from a row means zero or an empty list; the absence of others means that they are unknown."""


def read_reviews(
    files: Sequence[str | Path],
    census: Census,
    *,
    columns: Mapping[str, str] | None = None,
    until_ms: int | None = None,
    with_text: bool = True,
    with_rating: bool = True,
    block_bytes: int = records.BLOCK_BYTES,
) -> Iterator[pl.DataFrame]:
    """Read reviews as frames of `REVIEW_SCHEMA`, never empty, in the order of the files; `census` counts every row.

    files : from `expand_sources`. The formats of all files are recognised before the first block is read.
    columns : the schema's field -> the file's column, for files of an unknown format. product_id, user_id, rating and time
        are required; title, text, helpful_votes, verified and images are optional. If all columns are given as numbers,
        they count the columns of a CSV without a header, from 1.
    until_ms : reviews after this time (UTC) are left out. By default, reviews dated more than a day after their file's
        modification time are bad.
    with_text : False leaves `text` null, which is faster.
    with_rating : False leaves `rating` null; no column of ratings is needed, and any value is allowed in it.
    block_bytes : size of the raw text that is in memory at once; it has no influence on the rows.

    Raises `UserError` for an empty file, a damaged file (with the position of the damage), one of an unknown format, and one
    whose times have another form than seconds or milliseconds since 1970 or dates.
    """
    formats = FORMATS["reviews"]
    if columns is not None:
        _check_columns(columns, [field for field in REQUIRED_FIELDS["reviews"] if with_rating or field != "rating"])
        formats = (Format(name=YOUR_COLUMNS, fields=columns, sparse=FIELDS["reviews"][4:]),)
    if not with_rating:
        formats = tuple(
            replace(each, fields={field: each.fields[field] for field in each.fields if field != "rating"})
            for each in formats
        )
    sources = [_recognise(Path(file), formats, "reviews") for file in files]
    times = []
    for source in sources:
        column = source.fields["time"]
        times.append(values.time_unit([row.get(column) for row in source.file.head], source.file.path, column))
        census.files.append({"file": str(source.file.path), "format": source.format, "time": times[-1]})
    return _reviews(sources, times, census, until_ms, with_text, block_bytes)


def read_products(
    files: Sequence[str | Path], census: Census, *, with_price: bool = True, block_bytes: int = records.BLOCK_BYTES
) -> Iterator[pl.DataFrame]:
    """Read the metadata of products as frames of `PRODUCT_SCHEMA`, never empty.

    A product may occur more than once. A price that is no amount of money is null. Raises `UserError` as `read_reviews`.

    census : not that of the reviews, but one of its own. with_price : False if prices are not used, and may have any form.
    """
    sources = [_recognise(Path(file), FORMATS["products"], "products") for file in files]
    census.files += [{"file": str(source.file.path), "format": source.format} for source in sources]
    for source in sources:
        invalid_ids = values.InvalidIds(source.file, source.fields)
        mark = _decimal_mark(source, block_bytes) if with_price else "."
        for raw in _blocks(source.file, source.fields, census, block_bytes):
            rows = _with_ids(raw, source, invalid_ids)
            defects = {NO_PRODUCT: pl.col("product_id").is_null(), BAD_ID: pl.col("is_invalid_id")}
            good = _keep_good(raw, rows, defects, source.file, census, ("product_id", "title"))
            if good.is_empty():
                continue
            if with_price:
                _note_unreadable(good, source, census, price=values.price(mark))
            absent = [pl.lit(None, pl.String).alias(field) for field in FIELDS["products"] if field not in good.columns]
            good = good.with_columns(absent).with_columns(
                values.names("title", "store", "main_category"),
                categories=values.lists(good["categories"]).list.last().str.strip_chars().replace("", None),
            )
            yield good.select(
                "product_id",
                "title",
                "store",
                # Some main categories of the 2018 release are pictures: <img … alt="AMAZON FASHION"/>
                category=pl.coalesce(
                    pl.col("main_category").str.extract('^<img.* alt="([^"]+)"'), "main_category", "categories"
                ),
                price=values.price(mark),
            )


def _reviews(
    sources: list[_Source], times: list[str], census: Census, until_ms: int | None, with_text: bool, block_bytes: int
) -> Iterator[pl.DataFrame]:
    for index, (source, time) in enumerate(zip(sources, times, strict=True)):
        last_ms = until_ms if until_ms is not None else int((source.file.path.stat().st_mtime + DAY_S) * 1000)
        skip = () if with_text else ("title", "text")
        fields = {field: column for field, column in source.fields.items() if field not in skip}
        invalid_ids = values.InvalidIds(source.file, source.fields)
        for raw in _blocks(source.file, fields, census, block_bytes):
            if isinstance(raw.schema.get("helpful_votes"), pl.List):  # [2, 3] of the 2014 release
                raw = raw.with_columns(pl.col("helpful_votes").list.first())
            rows = _with_ids(raw, source, invalid_ids).with_columns(
                values.as_number("rating", raw.schema["rating"])
                if "rating" in fields
                else pl.lit(None, pl.Float64).alias("rating"),
                time_ms=values.time_ms(raw.schema["time"], time),
                has_other_unit=values.has_other_unit(raw.schema["time"], time),
            )
            defects = {
                NO_PRODUCT: pl.col("product_id").is_null(),
                NO_USER: pl.col("user_id").is_null(),
                BAD_ID: pl.col("is_invalid_id"),
                OTHER_UNIT: pl.col("has_other_unit"),
                NO_TIME: pl.col("time_ms").is_null(),
                BAD_RATING: ~pl.col("rating").is_between(LOWEST_RATING, HIGHEST_RATING).fill_null("rating" not in fields),
                TOO_OLD: pl.col("time_ms") < YEAR_1995_MS,
                TOO_NEW if until_ms is None else AFTER_UNTIL: pl.col("time_ms") > last_ms,
            }
            good = _keep_good(raw, rows, defects, source.file, census, [*_required(fields, "reviews")])
            if good.is_empty():
                continue
            _note_unreadable(good, source, census, verified=values.verified(), helpful_votes=values.helpful_votes())
            yield good.select(
                "product_id",
                "user_id",
                "time_ms",
                "rating",
                text=values.text([field for field in ("title", "text") if field in fields]),
                helpful_votes=_filled(source, "helpful_votes", values.helpful_votes())
                if "helpful_votes" in fields
                else None,
                verified=values.verified() if "verified" in fields else None,
                num_images=_filled(source, "images", pl.lit(values.num_images(good["images"])))
                if "images" in fields
                else None,
                source_file=pl.lit(index),
                source_line="source_line",
            ).cast(pl.Schema(REVIEW_SCHEMA))


def _with_ids(raw: pl.DataFrame, source: _Source, invalid_ids: values.InvalidIds) -> pl.DataFrame:
    """The rows with ids as text, and the column `is_invalid_id`."""
    fields = [field for field in values.IDS if field in raw.columns]
    lines, path = raw["source_line"], source.file.path
    ids = [values.identifiers(raw[field], lines, path, source.fields[field]) for field in fields]
    rows = raw.with_columns(ids)
    return rows.with_columns(is_invalid_id=invalid_ids.are_invalid(rows.select(*fields, "source_line")))


def _filled(source: _Source, field: str, value: pl.Expr) -> pl.Expr:
    return value.fill_null(0) if field in source.zero_where_absent else value


def _decimal_mark(source: _Source, block_bytes: int) -> str:
    """The decimal mark of a file's prices; '.' if it has no prices."""
    if "price" not in source.fields:
        return "."
    blocks = records.read_blocks(source.file, {"price": source.fields["price"]}, {}, block_bytes)
    return values.decimal_mark((frame["price"] for frame, _ in blocks), source.file.path)


def _blocks(file: records.RawFile, fields: Mapping[str, str], census: Census, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Frames with one column per field, and `source_line`; malformed lines are counted in the census."""
    for frame, malformed in records.read_blocks(file, fields, JSON_TYPES, block_bytes):
        categories = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Categorical | pl.Enum)]
        frame = frame.with_columns(pl.col(categories).cast(pl.String))
        census.read(frame.height + len(malformed))
        examples = (Example(str(file.path), record.line, records.excerpt(record.octets)) for record in malformed)
        census.drop(MALFORMED, len(malformed), examples)
        yield frame


def _keep_good(
    raw: pl.DataFrame,
    rows: pl.DataFrame,
    defects: Mapping[str, pl.Expr],
    file: records.RawFile,
    census: Census,
    shown: Sequence[str],
) -> pl.DataFrame:
    """The rows without a defect. The other rows are counted by their first defect; the raw values of the fields `shown` are
    examples."""
    first_defect = pl.coalesce(pl.when(has_defect).then(pl.lit(kind)) for kind, has_defect in defects.items())
    defect = rows.select(defect=first_defect)["defect"]
    if defect.null_count() == rows.height:
        return rows
    for (kind,), bad in raw.with_columns(defect).drop_nulls("defect").group_by("defect", maintain_order=True):
        examples = (
            Example(str(file.path), row["source_line"], ", ".join(f"{field}={_shown(row[field])}" for field in shown))
            for row in bad.head(NUM_EXAMPLES).iter_rows(named=True)
        )
        census.drop(str(kind), bad.height, examples)
    return rows.filter(defect.is_null())


def _note_unreadable(good: pl.DataFrame, source: _Source, census: Census, **value_of: pl.Expr) -> None:
    """Count unreadable values of optional fields. Their rows are kept, and the values are read as if they were empty."""
    for field, value in value_of.items():
        if field not in source.fields:
            continue
        bad, column = values.unreadable(good, field, value), source.fields[field]
        examples = (
            Example(str(source.file.path), line, f"{column}={_shown(shown)}")
            for line, shown in bad.select("source_line", field).iter_rows()
        )
        census.note(UNREADABLE.format(column), bad.height, examples)


def _shown(value: Any) -> str:
    """A value in an example, the same whether it was parsed as a number or as text."""
    return "" if value is None else str(value).removesuffix(".0")[: records.EXCERPT_CHARACTERS]


def _recognise(path: Path, formats: Sequence[Format], kind: Kind) -> _Source:
    """The file with its format, which is recognised by the names of its columns."""
    is_mapped = formats[0].name == YOUR_COLUMNS
    is_headless = is_mapped and all(column.isdigit() for column in formats[0].fields.values())
    file = records.look(path, is_headless)
    is_delimited = isinstance(file.layout, records.Delimited)
    has_values = is_delimited and (sum(map(records.is_number, file.names)) > 1 or any(map(TIME.search, file.names)))
    seen = f"its columns are {', '.join(file.names)[:300]}"
    numbered = by_number("rating" in formats[0].fields)
    if kind == "products" and _fits_any(file, "reviews"):
        raise UserError(f"{path} contains reviews, not product metadata ({seen}): give it among the reviews")
    cells = [*file.names, *(str(value) for row in file.head[:1] for value in row.values())]
    if kind == "reviews" and is_delimited and len(file.names) == 1 and any("::" in cell for cell in cells):
        fix = f"write a tab in place of each '::', as `sed 's/::/\\t/g' OLD > NEW` does, and {numbered}"
        raise UnknownFormat(f"the fields of {path} are separated by '::', as in '{cells[-1][:80]}': {fix}")
    for format in sorted(formats, key=lambda each: -len({*each.fields.values()} & {*file.names})):
        is_json = isinstance(file.layout, records.JsonLines)
        present = {field for field, column in format.fields.items() if column in file.names}
        # Later JSON lines may have keys that none of the first has
        fields = {field: column for field, column in format.fields.items() if is_json or field in present}
        missing = [column for field, column in format.fields.items() if field not in present]
        if is_mapped and not is_headless and has_values and any(map(records.is_number, format.fields.values())):
            raise UserError(f"columns names values of the first line of {path}, which has no header: {numbered}")
        if is_mapped and missing and not (is_json and values.have_keys(path, missing)):
            raise UnknownFormat(f"{path} has no column '{missing[0]}', which the setting columns names: {seen}")
        if _fits(format, file, kind):
            if not file.head:
                raise UserError(f"{path} has no valid row at its beginning ({seen}): check how it was made")
            if twice := [column for column in fields.values() if file.names.count(column) > 1]:
                raise UserError(f"{path} has two columns '{twice[0]}': rename one of them in its header")
            if file.layout is None:
                values.check_types(path, fields)
            zero = frozenset(present | set(format.sparse))
            return _Source(file=file, format=format.name, fields=fields, zero_where_absent=zero)
    if kind == "reviews" and _fits_any(file, "products"):
        raise UserError(
            f"{path} contains product metadata, not reviews ({seen}): take it out of source, and give it as metadata if the "
            "recipe reads metadata"
        )
    advice = "convert it"
    if kind == "reviews":
        *others, last = _required(formats[0].fields, kind)
        advice = f"name the columns of {', '.join(others)} and {last}, as in 'columns={{{last}: NAME, …}}'"
    if kind == "reviews" and has_values:
        advice = f"if that line is a review, {numbered}"
    raise UnknownFormat(f"{path} has no known format of {kind} ({seen}): {advice}; {_nearest(file, formats, kind)}")


def _nearest(file: records.RawFile, formats: Sequence[Format], kind: Kind) -> str:
    """A clause that names the known format of which the file lacks the fewest required columns, and these columns."""
    missing = {
        format.name: [column for column in _required(format.fields, kind).values() if column not in file.names]
        for format in formats
    }
    name = min(missing, key=lambda name: len(missing[name]))
    return f"the nearest format, {name}, also needs {', '.join(missing[name])}"


def _required(fields: Mapping[str, str], kind: Kind) -> dict[str, str]:
    """The columns of the required fields; without the rating if it is not read."""
    return {field: fields[field] for field in REQUIRED_FIELDS[kind] if field in fields}


def _fits(format: Format, file: records.RawFile, kind: Kind) -> bool:
    return all(column in file.names for column in _required(format.fields, kind).values())


def _fits_any(file: records.RawFile, kind: Kind) -> bool:
    return any(_fits(format, file, kind) for format in FORMATS[kind])


def _check_columns(columns: Mapping[str, str], required: Sequence[str]) -> None:
    """Raise `UserError` for a mapping with an unknown field, without a required one, or with a column for two fields."""
    known = FIELDS["reviews"]
    for field in columns:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            fix = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
            raise UserError(f"columns maps '{field}', which is not a field of a review; {fix}")
    of_column: dict[str, str] = {}
    for field, column in columns.items():
        if other := of_column.get(column):
            raise UserError(f"columns names '{column}' for both {other} and {field}: name a different column for each")
        of_column[column] = field
    for field in required:
        if field not in columns:
            raise UserError(f"columns does not name the column of the {field}: add {field}=NAME")
