"""The columns of any table: the numbers that trees read in their place.

    features = learn("joined", values, in_train, max_categories=256)   # how it becomes numbers, or why it does not
    numbers = encode(values, features[0])                              # (num_rows,) float32, NaN where nothing is known

A date becomes several features: the days since 1970, and those of the hour, weekday, month and day of the year that differ.

What a column becomes is learned from the rows of train alone, and stands in the manifest: a text that train does not have
is NaN, like an empty one. `values` are those of `cells.Cells`.
"""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from ensemble.data.records import MOST_EXACT
from ensemble.recipes.table.cells import Kind

DAYS_SINCE = "days since "
KEPT_APART = 0.9
"""Of the different numbers of a column, float32 must keep this part apart; else they are counted from their least one."""
EPOCH_UNIT = f"{DAYS_SINCE}1970-01-01"
MICROSECONDS_PER_DAY = 86_400_000_000


def numbers_of(values: pl.Series) -> np.ndarray:
    """A column of numbers, truth values or dates as float64 (num_rows,), NaN for null; dates in days since 1970."""
    if isinstance(values.dtype, pl.Datetime):
        values = values.dt.epoch("us") / MICROSECONDS_PER_DAY
    return values.cast(pl.Float64).fill_null(np.nan).to_numpy()


def offset_of(numbers: np.ndarray, in_train: np.ndarray) -> float:
    """What to subtract from numbers before they become float32, which cannot tell large ones apart that lie close.

    0 where float32 keeps `KEPT_APART` of those of train apart; else the whole number below the least of them.
    """
    known = numbers[in_train & np.isfinite(numbers)]
    with np.errstate(over="ignore"):
        are_merged = len(np.unique(known.astype(np.float32))) < KEPT_APART * len(np.unique(known))
    if not are_merged:
        return 0.0
    least = float(np.floor(known.min()))
    return least if abs(least) > known.max() - least else 0.0


def is_number(values: pl.Series) -> bool:
    """Whether `numbers_of` can be asked."""
    return values.dtype.is_numeric() or values.dtype == pl.Boolean or isinstance(values.dtype, pl.Datetime)


def name_of(value: Any) -> str:
    """A value as people write it: 3 for 3.0."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


PARTS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "hour": lambda dates: dates.dt.hour() + dates.dt.minute() / 60,
    "weekday": lambda dates: dates.dt.weekday(),
    "month": lambda dates: dates.dt.month(),
    "day of the year": lambda dates: dates.dt.ordinal_day(),
}
"""What comes again of a date; weekdays are 1 for Monday to 7."""


def parts_of(column: str, values: pl.Series, in_train: np.ndarray) -> list[dict[str, Any]]:
    """Features of a column of dates that are parts of it, like those of `learn`; none of other columns."""
    if not isinstance(values.dtype, pl.Datetime):
        return []
    known = values.filter(pl.Series(in_train)).drop_nulls()
    return [
        {"column": column, "meaning": f"{column}: {part}", "source": "table", "unit": part, "part": part}
        for part, of in PARTS.items()
        if of(known).n_unique() > 1
    ]


def learn(column: str, values: pl.Series, in_train: np.ndarray, max_categories: int) -> list[dict[str, Any]] | str:
    """How a column becomes features, as entries of the manifest but for their `name`; or why it does not.

    in_train: (num_rows,) bool. The `values` of a category are in the order of their codes.
    """
    known = values.filter(pl.Series(in_train)).drop_nulls()
    entry = {"column": column, "meaning": column, "source": "table"}
    num_different = known.n_unique()
    if num_different < 2 and known.len() in (0, int(in_train.sum())):
        if known.is_empty():
            return "is empty in train"
        is_long = known.dtype == pl.Float64 and abs(known[0]) >= MOST_EXACT
        return "holds whole numbers beyond 2^53, which floats do not keep apart" if is_long else "has one value in train"
    if values.dtype == pl.Boolean:
        return [{**entry, "unit": "0 or 1"}]
    if is_number(values):
        offset = offset_of(numbers_of(values), in_train)
        if not isinstance(values.dtype, pl.Datetime):
            return [{**entry, "unit": f"above {offset:.0f}", "offset": offset} if offset else {**entry, "unit": ""}]
        if not offset:
            return [{**entry, "unit": EPOCH_UNIT}, *parts_of(column, values, in_train)]
        begin = datetime.datetime(1970, 1, 1) + datetime.timedelta(days=offset)
        days = {**entry, "unit": f"{DAYS_SINCE}{begin:%Y-%m-%d}", "offset": offset}
        return [days, *parts_of(column, values, in_train)]
    if num_different > max_categories:
        return f"has {num_different:,} different texts in train, more than max_categories={max_categories}"
    if num_different > known.len() / 2:
        return f"has {num_different:,} different texts in {known.len():,} rows of train: it names rows more than it tells"
    names = known.unique().sort().to_list()
    return [{**entry, "unit": "category", "categories": len(names), "values": names}]


def kind_of(feature: dict[str, Any]) -> Kind:
    """What the column of a feature holds."""
    if feature["unit"].startswith(DAYS_SINCE) or "part" in feature:
        return "date"
    kinds: dict[str, Kind] = {"category": "text", "0 or 1": "truth"}
    return kinds.get(feature["unit"], "number")


def encode(values: pl.Series, feature: dict[str, Any]) -> np.ndarray:
    """A column as the numbers of its feature: (num_rows,) float32, NaN where it is empty or a category is unknown."""
    if "part" in feature:
        return PARTS[feature["part"]](values).cast(pl.Float32).fill_null(np.nan).to_numpy()
    if "values" not in feature:
        with np.errstate(over="ignore"):
            found = (numbers_of(values) - feature.get("offset", 0.0)).astype(np.float32)
        found[np.isinf(found)] = np.nan
        return found
    code = pl.Series(range(feature["categories"]), dtype=pl.Float32)
    return values.replace_strict(feature["values"], code, default=None).fill_null(np.nan).to_numpy()
