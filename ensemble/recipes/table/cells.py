"""The kind of each column (numbers, booleans, dates or texts), determined once over all files of a table, and its values.

    cells = read(table, "price", config)
    cells.kind, cells.values        # 'number', Series of Float64, null where the cell is empty or not a number

A column holds numbers (or dates) if all but `max_bad_fraction` of its non-empty cells are numbers (dates); the others count
as empty, and a message names the first of them. Otherwise all cells are texts. If a number or date is ambiguous, such as
1,234 or 01/02/2020, the other cells of the column decide; if they do not, `UserError` asks for a setting. Each file may have
its own form of dates (`dates.py`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import polars as pl

from ensemble.data.records import EXCERPT_CHARACTERS, MOST_EXACT, is_number
from ensemble.errors import UserError
from ensemble.recipes.table import dates
from ensemble.recipes.table.dates import DIGITS_OF_A_DAY, MOST_SHOWN
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.sources import Table, as_text, in_utc, whole

MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "?", "-")
"""Texts that mark missing values in columns of numbers or dates, if `missing` is empty."""
PLAIN, COMMA_GROUPS, DECIMAL_COMMA = "1234.5", "1,234.5", "1.234,5"
NUMBERS = {
    COMMA_GROUPS: r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$",
    DECIMAL_COMMA: r"^[+-]?([1-9]\d{0,2}(\.\d{3})+(,\d*)?|\d+(,\d*)?|,\d+)$",
}
"""Patterns of numbers in other forms than Python's. In both forms, numbers without groups of digits are read too."""
LEADING_ZERO = r"^[+-]?0\d+$"
LIKE_A_NUMBER = (
    rf"^\PL*\d\PL*$|{dates.LOOKS_LIKE_A_DATE}|\b\d{{1,2}}[-/ ]\pL{{3,9}}[-/ ]\d{{2}}|\b\pL{{3,9}} \d{{1,2}},? \d{{4}}"
)
"""A text with digits and without letters, such as 12 % or 31/01/24, or with a date such as 31-JAN-24."""
NEARLY = 0.1
"""A message is printed for a column of texts if more than this fraction of the cells are numbers, or dates."""
LARGEST = float(np.finfo(np.float32).max)
"""Largest absolute value of a feature."""

