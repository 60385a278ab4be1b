"""Parsing of dates in texts. Each file of a table may have its own form of dates.

    dates = read(table, "joined", cells, order="", allowed=0, advice="")
    dates.values, dates.forms     # Series of Datetime, null where a cell is not a date; the form of each file

The form of a file is the one that leaves the fewest cells unread. Its cells may differ in the time: without one, a cell is
midnight, and without an offset, a time is in UTC; `forms_note` makes a message about both. If the order of day and month is
ambiguous in all cells of a file, as in 01/02/2020, it is that of the other files (for new rows, also that of training). If
these have no order or both orders, the form is ambiguous, and `read` raises an error; conventions.py then tries the order of
other columns.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from ensemble.errors import UserError, listed
from ensemble.recipes.table.sources import Table

ISO, DAY_FIRST, MONTH_FIRST = ("%Y-%m-%d", "%Y/%m/%d"), ("%d/%m/%Y", "%d-%m-%Y", "%d.%m.%Y"), ("%m/%d/%Y", "%m-%d-%Y")
NAMED = ("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y")
"""Forms with the English name of the month; %b is its first three letters."""
SHORT = ("%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%d-%b-%Y")
"""Forms whose years may have two digits. With other separators, as in 01-02-03, the first number may be the year."""
MONTHS = ("%Y-%m", "%b-%Y", "%b %Y", "%B-%Y", "%B %Y")
"""Forms without a day; the first of the month is meant."""
TIMES = ("", " %H:%M", " %H:%M:%S%.f", "T%H:%M", "T%H:%M:%S%.f", " %H:%M:%S%.f%z", "T%H:%M:%S%.f%z", " %H:%M%z",
         "T%H:%M%z", " %I:%M %p", " %I:%M:%S %p")  # fmt: skip
DIGITS_OF_A_DAY = "%Y%m%d"
OFFSET_OF_HOURS = r"(:\d\d(?:\.\d+)?[+-]\d\d)$"
"""The end of a time as PostgreSQL writes it, such as 10:00:00+01."""
ORDINAL = "(?:st|nd|rd|th)?"
LOOKS_LIKE_A_DATE = "|".join(
    [
        r"^\d{8}T\d{6}",
        r"^\d{1,4}[-/.]\d{1,2}[-/.]\d",
        rf"^\d{{1,2}}{ORDINAL}(?:[- ](?:of )?\pL{{3,9}}[- ]\d\d|\pL{{3}}\d{{4}})",
        rf"^\pL{{3,9}}\.? \d{{1,2}}{ORDINAL},? \d{{4}}",
        r"^\d{4}-\d\d$",
        r"^\pL{3,9}[- ]\d{4}$",
    ]
)
FIRST_YEAR = 1000
"""With %Y, an earlier year is written with four digits: 01/02/24 is not a date of the year 24, but of 2024."""
EARLY = r"^0\d{3}\b|^\d\d?[-/.]\d\d?[-/.]0\d{3}\b"
"""Matches 0001-01-01 and 01/01/0001, as programs write an unknown date."""
SAMPLE = 1000
"""Number of cells, drawn at random, by which the form and the unit of a column are recognised."""
MOST_SHOWN = 3
"""Maximum number of cells, or of file names, in a message."""
FEW_DATES = 3
"""Minimum number of different numbers for `year_last_note`, `odd_days_note` and `month_note`: fewer may all look like dates
by chance."""
OFFSET = "%z"
"""Part of the form of times with a UTC offset. The form of times of Parquet with a time zone is this part alone."""
SEPARATOR = "|"
"""Separates the forms of one file, which differ in the time, and in a manifest the forms of several files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dates:
    """A column of texts, parsed as dates."""

    values: pl.Series
    """(num_rows,) Datetime (UTC, microseconds); null where a cell is not a date."""
    forms: tuple[str, ...]
    """The form of each file; empty for a file without dates."""

    @property
    def form(self) -> str:
        """All forms as one text."""
        return SEPARATOR.join(dict.fromkeys(form for form in self.forms if form)) or ISO[0]


