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

`records.py` reads the files, and knows nothing of reviews; here their columns get our names, types and units. Times are UTC.
"""

import ast
import datetime
import difflib
import glob
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from ensemble.data import records
from ensemble.data.census import (
    BAD_RATING,
    MALFORMED,
    NO_PRODUCT,
    NO_TIME,
    NO_USER,
    NUM_OFFENDERS,
    TOO_NEW,
    TOO_OLD,
    Census,
    Offender,
)
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

LOWEST_RATING, HIGHEST_RATING = 0.5, 5.0  # MovieLens gives half stars, from a half
YEAR_1995_MS = 788_918_400_000  # Amazon opened in July 1995; the oldest review of the 2023 release is of May 1996
DAY_S = 86_400
SMALLEST_MILLISECONDS = 1e11  # in seconds this would be the year 5138, in milliseconds it is 1973

HUB_REPOSITORY = "McAuley-Lab/Amazon-Reviews-2023"
HUB_FILES = {"reviews": "raw/review_categories/{}.jsonl", "products": "raw/meta_categories/meta_{}.jsonl"}

Kind = Literal["reviews", "products"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """Which column of a file holds which of our fields; the unit of time is told by the values."""

    name: str
    fields: Mapping[str, str]
    sparse: tuple[str, ...] = ()
    """Fields that a JSON line leaves out where they are zero or empty."""


FIELDS: dict[Kind, tuple[str, ...]] = {
    "reviews": ("product_id", "user_id", "rating", "time", "title", "text", "helpful_votes", "verified", "images"),
    "products": ("product_id", "title", "categories", "main_category", "store", "price"),
}
REQUIRED_FIELDS: dict[Kind, tuple[str, ...]] = {"reviews": FIELDS["reviews"][:4], "products": FIELDS["products"][:3]}
YOUR_COLUMNS = "your columns"


def _format(name: str, kind: Kind, columns: str, sparse: tuple[str, ...] = ()) -> Format:
    """The format whose columns, in the order of `FIELDS`, are these; the last ones may be lacking."""
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
        _format("Amazon ratings", "reviews", "ProductId UserId Rating Timestamp"),
        _format("MovieLens ratings", "reviews", "movieId userId rating timestamp"),
        _format("RecBole .inter", "reviews", "item_id:token user_id:token rating:float timestamp:float"),
    ),
    "products": (
        _format("Amazon metadata 2023", "products", "parent_asin title categories main_category store price"),
        _format("Amazon metadata 2018", "products", "asin title category main_cat brand price"),
    ),
}

# What values in JSON usually are; `helpful_votes` and `price` are numbers in one release and text in the other: always text.
JSON_TYPES: dict[str, pl.DataType] = {
    "rating": pl.Float64(),
    "time": pl.Int64(),
    "verified": pl.Boolean(),
    "images": pl.List(pl.String),
    "categories": pl.List(pl.String),
}


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A file that was recognised."""

    file: records.RawFile
    format: str
    fields: Mapping[str, str]
    """Our field -> the file's column, for the fields that the file has."""


def expand_sources(sources: Sequence[str | Path], cache_dir: str | Path, kind: Kind = "reviews") -> list[Path]:
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
    block_bytes: int = records.BLOCK_BYTES,
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
    formats = FORMATS["reviews"]
    if columns is not None:
        _check_columns(columns)
        formats = (Format(name=YOUR_COLUMNS, fields=columns, sparse=FIELDS["reviews"][4:]),)
    sources = [_recognise(Path(file), formats, "reviews") for file in files]
    times = [_time_unit(source) for source in sources]
    for source, time in zip(sources, times, strict=True):
        census.files.append({"file": str(source.file.path), "format": source.format, "time": time})
    return _reviews(sources, times, census, until_ms, with_text, block_bytes)


def read_products(
    files: Sequence[str | Path], census: Census, *, block_bytes: int = records.BLOCK_BYTES
) -> Iterator[pl.DataFrame]:
    """Read products' metadata as frames of `PRODUCT_SCHEMA`, never empty; give it a census of its own.

    A product may come more than once; a price that is no amount of money is null. Raises `UserError` as `read_reviews`.
    """
    sources = [_recognise(Path(file), FORMATS["products"], "products") for file in files]
    for source in sources:
        census.files.append({"file": str(source.file.path), "format": source.format})
    return _products(sources, census, block_bytes)