Kind = Literal["number", "truth", "date", "text"]
PLURALS: dict[Kind, str] = {"number": "numbers", "truth": "booleans (true or false)", "date": "dates", "text": "texts"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """The values of a column."""

    column: str
    kind: Kind
    values: pl.Series
    """(num_rows,) Float64, Boolean, Datetime (UTC, microseconds) or String; null where the cell counts as empty."""
    form: str = ""
    """The form of numbers or dates, if it is not the default."""
    bad: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers of the rows whose cell is neither empty nor of this kind."""
    marks: dict[str, int] = dataclasses.field(default_factory=dict)
    """The texts in the cells that mark missing values, with their counts."""
    notes: tuple[str, ...] = ()
    """Messages about unusual data."""


def read(table: Table, column: str, config: PrepareConfig) -> Cells:
    """Read a column that is not in `table.nested`. Raises `UserError` for ambiguous numbers or dates."""
    pieces = table.pieces[column]
    kinds = [piece.dtype for piece in pieces if piece.null_count() < len(piece)]
    if all(kind.is_numeric() for kind in kinds):
        values = pl.concat(_as(piece, pl.Float64()) for piece in pieces).fill_nan(None)
        values, marks = _without_numbers(values, config.missing)
        infinite = values.is_infinite().fill_null(False)
        return _of_kind(table, column, "number", values, values.cast(pl.String), infinite, marks)
    if all(kind == pl.Boolean for kind in kinds):
        return Cells(column=column, kind="truth", values=pl.concat(_as(piece, pl.Boolean()) for piece in pieces))
    if all(kind.is_temporal() for kind in kinds):
        values = pl.concat(_as(piece, pl.Datetime("us")) for piece in pieces)
        return Cells(column=column, kind="date", values=values, notes=_zone_notes(column, pieces))
    # If some files have text, and others numbers or dates (Parquet), the text is read separately, since its form may differ
    for kind, native in (("number", pl.Float64()), ("date", pl.Datetime("us"))):
        fits = [piece.dtype.is_numeric() if kind == "number" else piece.dtype.is_temporal() for piece in pieces]
        parts = list(zip(pieces, fits, strict=True))
        if not any(fits) or not all(fit or piece.dtype in (pl.String, pl.Null) for piece, fit in parts):
            continue
        only_text = pl.concat(as_text(piece.clear(len(piece)) if fit else piece) for piece, fit in parts)
        text_cells = _read_texts(table, column, _stripped(only_text), config)
        if text_cells.kind == kind:
            known = pl.concat(_as(piece if fit else piece.clear(len(piece)), native) for piece, fit in parts)
            known = _without_numbers(known, config.missing)[0] if kind == "number" else known
            return dataclasses.replace(text_cells, values=text_cells.values.zip_with(known.is_null(), known))
    return _read_texts(table, column, _stripped(pl.concat([as_text(piece) for piece in pieces])), config)


def _of_kind(
    table: Table,
    column: str,
    kind: Kind,
    values: pl.Series,
    texts: pl.Series,
    bad: pl.Series,
    marks: dict[str, int],
    form_notes: tuple[str, ...] = (),
    form: str = "",
) -> Cells:
    """The cells of a column, with messages. bad : rows, (num_rows,) bool, of `texts` that are not of this kind."""
    notes = (*_mark_notes(column, marks), *_bad_notes(table, column, texts, bad, PLURALS[kind]), *form_notes)
    values = values.set(bad, None)
    return Cells(column=column, kind=kind, values=values, form=form, bad=_rows(bad), marks=marks, notes=notes)


def _stripped(texts: pl.Series) -> pl.Series:
    """Texts without surrounding blanks; null for blank texts."""
    texts = texts.str.strip_chars()
    return texts.set(texts == "", None)


def _without(texts: pl.Series, missing: Sequence[str]) -> tuple[pl.Series, dict[str, int]]:
    """The texts, null where they mark missing values, and the counts of these texts, the most frequent first."""
    is_missing = texts.is_in(missing).fill_null(False)
    counted = texts.filter(is_missing).value_counts(sort=True, name="count")
    return texts.set(is_missing, None), dict(counted.iter_rows())


def _without_numbers(values: pl.Series, missing: Sequence[str]) -> tuple[pl.Series, dict[str, int]]:
    """The numbers, null where they mark missing values in any form (-999.0 for -999), and the counts of these."""
    counts = {text: int((values == float(text)).sum()) for text in missing if is_number(text)}
    numbers = pl.Series([float(text) for text in counts], dtype=pl.Float64)
    is_missing = values.is_in(numbers.implode()).fill_null(False)
    return values.set(is_missing, None), {text: count for text, count in counts.items() if count}


def _read_texts(table: Table, column: str, texts: pl.Series, config: PrepareConfig) -> Cells:
    texts, marks = _without(texts, config.missing)
    cells, default_marks = _without(texts, () if config.missing else MISSING)
    all_marks = marks | default_marks
    num_cells = cells.count()
    if not num_cells:
        return Cells(column=column, kind="text", values=texts, marks=marks, notes=_mark_notes(column, marks))
    allowed = config.max_bad_fraction * num_cells
    truths = cells.str.to_lowercase()
    if truths.drop_nulls().is_in(("true", "false")).all():
        notes = _mark_notes(column, all_marks)
        return Cells(column=column, kind="truth", values=truths == "true", marks=all_marks, notes=notes)

    advice = f": add decimal=. or decimal=,, or drop=[{column}]"
    form, values = _choose(column, cells, config.decimal, PLAIN, allowed, advice)
    no_number = cells.is_not_null() & values.is_null()
    if no_number.sum() <= allowed:
        bad = no_number | values.is_infinite().fill_null(False)
        values, as_numbers = _without_numbers(values, config.missing)
        notes = _form_notes(column, form)
        zeros = cells.filter(cells.str.contains(LEADING_ZERO))
        if len(zeros):
            example = f"'{zeros[0]}' is {int(zeros[0])}"
            notes += (f"the column '{column}' is read as numbers, so that {example}: their leading zeros do not count",)
        form = "" if form == PLAIN else form
        return _of_kind(table, column, "number", values, cells, bad, all_marks | as_numbers, notes, form)

    found = dates.read(table, cells, config.dates)
    no_date = cells.is_not_null() & found.values.is_null()
    if no_date.sum() <= allowed:
        advice = f": add dates=day_first or dates=month_first, or drop=[{column}]"
        dates.refuse_ambiguous(table, column, cells, found, advice)
        notes = dates.forms_note(table, column, found)
        return _of_kind(table, column, "date", found.values, cells, no_date, all_marks, notes, found.form)

    notes = _like_numbers(column, cells, allowed)
    for bad, what in ((no_date, "dates"), (no_number, "numbers")):
        if num_cells - bad.sum() > NEARLY * num_cells:
            notes = (_nearly(table, column, cells, bad, what),)
    notes = (*_mark_notes(column, marks), *notes)
    return Cells(column=column, kind="text", values=texts, marks=marks, notes=notes)


def _like_numbers(column: str, cells: pl.Series, allowed: float) -> tuple[str, ...]:
    """A message about a column of texts that are probably numbers or dates of an unknown form."""
    unlike = cells.drop_nulls().str.contains(LIKE_A_NUMBER).not_()
    if unlike.is_empty() or unlike.sum() > allowed:
        return ()
    shown = cells.drop_nulls().filter(~unlike)[0]
    advice = "if they are numbers or dates, write them as 1234.5, or as 2024-01-31 with four digits of the year"
    return (f"the column '{column}' is read as text, such as '{shown}': {advice}",)


def read_as(table: Table, column: str, kind: Kind, form: str, config: PrepareConfig) -> Cells:
    """Read a column of new rows as the `kind` of the training data; other cells count as empty.

    form : the form in the training data, which decides ambiguous cells. Raises `UserError` if no cell is of this kind.
    """
    kinds = PLURALS[kind]
    if column in table.nested:
        raise UserError(
            f"the column '{column}' holds {table.nested[column]}, but members were trained on {kinds}: give {kinds}"
        )
    texts = _stripped(pl.concat([as_text(whole(piece)) for piece in table.pieces[column]]))
    cells, marks = _without(texts, config.missing or (() if kind == "text" else MISSING))
    advice = ", and training had neither: write them as in training"
    forms: tuple[str, ...] = ()
    if kind == "text":
        values = cells
    elif kind == "truth":
        truths = {"true": True, "false": False, "1": True, "0": False}
        values = cells.str.to_lowercase().replace_strict(truths, default=None, return_dtype=pl.Boolean)
    elif kind == "date":
        known = form.split(dates.SEPARATOR) if form else [dates.ISO[0]]
        read_dates = dates.read(table, cells, config.dates, known)
        dates.refuse_ambiguous(table, column, cells, read_dates, advice)
        values, forms = read_dates.values, dates.forms_note(table, column, read_dates)
        forms = (*forms, *_zone_notes(column, table.pieces[column]), *dates.offset_note(column, read_dates, form))
    else:
        allowed = cells.count() - 1  # at least one cell is a number
        new_form, values = _choose(column, cells, config.decimal, form or PLAIN, allowed, advice)
        forms = _form_notes(column, new_form)
        is_read = values.is_not_null()
        values, as_numbers = _without_numbers(values, config.missing)
        marks |= as_numbers
        cells = cells.set(is_read & values.is_null(), None)
        values = values.set((values.abs() > LARGEST).fill_null(False), None)
    bad = cells.is_not_null() & values.is_null()
    if bad.any() and bad.sum() == cells.count():
        first = first_of(table, cells, _rows(bad))
        raise UserError(f"the column '{column}' held {kinds} in training, but has none now: {first}: give {kinds}")
    return _of_kind(table, column, kind, values, cells, bad, marks, forms)


def _form_notes(column: str, form: str) -> tuple[str, ...]:
    """A message about the form of numbers, if it is not the default."""
    return () if form == PLAIN else (f"the column '{column}' is read as numbers that are written as {form}",)


def _choose(column: str, cells: pl.Series, decimal: str, known: str, allowed: float, advice: str) -> tuple[str, pl.Series]:
    """The form of numbers that leaves the fewest cells unread, and its values; `known` if it is one of several that do.

    Raises `UserError`, with `advice`, if several do without `known`, leave at most `allowed` unread, and differ in values.
    """
    readings = dict(_numbers(cells, decimal))
    unread = {form: int((cells.is_not_null() & values.is_null()).sum()) for form, values in readings.items()}
    fewest = min(unread.values())
    best = [form for form in readings if unread[form] == fewest]
    form = known if known in best else best[0]
    for other in best if form != known and fewest <= allowed else ():
        differ = readings[other].ne_missing(readings[form])
        if differ.any():
            shown = cells[int(differ.arg_max() or 0)]
            raise UserError(
                f"the column '{column}' holds numbers such as '{shown}', written as {form} or as {other}{advice}"
            )
    return form, readings[form]


def _numbers(cells: pl.Series, decimal: str) -> Iterator[tuple[str, pl.Series]]:
    """The possible forms of numbers, each with the values of the cells, null for cells in another form."""
    plain = cells.cast(pl.Float64, strict=False).fill_nan(None)
    if decimal != ",":
        yield PLAIN, plain
    if not cells.str.contains(",", literal=True).any() and decimal != ",":
        return
    if decimal != ",":
        grouped = cells.str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
        yield COMMA_GROUPS, grouped.set(plain.is_null() & ~cells.str.contains(NUMBERS[COMMA_GROUPS]).fill_null(False), None)
    if decimal != ".":
        swapped = cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        swapped = swapped.cast(pl.Float64, strict=False)
        yield DECIMAL_COMMA, swapped.set(~cells.str.contains(NUMBERS[DECIMAL_COMMA]).fill_null(False), None)


def days(cells: Cells) -> Cells:
    """Convert the cells to dates if all are numbers such as 20240131; else return them unchanged."""
    known = cells.values.drop_nulls()
    if cells.kind != "number" or known.is_empty() or not known.is_between(1_000_00_00, 9999_12_31).all():
        return cells
    if (known != known.floor()).any():
        return cells
    values = cells.values.cast(pl.Int64).cast(pl.String).str.to_datetime(DIGITS_OF_A_DAY, time_unit="us", strict=False)
    if values.null_count() > cells.values.null_count():
        return cells
    note = f"the column '{cells.column}' is read as dates that are written as {dates.example(DIGITS_OF_A_DAY)}"
    notes = (*cells.notes, note)
    return dataclasses.replace(cells, kind="date", values=values, form=DIGITS_OF_A_DAY, notes=notes)


def exact_texts(table: Table, column: str, cells: Cells) -> Cells:
    """Convert numbers back to their texts if some are codes, with leading zeros or too many digits to be exact as floats."""
    if cells.kind != "number" or any(piece.dtype.is_float() for piece in table.pieces[column]):
        return cells
    texts = pl.concat([as_text(piece) for piece in table.pieces[column]]).str.strip_chars()
    is_code = texts.str.contains(LEADING_ZERO) | (cells.values.abs() >= MOST_EXACT) & texts.str.contains(r"^[+-]?\d+$")
    if not is_code.any():
        return cells
    return dataclasses.replace(cells, kind="text", values=texts.set(cells.values.is_null(), None), notes=())


def _zone_notes(column: str, pieces: Sequence[pl.Series]) -> tuple[str, ...]:
    """A message about dates of Parquet with another time zone than UTC."""
    zones = (piece.dtype.time_zone for piece in pieces if isinstance(piece.dtype, pl.Datetime))
    others = dict.fromkeys(zone for zone in zones if zone not in (None, "UTC"))
    return tuple(f"the column '{column}' has times of the zone {zone}, which are converted to UTC" for zone in others)


def _as(piece: pl.Series, kind: pl.DataType) -> pl.Series:
    """The values as another type, with times in UTC; a series of nulls can have any type."""
    if piece.null_count() == len(piece):
        return pl.repeat(None, len(piece), dtype=kind, eager=True)
    return in_utc(piece).cast(kind)


def _rows(flags: pl.Series) -> np.ndarray:
    return flags.arg_true().to_numpy().astype(np.int64)


def _mark_notes(column: str, marks: dict[str, int]) -> tuple[str, ...]:
    """A message about texts that mark missing values. marks : these texts, with their counts."""
    if not marks:
        return ()
    words = ", ".join(f"'{word}' ({count:,})" for word, count in list(marks.items())[:MOST_SHOWN])
    return (f"the column '{column}' has {sum(marks.values()):,} cells that count as empty: {words}",)


def in_range(table: Table, column: str, cells: Cells) -> Cells:
    """The cells of a feature: numbers that float32 cannot hold, such as 1e300, count as empty, with a message."""
    if cells.kind != "number" or not (huge := (cells.values.abs() > LARGEST).fill_null(False)).any():
        return cells
    notes = _bad_notes(table, column, cells.values.cast(pl.String), huge, "32-bit floats")
    return dataclasses.replace(cells, values=cells.values.set(huge, None), notes=(*cells.notes, *notes))


def _bad_notes(table: Table, column: str, cells: pl.Series, bad: pl.Series, what: str) -> tuple[str, ...]:
    rows = _rows(bad)
    if not len(rows):
        return ()
    first = first_of(table, cells, rows)
    return (f"the column '{column}' has {len(rows):,} cells that are not {what} and count as empty: {first}",)


def _nearly(table: Table, column: str, cells: pl.Series, bad: pl.Series, what: str) -> str:
    rows = _rows(bad)
    return (
        f"the column '{column}' is read as text, since {len(rows):,} of {cells.count():,} cells are not "
        f"{what}: {first_of(table, cells, rows)}; name them in missing=[…], or allow more with max_bad_fraction"
    )


def first_of(table: Table, cells: pl.Series, rows: np.ndarray) -> str:
    """The first cells of `rows`, with file and line."""
    return ", ".join(f"'{shortened(cells[int(row)])}' ({table.place(int(row))})" for row in rows[:MOST_SHOWN])


def shortened(text: str) -> str:
    """The first `EXCERPT_CHARACTERS` characters of a text for a message."""
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}…"
