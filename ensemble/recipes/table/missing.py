"""Cells that mark missing values, such as NA, -999 or 1900-01-01."""

import datetime
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import numpy as np
import polars as pl

from ensemble.data.records import is_exact, is_number
from ensemble.errors import listed
from ensemble.recipes.table.dates import MOST_SHOWN
from ensemble.recipes.table.sources import WHOLE_FLOAT

MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "<NA>", r"\N", "?", "-")
"""Texts that mark missing values in columns of numbers, dates or booleans, if the setting `missing` is empty."""


def in_texts(texts: pl.Series, missing: Sequence[str]) -> tuple[pl.Series, dict[str, int]]:
    """The texts, null where they mark missing values, and the counts of these texts, the most frequent first.

    If `missing` contains 98, the text 98.0 marks a missing value too, as in a column that was stored as floats.
    """
    is_missing = texts.is_in(missing)
    if any(map(is_number, missing)):
        is_missing |= texts.str.replace(WHOLE_FLOAT, "${1}").is_in(missing)
    is_missing = is_missing.fill_null(False)
    counted = texts.filter(is_missing).rename("text").value_counts(sort=True, name="count")
    return texts.set(is_missing, None), dict(counted.iter_rows())


def in_values(
    values: pl.Series, missing: Sequence[str], counted: Mapping[str, int] = MappingProxyType({})
) -> tuple[pl.Series, dict[str, int]]:
    """The numbers (Float64) or dates, null where they mark missing values in any form (-999.0 for -999), and the number of
    values that each text of `missing` marks, added to the counts in `counted`."""
    are_numbers, known, counts = values.dtype == pl.Float64, values, {**dict.fromkeys(missing, 0), **counted}
    for text in missing:
        with suppress(ValueError, OverflowError):
            mark = float(text) if are_numbers else _in_utc(datetime.datetime.fromisoformat(text))
            is_missing = (known == mark).fill_null(False)
            if isinstance(mark, float):
                is_missing |= (known == _in_32_bits(mark)).fill_null(False)
            known, counts[text] = known.set(is_missing, None), counts[text] + int(is_missing.sum())
    return known, {text: count for text, count in counts.items() if count}


def _in_32_bits(mark: float) -> float:
    """The number as a column of 32-bit floats stores it, such as -999.9000244140625 for -999.9. Whole numbers below 2^53 and
    numbers out of range are returned as they are: rounded, they may be other values of a column, such as 0 or infinity."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(mark))
    return mark if is_exact(mark) or math.isinf(rounded) or not rounded else rounded


def _in_utc(time: datetime.datetime) -> datetime.datetime:
    """The time in UTC, without a time zone; one without a time zone is in UTC."""
    return time.astimezone(datetime.UTC).replace(tzinfo=None) if time.tzinfo else time


def notes(column: str, marks: dict[str, int]) -> tuple[str, ...]:
    """A message about texts that mark missing values. marks : these texts, with their counts."""
    if not marks:
        return ()
    frequent = sorted(marks, key=marks.__getitem__, reverse=True)
    words = listed([f"'{word}' ({marks[word]:,})" for word in frequent], MOST_SHOWN)
    total = sum(marks.values())
    cells = "1 cell that counts" if total == 1 else f"{total:,} cells that count"
    return (f"the column '{column}' has {cells} as empty: {words}",)


def categories_note(column: str, categories: Sequence[str]) -> tuple[str, ...]:
    """A message about the categories of a column of texts that would mark missing values in a column of numbers."""
    if not (marks := [text for text in categories if text in MISSING]):
        return ()
    what = (
        f"{', '.join(map(repr, marks))} of the column '{column}' {'are categories' if len(marks) > 1 else 'is a category'}"
    )
    return (f"{what}: name {'them' if len(marks) > 1 else 'it'} in missing=[…] if an empty cell is meant",)


def read_as_empty_note(column: str, texts: pl.Series, categories: Sequence[str]) -> tuple[str, ...]:
    """A message if training had a category such as NA, and new rows have empty cells instead, as after pandas.read_csv."""
    marks = [text for text in categories if text in MISSING]
    if not marks or not texts.null_count() or texts.is_in(marks).any():
        return ()
    return (
        f"the column '{column}' has empty cells ({texts.null_count():,}), and training had the category {marks[0]!r}: if "
        f"pandas has read {marks[0]!r} as an empty cell, read the file with keep_default_na=False, or fit with "
        f"{marks[0]!r} in missing=[…]",
    )
