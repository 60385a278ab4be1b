"""Encoding of the columns of a table as numerical features.

    learned = learn("joined", values, in_train, max_categories)        # the features of a column, or why it has none
    features = [{"name": "joined", **learned.features[0]}, …]          # a name for each feature
    numbers = encode(values, features, {})                             # by name, (num_rows,) float32, NaN if unknown

A date becomes several features: days since 1970, and each of hour, weekday, month and day of the year that varies. A column
of names becomes categories, a column of free text the features of texts.py, a column of longer texts that are repeated both.

The encoding is learned from the train rows only and is stored in the manifest. A category that train does not have becomes
NaN, like an empty cell. `values` are those of `cells.Cells`.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from ensemble.data.records import MOST_EXACT
from ensemble.recipes.table import texts
from ensemble.recipes.table.cells import Kind
from ensemble.recipes.table.sources import MICROSECONDS_PER_DAY

DAYS_SINCE = "days since "
KEPT_APART = 0.9
"""If fewer than this fraction of a column's distinct numbers stay distinct in float32, `offset_of` may return an offset."""
FEW_CATEGORIES = 256
"""With more different texts, only those in several rows become categories. Such a column may also hold free text, as may
one in which texts are repeated less than twice on average."""
LEAST_SHARED = 0.2
"""A column of ids, such as ticket numbers, is left out if fewer than this share of its cells have a text of several rows."""


def numbers_of(values: pl.Series) -> np.ndarray:
    """A column of numbers, booleans or dates as float64, (num_rows,), NaN for null; dates in days since 1970."""
    if isinstance(values.dtype, pl.Datetime):
        values = values.dt.epoch("us") / MICROSECONDS_PER_DAY
    return (values if values.dtype == pl.Float64 else values.cast(pl.Float64)).to_numpy()


def offset_of(numbers: np.ndarray, in_train: np.ndarray) -> float:
    """The offset to subtract before conversion to float32, in which large numbers with small differences become equal.

    The first of 0, the minimum and the median (both rounded down) with which at least `KEPT_APART` of the distinct train
    values stay distinct. If there is none, the minimum or the median, with which more values do. In both cases 0 if the
    gain over 0 is small.
    """
    known = np.unique(numbers[in_train & np.isfinite(numbers)])

    def num_distinct(offset: float) -> int:
        with np.errstate(over="ignore"):
            return len(np.unique((known - offset).astype(np.float32)))

    if num_distinct(0.0) >= KEPT_APART * len(known):
        return 0.0
    offsets = [float(np.floor(known.min())), float(np.floor(np.median(known)))]
    enough = [offset for offset in offsets if num_distinct(offset) >= KEPT_APART * len(known)]
    best = enough[0] if enough else max(offsets, key=num_distinct)
    return best if num_distinct(0.0) < KEPT_APART * num_distinct(best) else 0.0


def name_of(value: Any) -> str:
    """A value as text: 3 for 3.0, true for True, and a day for its midnight."""
    if isinstance(value, bool):
        return str(value).lower()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < MOST_EXACT
    return str(int(value)) if is_whole else str(value).removesuffix(" 00:00:00")


PARTS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "hour": lambda dates: dates.dt.hour() + dates.dt.minute() / 60,
    "weekday": lambda dates: dates.dt.weekday(),
    "month": lambda dates: dates.dt.month(),
    "day of the year": lambda dates: dates.dt.ordinal_day(),
}
"""The periodic parts of a date; weekdays are 1 for Monday to 7."""
LEAST_DAYS = {"hour": 23 / 24, "weekday": 6.0, "month": 334.0, "day of the year": 334.0}
"""The days from the first hour, weekday or month of a period to its last. If train covers less, the part grows with the time
and has other values in later rows. Of 13 days in May, the linear model learned that the day of the year makes it cooler: the
RMSE of the temperature of the next 9 days was 1.1 degrees, and is 0.3 without that feature."""