def read(
    table: Table, column: str, cells: pl.Series, order: str, allowed: float, advice: str, known: Sequence[str] = ()
) -> Dates:
    """Parse the dates of each file.

    order : day_first or month_first; empty for both.
    known : for new rows, the forms in the training data; with them, 20240131 is a date too.

    Raises `UserError`, with `advice`, if the form of a file is ambiguous and at most `allowed` cells are not dates.
    """
    parts = table.by_file(cells)
    best = [_best(part, order, bool(known)) for part in parts]
    orders = {order_of(form) for form in known}
    for readings in best:
        file_orders = {order_of(form) for form in readings}
        orders |= file_orders if len(file_orders) == 1 else set()
    orders.discard("")
    forms, values = [], []
    ambiguous: tuple[str, str, str, str] | None = None
    for path, part, readings in zip(table.files, parts, best, strict=True):
        fitting = [form for form in readings if order_of(form) in orders] or list(readings)
        form = next((form for form in known if form in fitting), fitting[0] if fitting else "")
        forms.append(form)
        values.append(readings[form] if form else pl.repeat(None, len(part), dtype=pl.Datetime("us"), eager=True))
        for other in fitting:
            differ = readings[other].ne_missing(readings[form])
            if not ambiguous and differ.any() and (form not in known or other in known or order_of(form)):
                ambiguous = part[int(differ.arg_max() or 0)], path.name, form, other
    dates = Dates(values=pl.concat(values), forms=tuple(forms))
    if ambiguous and dates.values.null_count() - cells.null_count() <= allowed:
        text, file, one, another = ambiguous
        where = f" in {file}" if len(table.files) > 1 else ""
        if len(orders) > 1:
            advice = "; other files have both orders of day and month: write the dates of that file as year-month-day"
        raise UserError(
            f"the column '{column}' holds dates such as '{text}'{where}, written as {example(one)} or as "
            f"{example(another)}{advice}"
        )
    return dates


def first_unread(texts: pl.Series, form: str) -> str | None:
    """The first text that is not a date in any form; None if there is none. form : that of training, tried first."""
    for known in (form or ISO[0]).split(SEPARATOR):
        if "%y" in known.lower():  # false for `OFFSET`, the form of times of Parquet
            texts = texts.filter(_parsed(texts, known).is_null())
    while len(texts):
        readings = itertools.chain((values for _, values in _readings(texts, "")), [_days_of_digits(texts)])
        left = next((rest for values in readings if len(rest := texts.filter(values.is_null())) < len(texts)), None)
        if left is None:
            return str(texts[0])
        texts = left
    return None


def in_one_form(texts: pl.Series, order: str, form: str) -> pl.Series:
    """The dates of a request in the form that most of its texts have, null for other texts.

    form : that of training. If all texts have it, or if none is a date in any form, `texts` is returned instead.
    """
    for known in (form or ISO[0]).split(SEPARATOR):
        if "%y" in known.lower() and not _parsed(texts, known).null_count():
            return texts
    return next(iter(_best(texts, order, True).values()), texts)


def forms_note(table: Table, column: str, dates: Dates) -> tuple[str, ...]:
    """A message about the forms of the dates; none if all files have the same form: one of `ISO`, with at most one form of a
    time."""
    if all(form in ("", *_forms(ISO)) for form in dates.forms) and len(set(dates.forms) - {""}) < 2:
        return ()
    files: dict[str, list[str]] = {}
    for path, form in zip(table.files, dates.forms, strict=True):
        if form:
            files.setdefault(example(form), []).append(path.name)
    forms = [f"{form} in {listed(names, MOST_SHOWN)}" for form, names in files.items()] if len(files) > 1 else list(files)
    num_offsets = sum("%z" in form for form in dates.form.split(SEPARATOR))
    is_mixed = any(SEPARATOR in form for form in dates.forms) or 0 < num_offsets < len(dates.form.split(SEPARATOR))
    rule = "; a date without a time is midnight, and a time without an offset is in UTC" if is_mixed else ""
    rule += "; years of two digits are from 1970 to 2069" if "%y" in dates.form else ""
    return (f"the column '{column}' is read as dates that are written as {' and as '.join(forms)}{rule}",)