def _reviews(
    sources: list[_Source], times: list[str], census: Census, until_ms: int | None, with_text: bool, block_bytes: int
) -> Iterator[pl.DataFrame]:
    for index, (source, time) in enumerate(zip(sources, times, strict=True)):
        last_ms = until_ms if until_ms is not None else int((source.file.path.stat().st_mtime + DAY_S) * 1000)
        skip = () if with_text else ("title", "text")
        fields = {field: column for field, column in source.fields.items() if field not in skip}
        for raw in _blocks(source.file, fields, census, block_bytes):
            rows = raw.with_columns(
                _word("product_id"),
                _word("user_id"),
                pl.col("rating").cast(pl.Float64, strict=False),
                time_ms=_time_ms(raw.schema["time"], time),
            )
            defects = {
                NO_PRODUCT: pl.col("product_id").is_null(),
                NO_USER: pl.col("user_id").is_null(),
                NO_TIME: pl.col("time_ms").is_null(),
                BAD_RATING: ~pl.col("rating").is_between(LOWEST_RATING, HIGHEST_RATING).fill_null(False),
                TOO_OLD: pl.col("time_ms") < YEAR_1995_MS,
                TOO_NEW: pl.col("time_ms") > last_ms,
            }
            good = _keep_good(raw, rows, defects, source.file, census, REQUIRED_FIELDS["reviews"])
            if good.is_empty():
                continue
            yield good.select(
                "product_id",
                "user_id",
                "time_ms",
                "rating",
                text=_text([field for field in ("title", "text") if field in fields]),
                helpful_votes=_helpful_votes() if "helpful_votes" in fields else None,
                verified=_verified() if "verified" in fields else None,
                # the 2018 release leaves an empty list out
                num_images=_lists(good["images"]).list.len().fill_null(0) if "images" in fields else None,
                source_file=pl.lit(index),
                source_line="source_line",
            ).cast(pl.Schema(REVIEW_SCHEMA))


def _products(sources: list[_Source], census: Census, block_bytes: int) -> Iterator[pl.DataFrame]:
    for source in sources:
        for raw in _blocks(source.file, source.fields, census, block_bytes):
            rows = raw.with_columns(_word("product_id"))
            defects = {NO_PRODUCT: pl.col("product_id").is_null()}
            good = _keep_good(raw, rows, defects, source.file, census, ("product_id", "title"))
            if good.is_empty():
                continue
            absent = [pl.lit(None, pl.String).alias(field) for field in FIELDS["products"] if field not in good.columns]
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


def _blocks(file: records.RawFile, fields: Mapping[str, str], census: Census, block_bytes: int) -> Iterator[pl.DataFrame]:
    """Frames with one column per field, and `source_line`; malformed lines go to the census."""
    for frame, malformed in records.read_blocks(file, fields, JSON_TYPES, block_bytes):
        census.read(frame.height + len(malformed))
        offenders = (Offender(str(file.path), record.line, records.excerpt(record.octets)) for record in malformed)
        census.drop(MALFORMED, len(malformed), offenders)
        yield frame


def _keep_good(
    raw: pl.DataFrame,
    rows: pl.DataFrame,
    defects: Mapping[str, pl.Expr],
    file: records.RawFile,
    census: Census,
    shown: Sequence[str],
) -> pl.DataFrame:
    """The rows without a defect; the others are counted by the first one they have, with their raw values as excerpt."""
    first_defect = pl.coalesce(pl.when(has_it).then(pl.lit(kind)) for kind, has_it in defects.items())
    defect = rows.select(defect=first_defect)["defect"]
    if defect.null_count() == rows.height:
        return rows
    for (kind,), bad in raw.with_columns(defect).drop_nulls("defect").group_by("defect", maintain_order=True):
        offenders = (
            Offender(str(file.path), row["source_line"], ", ".join(f"{field}={_shown(row[field])}" for field in shown))
            for row in bad.head(NUM_OFFENDERS).iter_rows(named=True)
        )
        census.drop(str(kind), bad.height, offenders)
    return rows.filter(defect.is_null())


def _shown(value: Any) -> str:
    """A value in an excerpt, the same whether it was parsed as a number or as text."""
    return "" if value is None else str(value).removesuffix(".0")[: records.EXCERPT_CHARACTERS]


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
    number = time.cast(pl.Float64, strict=False)
    return (number if unit == "milliseconds" else number * 1000).cast(pl.Int64, strict=False)


def _text(fields: Sequence[str]) -> pl.Expr | None:
    """Title, newline, text; null where a row has neither."""
    if not fields:
        return None
    texts = [pl.col(field).cast(pl.String) for field in fields]
    return pl.when(pl.any_horizontal(text.is_not_null() for text in texts)).then(
        pl.concat_str(texts, separator="\n", ignore_nulls=True)
    )


def _helpful_votes() -> pl.Expr:
    """Votes as a whole number; the 2018 release writes '1,234', and nothing at all for none."""
    votes = pl.col("helpful_votes")
    number = votes.cast(pl.String).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
    return pl.when(votes.is_null()).then(0).otherwise(number.clip(-(2**31), 2**31 - 1).cast(pl.Int32, strict=False))


