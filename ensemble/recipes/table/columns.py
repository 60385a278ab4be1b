"""The columns of any table: what kind each is, and the numbers that trees read in its place.

    values = tidy(frame["joined"])                                 # text as it was written -> numbers, yes or no, dates
    feature = learn("joined", values, in_train, max_categories=256)   # how it becomes numbers, or a word why it does not
    numbers = encode(values, feature)                              # (num_rows,) float32, NaN where nothing is known

What a column becomes is learned from the rows of train alone, and stands in the manifest: a text that train does not have
is NaN, like an empty one.
"""

from typing import Any

import numpy as np
import polars as pl

EMPTY = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Words that stand for nothing in a table that is text."""
TIMES = ("%Y-%m-%d", "%Y/%m/%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%z")
EPOCH_UNIT = "days since 1970-01-01"
MICROSECONDS_PER_DAY = 86_400_000_000


def tidy(values: pl.Series) -> pl.Series:
    """A column as Float64, Boolean, Datetime or String, whatever it was written as; others, such as lists, as they are.

    Text becomes dates only where all of it does. What is empty or not finite is null.
    """
    if isinstance(values.dtype, pl.Categorical | pl.Enum):
        values = values.cast(pl.String)
    if values.dtype.is_numeric():
        values = values.cast(pl.Float64)
        return values.set(~values.is_finite().fill_null(True), None)
    if values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        return values.cast(pl.Datetime("us"))
    return _dates(values.set(values.is_in(EMPTY), None)) if values.dtype == pl.String else values


def _dates(text: pl.Series) -> pl.Series:
    """Text as dates where all of it is; those with a time zone in UTC."""
    known = text.drop_nulls()
    if known.is_empty() or not known.str.contains(r"^\d{4}[-/]\d").all():
        return text
    utc = text.str.replace("Z$", "+0000")
    for form in TIMES:
        moments = utc.str.to_datetime(form, time_unit="us", strict=False)
        if moments.null_count() == text.null_count():
            return moments.dt.replace_time_zone(None)
    return text


def read_text(values: pl.Series) -> pl.Series:
    """Text of a file that knows nothing else (CSV, JSON lines): as numbers or truth values if all of it is."""
    text = values.str.strip_chars()
    text = text.set(text.is_in(EMPTY), None)
    known = text.drop_nulls()
    if known.is_empty():
        return text
    if not known.cast(pl.Float64, strict=False).null_count():
        return text.cast(pl.Float64)
    if known.str.to_lowercase().is_in(("true", "false")).all():
        return text.str.to_lowercase() == "true"
    return text


def numbers_of(values: pl.Series) -> np.ndarray:
    """A tidy column of numbers, truth values or dates as float64 (num_rows,), NaN for null; dates in days since 1970."""
    if isinstance(values.dtype, pl.Datetime):
        values = values.dt.epoch("us") / MICROSECONDS_PER_DAY
    return values.cast(pl.Float64).fill_null(np.nan).to_numpy()


def is_number(values: pl.Series) -> bool:
    """Whether `numbers_of` can be asked."""
    return values.dtype.is_numeric() or values.dtype == pl.Boolean or isinstance(values.dtype, pl.Datetime)


def name_of(value: Any) -> str:
    """A value as people write it: 3 for 3.0."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def learn(column: str, values: pl.Series, in_train: np.ndarray, max_categories: int) -> dict[str, Any] | str:
    """How a tidy column becomes a feature, as an entry of the manifest but for its `name`; or why it does not.

    in_train: (num_rows,) bool. The `values` of a category are in the order of their codes.
    """
    known = values.filter(pl.Series(in_train)).drop_nulls()
    entry = {"column": column, "meaning": column, "source": "table"}
    if not (is_number(values) or values.dtype == pl.String):
        return f"holds {values.dtype}, which are no numbers, dates or texts"
    num_different = known.n_unique()
    if num_different < 2 and known.len() in (0, int(in_train.sum())):
        return "is empty in train" if known.is_empty() else "has one value in train"
    if values.dtype == pl.Boolean:
        return {**entry, "unit": "0 or 1"}
    if isinstance(values.dtype, pl.Datetime):
        return {**entry, "unit": EPOCH_UNIT}
    if values.dtype.is_numeric():
        return {**entry, "unit": ""}
    if num_different > max_categories:
        return f"has {num_different:,} different texts in train, more than max_categories={max_categories}"
    if num_different > known.len() / 2:
        return f"has {num_different:,} different texts in {known.len():,} rows of train: it names rows more than it tells"
    names = known.unique().sort().to_list()
    return {**entry, "unit": "category", "categories": len(names), "values": names}


def encode(values: pl.Series, feature: dict[str, Any]) -> np.ndarray:
    """A tidy column as the numbers of its feature: (num_rows,) float32, NaN where it is empty or a category is unknown."""
    if "values" not in feature:
        with np.errstate(over="ignore"):
            found = numbers_of(values).astype(np.float32)
        found[np.isinf(found)] = np.nan
        return found
    code = pl.Series(range(feature["categories"]), dtype=pl.Float32)
    return values.replace_strict(feature["values"], code, default=None).fill_null(np.nan).to_numpy()
