"""What a column holds: numbers, truth values, dates or texts. It is decided once, over all files of a table.

    cells = read(table, "price", Rules(...))
    cells.kind, cells.values        # 'number', Series of Float64, null where the cell is empty or holds no number

A column holds numbers (or dates) if all but `max_bad_fraction` of its cells that are not empty do; the others count as
empty, and are named. Else it holds texts everywhere. Where numbers or dates can be read in two ways, as 1,234 or
01/02/2020 can, the other cells of the column decide; where they do not, the user is asked. Each file may write dates in a
form of its own (`dates.py`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import polars as pl

from ensemble.data.records import MOST_EXACT
from ensemble.errors import UserError
from ensemble.recipes.table import dates
from ensemble.recipes.table.dates import DIGITS_OF_A_DAY
from ensemble.recipes.table.sources import Table, as_text, whole

MISSING = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "?", "-")
"""Texts that stand for an empty cell among numbers or dates, if `missing` names no others. Among texts they are texts."""
PLAIN, COMMA_GROUPS, DECIMAL_COMMA = "1234.5", "1,234.5", "1.234,5"
NUMBERS = {
    COMMA_GROUPS: r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$",
    DECIMAL_COMMA: r"^[+-]?([1-9]\d{0,2}(\.\d{3})+(,\d*)?|\d+(,\d*)?|,\d+)$",
}
"""Ways to write numbers other than Python's. With groups, numbers without them are read too."""
LEADING_ZERO = r"^[+-]?0\d+$"
NEARLY = 0.1
"""Columns of texts of which more than this part are numbers are pointed out."""
MOST_SHOWN = 3