def offset_note(column: str, dates: Dates, known: str, zones: Sequence[str]) -> tuple[str, ...]:
    """A message if the new rows have UTC offsets and the training rows have none, or the reverse.

    known : the form of the dates in training.
    zones : the time zones of new rows of Parquet; `cells.py` prints a message for zones other than UTC.
    """
    has_offsets = OFFSET in dates.form or bool(zones)
    if has_offsets == (OFFSET in known) or any(zone != "UTC" for zone in zones):
        return ()
    if has_offsets:
        return (f"the column '{column}' has times with a UTC offset, unlike in training: they are converted to UTC",)
    return (f"the column '{column}' has times without a UTC offset, unlike in training: they are read as times in UTC",)


def year_last_note(column: str, numbers: pl.Series) -> tuple[str, ...]:
    """A message about whole numbers that are probably dates such as 10142018, with the year at the end."""
    if numbers.n_unique() < FEW_DATES or not numbers.is_between(1_01_1900, 31_12_2100).all():
        return ()
    texts = numbers.cast(pl.Int64).cast(pl.String).str.zfill(len("10142018"))
    readings = [texts.str.to_date(form, strict=False) for form in ("%m%d%Y", "%d%m%Y")]
    fitting = [values for values in readings if not values.has_nulls() and values.dt.year().is_between(1900, 2100).all()]
    if not fitting:
        return ()
    fix = fitting[0][0] if len(fitting) == 1 else "year-month-day"
    return (f"the column '{column}' is read as numbers, but {texts[0]} looks like a date: if it is one, write it as {fix}",)


def odd_days_note(column: str, numbers: pl.Series) -> tuple[str, ...]:
    """A message about whole numbers such as 20240131 of which all but a few different ones, such as 99991231, are dates."""
    if not numbers.is_between(1900_01_01, 2100_12_31).any():
        return ()
    different = numbers.unique().sort()
    texts = different.cast(pl.Int64, strict=False).cast(pl.String)
    days = _days_of_digits(texts).dt.year().is_between(1900, 2100).fill_null(False)
    odd = [f"{number:.0f}" for number in different.filter(~days)]
    if days.sum() < FEW_DATES or not 0 < len(odd) <= MOST_SHOWN:
        return ()
    return (
        f"the column '{column}' is read as numbers, but {different.filter(days)[0]:.0f} looks like a date, unlike "
        f"{', '.join(odd)}: add missing=[{','.join(odd)}] if that means an empty cell",
    )


def month_note(column: str, numbers: np.ndarray) -> tuple[str, ...]:
    """A message about numbers, (n,), that are probably months such as 10.2018, whose order is not that of time."""
    if numbers.min() < 1.19 or numbers.max() > 12.21 or len(np.unique(numbers)) < FEW_DATES:
        return ()
    months = np.floor(numbers)
    years = ((numbers - months) * 10_000).round(6)
    if ((years < 1900) | (years > 2100) | (years % 1 > 0)).any() or np.ptp(years) == 0:  # the order in one year is right
        return ()
    month, fix = f"{months[0]:.0f}.{years[0]:.0f}", f"{years[0]:.0f}-{months[0]:02.0f}"
    return (f"the column '{column}' is read as numbers, but {month} looks like a month: if it is one, write it as {fix}",)


def example(form: str) -> str:
    """A form of dates in words, such as year-month-day."""
    if form == DIGITS_OF_A_DAY:
        return "20240131"
    words = {
        **{"%Y": "year", "%y": "year", "%m": "month", "%d": "day", "%b": "Jan", "%B": "January"},
        **{"%H": "hour", "%I": "hour", "%M": "minute", "%S%.f": "second", "%S": "second", "%p": "AM"},
    }
    for code, word in words.items():
        form = form.replace(code, word)
    return form.replace("%z", " and UTC offset").replace(SEPARATOR, " or ")


def order_of(form: str) -> str:
    """day_first or month_first; empty if the year is first, or the month a name."""
    has_name = "%b" in form or "%B" in form
    return "" if has_name else {"%d": "day_first", "%m": "month_first"}.get(form[:2], "")


def _best(cells: pl.Series, order: str, has_digits: bool) -> dict[str, pl.Series]:
    """The forms that leave the fewest cells of a file unread, with the values of each; empty if no cell is a date.

    has_digits : whether 20240131 is a date too.
    """
    readings = dict(_readings(cells, order))
    if has_digits:
        readings[DIGITS_OF_A_DAY] = _days_of_digits(cells)
    num_empty = {form: values.null_count() for form, values in readings.items()}
    fewest = min(num_empty.values(), default=len(cells))
    return {form: values for form, values in readings.items() if num_empty[form] == fewest < len(cells)}


