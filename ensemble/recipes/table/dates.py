"""Dates that are written as texts. Each file of a table may have its own form of dates.

    found = read(table, cells, order="")
    found.values, found.forms     # Series of Datetime, null where a cell is no date; the form of each file

A file has the form that leaves the fewest of its cells unread. Where day and month can be exchanged in all cells of a file,
as in 01/02/2020, their order is that of the other files (of new rows: also that of training). Where these have none or both
orders, the form is open: `found.open_row`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.table.sources import Table

ISO, DAY_FIRST, MONTH_FIRST = ("%Y-%m-%d", "%Y/%m/%d"), ("%d/%m/%Y", "%d-%m-%Y", "%d.%m.%Y"), ("%m/%d/%Y", "%m-%d-%Y")
TIMES = ("", " %H:%M", " %H:%M:%S%.f", "T%H:%M", "T%H:%M:%S%.f", " %H:%M:%S%.f%z", "T%H:%M:%S%.f%z")
DIGITS_OF_A_DAY = "%Y%m%d"
LOOKS_LIKE_A_DATE = r"^\d{1,4}[-/.]\d{1,2}[-/.]\d"
SAMPLE = 1000
MOST_SHOWN = 3
SEPARATOR = "|"
"""Between the forms of the files of a column, in a manifest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dates:
    """A column of texts, read as dates."""

    values: pl.Series
    """(num_rows,) Datetime (UTC, microseconds); null where a cell is no date."""
    forms: tuple[str, ...]
    """The form of each file; empty for a file without a date."""
    open_row: int | None = None
    """The first row that has two meanings, if the form of its file is open."""
    open_forms: tuple[str, str] = ("", "")
    has_both_orders: bool = False
    """Whether some files have the day first, and others the month."""

    @property
    def form(self) -> str:
        """All forms in one text."""
        return SEPARATOR.join(dict.fromkeys(form for form in self.forms if form)) or ISO[0]


def read(table: Table, cells: pl.Series, order: str, known: Sequence[str] = (), has_digits: bool = False) -> Dates:
    """Read the dates of each file in the form of that file.

    order : day_first or month_first, to read no others; empty for both.
    known : the forms of training, for new rows.
    has_digits : whether 20240131 is a date too.
    """
    sizes = np.bincount(table.file_number, minlength=len(table.files)).tolist()
    starts = [0, *np.cumsum(sizes).tolist()]
    best = [_best(cells.slice(start, size), order, has_digits) for start, size in zip(starts, sizes, strict=False)]
    orders = {_order_of(form) for form in known}
    for readings in best:
        of_file = {_order_of(form) for form in readings}
        orders |= of_file if len(of_file) == 1 else set()
    orders.discard("")
    forms, values = [], []
    opened: dict[str, Any] = {}
    for start, size, readings in zip(starts, sizes, best, strict=False):
        fitting = [form for form in readings if _order_of(form) in orders] or list(readings)
        form = next((form for form in known if form in fitting), fitting[0] if fitting else "")
        forms.append(form)
        values.append(readings[form] if form else pl.repeat(None, size, dtype=pl.Datetime("us"), eager=True))
        for other in fitting:
            differ = readings[other].ne_missing(readings[form])
            if not opened and differ.any():
                opened = {"open_row": start + int(differ.arg_max() or 0), "open_forms": (form, other)}
    return Dates(values=pl.concat(values), forms=tuple(forms), has_both_orders=len(orders) > 1, **opened)


def forms_note(table: Table, column: str, found: Dates) -> tuple[str, ...]:
    """A sentence on the form of the dates, where it is not year-month-day in all files."""
    files: dict[str, list[str]] = {}
    for path, form in zip(table.files, found.forms, strict=True):
        if form:
            files.setdefault(example(form), []).append(path.name)
    if len(files) > 1:
        ways = (f"{way} in {_listed(names)}" for way, names in files.items())
        return (f"the column '{column}' is read as dates that are written as {' and as '.join(ways)}",)
    return (
        ()
        if all(form in ("", *_forms(ISO)) for form in found.forms)
        else (f"the column '{column}' is read as dates that are written as {next(iter(files))}",)
    )


def refuse_open(table: Table, column: str, cells: pl.Series, found: Dates, advice: str) -> None:
    """Raise `UserError` where the form of a file is open."""
    if found.open_row is None:
        return
    where = f" in {table.files[table.file_number[found.open_row]].name}" if len(table.files) > 1 else ""
    one, other = map(example, found.open_forms)
    if found.has_both_orders:
        advice = "; other files have both orders of day and month: write the dates of that file as year-month-day"
    raise UserError(
        f"the column '{column}' holds dates such as '{cells[found.open_row]}'{where}, written as {one} or as {other}{advice}"
    )


def example(form: str) -> str:
    """A form of dates as people write it."""
    if form == DIGITS_OF_A_DAY:
        return "20240131"
    for code, word in {"%Y": "year", "%m": "month", "%d": "day", "%H": "hour", "%M": "minute", "%S%.f": "second"}.items():
        form = form.replace(code, word)
    return form.replace("%z", " and UTC offset")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"{', '.join(names[:MOST_SHOWN])}{more}"


def _order_of(form: str) -> str:
    """Whether the day or the month is first; empty where it is the year."""
    return {"%d": "day_first", "%m": "month_first"}.get(form[:2], "")


def _best(cells: pl.Series, order: str, has_digits: bool) -> dict[str, pl.Series]:
    """The forms that leave the fewest cells of a file unread, and what each gives; none if no form reads a cell."""
    readings = dict(_readings(cells, order))
    if has_digits:
        digits = cells.str.to_datetime(DIGITS_OF_A_DAY, time_unit="us", strict=False)
        readings[DIGITS_OF_A_DAY] = digits.set(cells.str.len_chars() != len("20240131"), None)
    num_empty = {form: values.null_count() for form, values in readings.items()}
    fewest = min(num_empty.values(), default=len(cells))
    return {form: values for form, values in readings.items() if num_empty[form] == fewest < len(cells)}


def _forms(dates: Sequence[str]) -> list[str]:
    return [date + time for date in dates for time in TIMES]


def _readings(cells: pl.Series, order: str) -> Iterator[tuple[str, pl.Series]]:
    """The forms that read one of the first cells, and what each gives, in UTC: null for what is no date."""
    utc = cells.str.replace("Z$", "+0000")
    sample = utc.drop_nulls().head(SAMPLE)
    if not sample.str.contains(LOOKS_LIKE_A_DATE).any():
        return
    forms = _forms(ISO)
    forms += _forms(DAY_FIRST) if order != "month_first" else []
    forms += _forms(MONTH_FIRST) if order != "day_first" else []
    for form in forms:
        if sample.str.to_datetime(form, time_unit="us", strict=False).is_not_null().any():
            yield form, utc.str.to_datetime(form, time_unit="us", strict=False).dt.replace_time_zone(None)