Kind = Literal["number", "truth", "date", "text"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings by which cells are read."""

    missing: tuple[str, ...] = ()
    """Texts that stand for an empty cell in every column; none for `MISSING` among numbers and dates."""
    decimal: Literal["", ".", ","] = ""
    dates: Literal["", "day_first", "month_first"] = ""
    max_bad_fraction: float = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """A column as it was read."""

    column: str
    kind: Kind
    values: pl.Series
    """(num_rows,) Float64, Boolean, Datetime (UTC, microseconds) or String; null where the cell is or counts as empty."""
    form: str = ""
    """How numbers or dates are written, where it is not the usual way."""
    bad: np.ndarray
    """The rows whose cell is neither empty nor of this kind."""
    stand_ins: dict[str, int]
    """How often which text stands for an empty cell."""
    notes: tuple[str, ...] = ()
    """Sentences on what a person might not expect."""


def read(table: Table, column: str, rules: Rules) -> Cells:
    """The cells of a column, but not of one in `table.no_cells`.

    Raises `UserError` where numbers or dates can be read in two ways.
    """
    pieces = table.pieces[column]
    kinds = [piece.dtype for piece in pieces if piece.null_count() < len(piece)]
    if all(kind.is_numeric() for kind in kinds):
        values = pl.concat(_as(piece, pl.Float64()) for piece in pieces).fill_nan(None)
        infinite = values.is_infinite().fill_null(False)
        return Cells(
            column=column, kind="number", values=values.set(infinite, None), bad=_rows(infinite), stand_ins={},
            notes=_bad_notes(table, column, values.cast(pl.String), infinite, "numbers"),
        )  # fmt: skip
    none = np.empty(0, np.int64)
    if all(kind == pl.Boolean for kind in kinds):
        return Cells(
            column=column,
            kind="truth",
            values=pl.concat(_as(piece, pl.Boolean()) for piece in pieces),
            bad=none,
            stand_ins={},
        )
    if all(kind.is_temporal() for kind in kinds):
        values = pl.concat([_moments(piece) for piece in pieces])
        return Cells(column=column, kind="date", values=values, bad=none, stand_ins={})
    # Text beside numbers or dates of Parquet is read by itself: it may write them in another way
    for kind, native in (("number", pl.Float64()), ("date", pl.Datetime("us"))):
        fits = [piece.dtype.is_numeric() if kind == "number" else piece.dtype.is_temporal() for piece in pieces]
        parts = list(zip(pieces, fits, strict=True))
        if not any(fits) or not all(fit or piece.dtype in (pl.String, pl.Null) for piece, fit in parts):
            continue
        only_text = pl.concat(as_text(piece.clear(len(piece)) if fit else piece) for piece, fit in parts)
        found = _read_texts(table, column, _stripped(only_text), rules)
        if found.kind == kind:
            known = pl.concat(_native(piece if fit else piece.clear(len(piece)), native) for piece, fit in parts)
            return dataclasses.replace(found, values=found.values.zip_with(known.is_null(), known))
    return _read_texts(table, column, _stripped(pl.concat([as_text(piece) for piece in pieces])), rules)


def _stripped(texts: pl.Series) -> pl.Series:
    """Texts without blanks around them; null where nothing is left."""
    texts = texts.str.strip_chars()
    return texts.set(texts == "", None)


def _read_texts(table: Table, column: str, texts: pl.Series, rules: Rules) -> Cells:
    everywhere = texts.is_in(rules.missing).fill_null(False)
    stand_ins = _counts(texts.filter(everywhere))
    texts = texts.set(everywhere, None)
    among_numbers = texts.is_in(() if rules.missing else MISSING).fill_null(False)
    none = np.empty(0, np.int64)
    cells = texts.set(among_numbers, None)
    num_cells = len(cells) - cells.null_count()
    allowed = rules.max_bad_fraction * num_cells
    truths = cells.str.to_lowercase()
    if num_cells and truths.drop_nulls().is_in(("true", "false")).all():
        found = _counts(texts.filter(among_numbers))
        return Cells(
            column=column,
            kind="truth",
            values=truths == "true",
            bad=none,
            stand_ins=stand_ins | found,
            notes=_stand_in_notes(column, stand_ins | found),
        )
    nearly: tuple[str, ...] = ()
    kinds: tuple[tuple[Kind, str], ...] = (("number", "numbers"), ("date", "dates"))
    for kind, what in kinds:
        if not num_cells:
            break
        if kind == "number":
            form, values = _choose(column, cells, list(_numbers(cells, rules.decimal)), allowed)
            forms = _form_notes(column, form)
        else:
            read_dates = dates.read(table, cells, rules.dates)
            form, values, forms = read_dates.form, read_dates.values, dates.forms_note(table, column, read_dates)
        bad = unread = cells.is_not_null() & values.is_null()
        if unread.sum() <= allowed:
            if kind == "date":
                advice = f": add dates=day_first or dates=month_first, or drop=[{column}]"
                dates.refuse_open(table, column, cells, read_dates, advice)
            if kind == "number":
                bad = unread | values.is_infinite().fill_null(False)
            found = _counts(texts.filter(among_numbers))
            notes = [*_stand_in_notes(column, stand_ins | found), *_bad_notes(table, column, cells, bad, what)]
            notes += forms
            zeros = cells.str.contains(LEADING_ZERO).fill_null(False)
            if kind == "number" and zeros.any():
                shown = cells.filter(zeros)[0]
                notes.append(
                    f"the column '{column}' is read as numbers, so that '{shown}' is {int(shown)}: their leading zeros do "
                    "not count"
                )
            return Cells(
                column=column, kind=kind, values=values.set(bad, None), form="" if form == PLAIN else form, bad=_rows(bad),
                stand_ins=stand_ins | found, notes=tuple(notes),
            )  # fmt: skip
        if num_cells - bad.sum() > NEARLY * num_cells:
            nearly = (*nearly, _nearly(table, column, cells, bad, what))
    return Cells(
        column=column,
        kind="text",
        values=texts,
        bad=none,
        stand_ins=stand_ins,
        notes=(*_stand_in_notes(column, stand_ins), *nearly[:1]),
    )


def read_as(table: Table, column: str, kind: Kind, form: str, rules: Rules) -> Cells:
    """A column of new rows, whose cells are read as the `kind` that members learned from; what is none counts as empty.

    form : how training wrote it, by which is read what can be read in two ways. Raises `UserError` where not one of the
    cells is of this kind.
    """
    if column in table.no_cells:
        raise UserError(
            f"the column '{column}' holds {table.no_cells[column]}, and members learned from {kind}s: give those"
        )
    pieces = table.pieces[column]
    texts = _stripped(pl.concat([as_text(whole(piece)) for piece in pieces]))
    words = texts.is_in(rules.missing or (() if kind == "text" else MISSING)).fill_null(False)
    cells, stand_ins = texts.set(words, None), _counts(texts.filter(words))
    forms: tuple[str, ...] = ()
    if kind == "text":
        values = cells
    elif kind == "truth":
        truths = {"true": True, "false": False, "1": True, "0": False}
        values = cells.str.to_lowercase().replace_strict(truths, default=None, return_dtype=pl.Boolean)
    elif kind == "date":
        known = form.split(dates.SEPARATOR) if form else [dates.ISO[0]]
        found = dates.read(table, cells, rules.dates, known, has_digits=True)
        advice = ", and training had neither: write them as in training"
        dates.refuse_open(table, column, cells, found, advice)
        values, forms = found.values, dates.forms_note(table, column, found)
    else:
        way, values = _like_training(column, cells, dict(_numbers(cells, rules.decimal)), form or PLAIN)
        forms = _form_notes(column, way)
        values = values.set(values.is_infinite().fill_null(False), None)
    bad = cells.is_not_null() & values.is_null()
    if bad.any() and bad.sum() == len(cells) - cells.null_count():
        first = first_of(table, cells, _rows(bad))
        raise UserError(f"the column '{column}' held {kind}s when members learned, and not one now: {first}: give those")
    notes = (*_stand_in_notes(column, stand_ins), *_bad_notes(table, column, cells, bad, f"{kind}s"), *forms)
    return Cells(column=column, kind=kind, values=values, bad=_rows(bad), stand_ins=stand_ins, notes=notes)


def _like_training(column: str, cells: pl.Series, readings: dict[str, pl.Series], form: str) -> tuple[str, pl.Series]:
    """The reading that leaves the fewest cells unread, of several the one in the `form` of training.

    Raises `UserError` where several are left, give different values, and none is that of training.
    """
    unread = {way: int((cells.is_not_null() & found.is_null()).sum()) for way, found in readings.items()}
    best = [way for way in readings if unread[way] == min(unread.values())]
    if form in best or len(best) == 1 or min(unread.values()) == len(cells) - cells.null_count():
        way = form if form in best else best[0]
        return way, readings[way]
    way, other = best[:2]
    if not readings[way].equals(readings[other], null_equal=True):
        row = int(readings[way].ne_missing(readings[other]).arg_max() or 0)
        raise UserError(
            f"the column '{column}' holds values such as '{cells[row]}', written as {way} or as {other}, and training had "
            "neither: write them as in training"
        )
    return way, readings[way]


def _form_notes(column: str, form: str) -> tuple[str, ...]:
    """A sentence on how numbers are written, where it is not the usual way."""
    return () if form == PLAIN else (f"the column '{column}' is read as numbers that are written as {form}",)


def _choose(column: str, cells: pl.Series, readings: list[tuple[str, pl.Series]], allowed: float) -> tuple[str, pl.Series]:
    """The reading of numbers that leaves the fewest cells unread, the first of several that give the same values."""
    failures = [int((cells.is_not_null() & values.is_null()).sum()) for _, values in readings]
    best = int(np.argmin(failures))
    form, values = readings[best]
    for count, (other_form, other) in zip(failures, readings, strict=True):
        if count == failures[best] <= allowed and form != PLAIN and not other.equals(values, null_equal=True):
            row = (other.ne_missing(values)).arg_max() or 0
            raise UserError(
                f"the column '{column}' holds numbers such as '{cells[row]}', written as {form} or as {other_form}: "
                f"add decimal=. or decimal=,, or drop=[{column}]"
            )
    return form, values


def _numbers(cells: pl.Series, decimal: str) -> Iterator[tuple[str, pl.Series]]:
    """The ways to read cells as numbers, and what each gives: null for what is none."""
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
    """Whole numbers that are all days, written as 20240131, as dates; all other cells as they are."""
    known = cells.values.drop_nulls()
    if cells.kind != "number" or known.is_empty() or not known.is_between(1_000_00_00, 9999_12_31).all():
        return cells
    if (known != known.floor()).any():
        return cells
    moments = cells.values.cast(pl.Int64).cast(pl.String).str.to_datetime(DIGITS_OF_A_DAY, time_unit="us", strict=False)
    if moments.null_count() > cells.values.null_count():
        return cells
    note = f"the column '{cells.column}' is read as dates that are written as {dates.example(DIGITS_OF_A_DAY)}"
    notes = (*cells.notes, note)
    return dataclasses.replace(cells, kind="date", values=moments, form=DIGITS_OF_A_DAY, notes=notes)


def exact_texts(table: Table, column: str, cells: Cells) -> Cells:
    """Numbers that are codes, with leading zeros or too long to be exact, as the texts that they were written as."""
    if cells.kind != "number" or any(piece.dtype.is_float() for piece in table.pieces[column]):
        return cells
    texts = pl.concat([as_text(piece) for piece in table.pieces[column]]).str.strip_chars()
    is_code = texts.str.contains(LEADING_ZERO) | (cells.values.abs() >= MOST_EXACT) & texts.str.contains(r"^[+-]?\d+$")
    if not is_code.any():
        return cells
    return dataclasses.replace(cells, kind="text", values=texts.set(cells.values.is_null(), None), notes=())


def _moments(piece: pl.Series) -> pl.Series:
    """Dates of Parquet in UTC, without a time zone."""
    if isinstance(piece.dtype, pl.Datetime) and piece.dtype.time_zone:
        piece = piece.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return _as(piece, pl.Datetime("us"))


def _native(piece: pl.Series, kind: pl.DataType) -> pl.Series:
    """Numbers or dates of Parquet as `kind`."""
    return _moments(piece) if piece.dtype.is_temporal() else _as(piece, kind)


def _as(piece: pl.Series, kind: pl.DataType) -> pl.Series:
    """A piece as another type; an empty one fits every type."""
    return piece.cast(kind) if piece.null_count() < len(piece) else pl.repeat(None, len(piece), dtype=kind, eager=True)


def _rows(flags: pl.Series) -> np.ndarray:
    return flags.arg_true().to_numpy().astype(np.int64)


def _counts(texts: pl.Series) -> dict[str, int]:
    counted = texts.value_counts(sort=True, name="count")
    return dict(zip(counted[texts.name].to_list(), counted["count"].to_list(), strict=True))


def _stand_in_notes(column: str, stand_ins: dict[str, int]) -> tuple[str, ...]:
    if not stand_ins:
        return ()
    words = ", ".join(f"'{word}' ({count:,})" for word, count in list(stand_ins.items())[:MOST_SHOWN])
    return (f"the column '{column}' has {sum(stand_ins.values()):,} cells that count as empty: {words}",)


def _bad_notes(table: Table, column: str, cells: pl.Series, bad: pl.Series, what: str) -> tuple[str, ...]:
    rows = _rows(bad)
    if not len(rows):
        return ()
    first = first_of(table, cells, rows)
    return (f"the column '{column}' has {len(rows):,} cells that are no {what} and count as empty: {first}",)


def _nearly(table: Table, column: str, cells: pl.Series, bad: pl.Series, what: str) -> str:
    rows = _rows(bad)
    return (
        f"the column '{column}' is read as texts, for {len(rows):,} of {len(cells) - cells.null_count():,} cells are no "
        f"{what}: {first_of(table, cells, rows)}; name them in missing=[…], or allow more with max_bad_fraction"
    )


def first_of(table: Table, cells: pl.Series, rows: np.ndarray) -> str:
    """The first of some cells, with their places."""
    return ", ".join(f"'{cells[int(row)]}' ({table.place(int(row))})" for row in rows[:MOST_SHOWN])