def parts_of(column: str, values: pl.Series, in_train: np.ndarray, is_time: bool = False) -> list[dict[str, Any]]:
    """The periodic features of a column of dates that vary in train, as entries of the manifest; [] for other columns.

    The weekday is left out if all dates are the first of a month, as those of 2024-01 are. is_time : whether new rows are
    later; then a part is left out if train covers less than `LEAST_DAYS`.
    """
    if not isinstance(values.dtype, pl.Datetime):
        return []
    known = values.filter(pl.Series(in_train)).drop_nulls()
    are_months = (known.dt.day() == 1).all()
    num_days = np.ptp(known.dt.epoch("us").to_numpy()) / MICROSECONDS_PER_DAY if is_time and len(known) else np.inf
    return [
        {"column": column, "meaning": f"{column}: {part}", "source": "table", "unit": part, "part": part}
        for part, compute in PARTS.items()
        if compute(known).n_unique() > 1 and not (part == "weekday" and are_months) and num_days >= LEAST_DAYS[part]
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """The encoding of a column."""

    features: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Entries of the manifest, without `name`; the `values` of a category are in the order of their codes."""
    left_out: str = ""
    """Why there are no features."""
    content: dict[str, Any] | None = None
    """For free text, the result of `texts.learn`."""


def learn(column: str, values: pl.Series, in_train: np.ndarray, max_categories: int, is_time: bool = False) -> Learned:
    """Learn the encoding of a column from the rows in train. in_train : (num_rows,) bool. is_time : as in `parts_of`."""
    known = values.filter(pl.Series(in_train)).drop_nulls()
    entry: dict[str, Any] = {"column": column, "meaning": column, "source": "table"}
    num_different = known.n_unique()
    if num_different < 2 and known.len() in (0, int(in_train.sum())):
        if known.is_empty():
            return Learned(left_out="is empty in train")
        is_long = known.dtype == pl.Float64 and abs(known[0]) >= MOST_EXACT
        too_long = "holds whole numbers beyond 2^53, which floats cannot distinguish"
        return Learned(left_out=too_long if is_long else "has one value in train")
    if values.dtype == pl.Boolean:
        return Learned(features=[{**entry, "unit": "0 or 1"}])
    if values.dtype != pl.String:
        offset = offset_of(numbers_of(values), in_train)
        if not isinstance(values.dtype, pl.Datetime):
            unit = {"unit": f"above {offset:.0f}", "offset": offset} if offset else {"unit": ""}
            return Learned(features=[{**entry, **unit}])
        begin = datetime.datetime(1970, 1, 1) + datetime.timedelta(days=offset)
        unit = {"unit": f"{DAYS_SINCE}{begin:%Y-%m-%d}", **({"offset": offset} if offset else {})}
        return Learned(features=[{**entry, **unit}, *parts_of(column, values, in_train, is_time)])
    is_repeated, are_ids = num_different <= known.len() / 2, is_id(known)
    names = _categories(known, num_different, max_categories) if is_repeated or are_ids else []
    if are_ids and known.is_in(names).sum() < LEAST_SHARED * known.len():
        why = f"has {num_different:,} different texts in {known.len():,} rows of train: it is taken for an id"
        return Learned(left_out=why if known.len() > 1 else "has only one filled cell in train")
    is_prose = not are_ids and (not is_repeated or (num_different > FEW_CATEGORIES and texts.is_prose(known)))
    content = texts.learn(known) if is_prose else None
    features = [{**entry, "unit": "category", "categories": len(names), "values": names}] if names else []
    features += texts.entries(column, content) if content else []
    return Learned(features=features, content=content)


def is_id(known: pl.Series) -> bool:
    """Whether cells, none of them null, are taken for ids: texts, mostly different ones, that are no free text."""
    return known.dtype == pl.String and known.n_unique() > known.len() / 2 and not texts.is_prose(known)


def _categories(known: pl.Series, num_different: int, most: int) -> list[str]:
    """The categories, in alphabetical order: all texts, or the most frequent ones that are in several rows."""
    if num_different <= min(FEW_CATEGORIES, most, known.len() / 2):
        return known.unique().sort().to_list()
    counts = known.rename("text").value_counts(name="count").filter(pl.col("count") > 1)
    return counts.sort("count", "text", descending=[True, False])["text"].head(most).sort().to_list()


def kind_of(feature: dict[str, Any]) -> Kind:
    """The kind of the column from which a feature is computed."""
    if feature["unit"].startswith(DAYS_SINCE) or "part" in feature:
        return "date"
    if "text" in feature:
        return "text"
    kinds: dict[str, Kind] = {"category": "text", "0 or 1": "truth"}
    return kinds.get(feature["unit"], "number")


def by_column(features: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The features of each column; those of a column follow each other."""
    return {column: list(group) for column, group in itertools.groupby(features, key=lambda feature: feature["column"])}


def encode(values: pl.Series, features: list[dict[str, Any]], contents: dict[str, Any]) -> dict[str, np.ndarray]:
    """The features of a column: (num_rows,) float32, NaN for empty cells and unknown categories.

    contents : by column, the result of `texts.learn`.
    """
    has_text = any("text" in feature for feature in features)
    text_features = texts.encode(values, contents[features[0]["column"]]) if has_text else None
    return {feature["name"]: _encode(values, feature, text_features) for feature in features}


def _encode(values: pl.Series, feature: dict[str, Any], text_features: np.ndarray | None) -> np.ndarray:
    if text_features is not None and "text" in feature:
        return np.ascontiguousarray(text_features[:, feature["text"]])
    if "part" in feature:
        return PARTS[feature["part"]](values).cast(pl.Float32).fill_null(np.nan).to_numpy()
    if "values" not in feature:
        with np.errstate(over="ignore"):
            numbers = (numbers_of(values) - feature.get("offset", 0.0)).astype(np.float32)
        numbers[np.isinf(numbers)] = np.nan
        return numbers
    code = pl.Series(range(feature["categories"]), dtype=pl.Float32)
    return values.replace_strict(feature["values"], code, default=None).fill_null(np.nan).to_numpy()