def _verified() -> pl.Expr:
    word = pl.col("verified").cast(pl.String).str.to_lowercase()
    known = {"true": True, "1": True, "y": True, "false": False, "0": False, "n": False}
    return word.replace_strict(known, default=None, return_dtype=pl.Boolean)


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


def _recognise(path: Path, formats: Sequence[Format], kind: Kind) -> _Source:
    """Which of the formats a file has, told by the names of its columns."""
    yours = formats[0].name == YOUR_COLUMNS
    file = records.look(path, headless=yours and all(column.isdigit() for column in formats[0].fields.values()))
    seen = f"its columns are {', '.join(file.names)[:300]}"
    if kind == "products" and _fits_any(file, "reviews"):
        raise UserError(f"{path} holds reviews, not product metadata ({seen}): give it among the reviews")
    for format in formats:
        sparse = format.sparse if isinstance(file.layout, records.JsonLines) else ()
        fields = {field: column for field, column in format.fields.items() if column in file.names or field in sparse}
        lost = [column for field, column in format.fields.items() if field not in fields]
        if yours and lost:
            raise UserError(f"{path} has no column '{lost[0]}', which columns names: {seen}")
        if _fits(format, file, kind):
            if not file.head:
                raise UserError(f"{path} holds no sound row among its first ({seen}): check how it was made")
            if twice := [column for column in fields.values() if file.names.count(column) > 1]:
                raise UserError(f"{path} has two columns '{twice[0]}': rename one of them in its header")
            return _Source(file=file, format=format.name, fields=fields)
    if kind == "reviews" and _fits_any(file, "products"):
        raise UserError(f"{path} holds product metadata, not reviews ({seen}): give it as the metadata")
    mend = "say with columns which are product_id, user_id, rating and time" if kind == "reviews" else "convert it"
    raise UserError(f"{path} fits no known format of {kind} ({seen}): {mend}")


def _fits(format: Format, file: records.RawFile, kind: Kind) -> bool:
    return all(format.fields[field] in file.names for field in REQUIRED_FIELDS[kind])


def _fits_any(file: records.RawFile, kind: Kind) -> bool:
    return any(_fits(format, file, kind) for format in FORMATS[kind])


def _time_unit(source: _Source) -> str:
    """How a file writes time: 'milliseconds', 'seconds' (since 1970) or 'dates', told by its first rows."""
    column = source.fields["time"]
    values = [value for row in source.file.head if (value := row.get(column)) not in (None, "")]
    if any(isinstance(value, datetime.date) for value in values):  # a column of dates in Parquet
        return "dates"
    texts = pl.DataFrame({"time": [str(value) for value in values]}, schema={"time": pl.String})
    dates = texts.select(_time_ms(pl.String(), "dates")).to_series().drop_nulls()
    numbers = texts["time"].cast(pl.Float64, strict=False)
    numbers = numbers.filter(numbers.is_finite())
    if len(numbers) >= max(len(dates), 1):
        return "milliseconds" if (numbers >= SMALLEST_MILLISECONDS).sum() > len(numbers) / 2 else "seconds"
    if len(dates):
        return "dates"
    first = f", as in '{values[0]}'" if values else ""
    raise UserError(
        f"{source.file.path} has no time in its column '{column}'{first}: it must hold seconds or milliseconds since 1970, "
        "or dates such as 2023-03-31 or 2023-03-31 23:59:59"
    )


def _check_columns(columns: Mapping[str, str]) -> None:
    """Raise `UserError` for a mapping that names a field of ours that is not there, or lacks one that is needed."""
    known = FIELDS["reviews"]
    for field in columns:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            mend = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
            raise UserError(f"columns maps '{field}', which is no field of a review; {mend}")
    for field in REQUIRED_FIELDS["reviews"]:
        if field not in columns:
            raise UserError(f"columns does not say which column is the {field}: add {field}=NAME")


def _download(category: str, cache_dir: Path, kind: Kind) -> Path:
    """One file of the Amazon Reviews 2023 data set, from the hub or from `cache_dir`."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError, RemoteEntryNotFoundError

    name = HUB_FILES[kind].format(category)
    by_hand = f"download {name} of the data set {HUB_REPOSITORY} by hand and give its path instead of hub:{category}"
    is_new = not cache_dir.exists()
    try:
        return Path(hf_hub_download(HUB_REPOSITORY, name, repo_type="dataset", cache_dir=cache_dir))
    except RemoteEntryNotFoundError:
        if is_new:  # the library has made it, to note that the file does not exist
            shutil.rmtree(cache_dir, ignore_errors=True)
        raise UserError(
            f"there is no category '{category}' in {HUB_REPOSITORY}: write it as there, as in hub:All_Beauty"
        ) from None
    except (EntryNotFoundError, HTTPError, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"hub:{category} cannot be downloaded ({why}…): {by_hand}") from None