def _days_of_digits(cells: pl.Series) -> pl.Series:
    """The dates such as 20240131, null for other texts, also for 2024111, which polars would read."""
    digits = cells.str.to_datetime(DIGITS_OF_A_DAY, time_unit="us", strict=False)
    return digits.set(cells.str.len_chars() != len("20240131"), None)


def sample_of(known: pl.Series) -> pl.Series:
    """At most `SAMPLE` of the values, in their order. Those at the beginning, or at equal distances, may be all alike."""
    if len(known) <= SAMPLE:
        return known
    return known.gather(np.sort(np.random.default_rng(0).integers(0, len(known), SAMPLE)))


def _forms(dates: Sequence[str]) -> list[str]:
    """The forms of dates with each form of a time."""
    return [date + time for date in dates for time in TIMES]


def _readings(cells: pl.Series, order: str) -> Iterator[tuple[str, pl.Series]]:
    """For each form of the date that occurs in a sample of the cells: the form with all forms of the time that occur beside
    it, separated by `SEPARATOR`, and the values in UTC, null for cells with another form of the date.
    """
    known = cells.is_not_null().arg_true()
    in_sample = sample_of(known)
    if not cells.gather(in_sample).str.contains(LOOKS_LIKE_A_DATE).any():
        return
    cells = cells.str.replace(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)", "${1}-${2}-${3}T${4}:${5}:${6}")
    cells = cells.str.replace(r"^(\d{1,2}\pL{3}\d{4}):", "${1} ")  # 31JAN2024:13:45:00 of SAS
    cells = cells.str.replace(rf"^(\pL{{3,9}})\.? (\d{{1,2}}){ORDINAL}\b", "${1} ${2}")  # Jan. 5th, 2024
    cells = cells.str.replace(rf"^(\d{{1,2}}){ORDINAL} (?:of )?(\pL{{3,9}})\b", "${1} ${2}")  # 5th of January 2024
    utc = cells.str.replace("(Z| UTC)$", "+0000").str.replace(OFFSET_OF_HOURS, "${1}00")
    sample = utc.gather(in_sample)
    day_first, month_first = DAY_FIRST if order != "month_first" else (), MONTH_FIRST if order != "day_first" else ()
    characters = set("".join(sample.unique()))
    has_names = any(character.isalpha() for character in characters - {"T", "Z"})
    for date in (*ISO, *NAMED, *MONTHS, *day_first, *month_first):
        if set(re.sub("%.", "", date)) - {" "} - characters or ("%b" in date.lower() and not has_names):
            continue  # each form takes time in each file, and a table may have a thousand
        dates = [date, date.replace("%Y", "%y")] if date in SHORT else [date]
        forms = dates if date in MONTHS else _forms(dates)
        counts = {form: int(_parsed(sample, form).is_not_null().sum()) for form in forms}
        if not any(counts.values()):
            continue
        values = pl.repeat(None, len(utc), dtype=pl.Datetime("us"), eager=True)
        used: list[str] = []
        for form in sorted(counts, key=lambda form: -counts[form]):
            unread = utc.set(values.is_not_null(), None)
            if unread.null_count() < len(utc) and (parsed := _parsed(unread, form)).is_not_null().any():
                values, used = values.zip_with(values.is_not_null(), parsed), [*used, form]
        yield SEPARATOR.join(used), values


def _parsed(texts: pl.Series, form: str) -> pl.Series:
    """The dates in this form, null for other texts."""
    if form == DIGITS_OF_A_DAY:
        return _days_of_digits(texts)
    if form in MONTHS:
        texts, form = texts + " 01", f"{form} %d"
    if "%y" in form:  # polars also reads years of one digit: the version number 12.4.1 is no date
        texts = texts.set(~texts.str.contains(r"^\d+.[^/. -]+[/. -]\d\d(?:[ T]|$)"), None)
    values = texts.str.to_datetime(form, time_unit="us", strict=False).dt.replace_time_zone(None)
    is_early = (values.dt.year() < FIRST_YEAR).fill_null(False)
    return values.set(is_early & ~texts.str.contains(EARLY) if is_early.any() else is_early, None)
