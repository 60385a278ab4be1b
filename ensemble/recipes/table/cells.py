"""The kind of each column (numbers, booleans, dates or texts), determined once over all files of a table, and its values.

    cells = read(table, "price", config)
    cells.kind, cells.values        # 'number', Series of Float64, null where the cell is empty or not a number

A column holds booleans if all non-empty cells are, and numbers (or dates) if all but `max_bad_fraction` of them are numbers
(dates); the others count as empty, and a message names the first of them. Otherwise all cells are texts. If a number or date
is ambiguous, such as 1,234 or 01/02/2020, the other cells of the column decide; if they do not, `UserError` asks for a
setting. Each file may have its own form of numbers (`number_forms.py`) and of dates (`dates.py`).
"""

import dataclasses
import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from ensemble.data.parquet import ZONE_OF_OFFSETS
from ensemble.data.records import EXCERPT_CHARACTERS
from ensemble.errors import UserError, shortened, visible
from ensemble.recipes.table import dates, missing, number_forms, number_units
from ensemble.recipes.table.dates import DIGITS_OF_A_DAY, MOST_SHOWN
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.sources import WHOLE_FLOAT, Table, as_text, in_one_notation, in_utc
from ensemble.task import METRICS

INVISIBLE = "\u200b\u200e\u200f\u2060\ufeff\x1a"
"""Characters without width, such as the marks of the direction of writing that Windows puts before dates, and the mark by
which DOS ends a file."""
LEADING_ZERO = r"^[+-]?0\d+$"
NEARLY = 0.1
"""A message is printed for a column of texts if more than this fraction of the cells are numbers, or dates, or if at most
this fraction are unlike numbers and dates of any form."""
LARGEST = float(np.finfo(np.float32).max)
"""Largest absolute value of a feature."""
SMALLEST = float(np.finfo(np.float32).smallest_subnormal) / 2
"""Half the smallest positive 32-bit float; numbers of a smaller magnitude are rounded to 0."""
YEARS_1_TO_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last time of Python's dates, in microseconds since 1970. Other dates of Parquet count as empty."""

Kind = Literal["number", "truth", "date", "text"]
PLURALS: dict[Kind, str] = {"number": "numbers", "truth": "booleans (true or false)", "date": "dates", "text": "texts"}
TRUTHS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
"""The texts of booleans in lower case. A column of texts holds booleans only if `true` or `false` is among them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """The values of a column."""

    column: str
    kind: Kind
    values: pl.Series
    """(num_rows,) Float64, Boolean, Datetime (UTC, microseconds) or String; null where the cell counts as empty."""
    form: str = ""
    """The form of numbers, if it is not 1234.5, or of dates; empty for dates of new rows, or of Parquet without zones."""
    bad: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers of the rows whose cell is neither empty nor of this kind."""
    marks: dict[str, int] = dataclasses.field(default_factory=dict)
    """The texts in the cells that mark missing values, with their counts."""
    notes: tuple[str, ...] = ()
    """Messages about unusual data."""
    is_ambiguous: bool = False
    """Whether these texts are numbers with a unit, whose decimal mark is ambiguous."""


def read(table: Table, column: str, config: PrepareConfig) -> Cells:
    """Read a column that is not in `table.nested`. Raises `UserError` for ambiguous numbers or dates."""
    pieces = table.pieces[column]
    filled = [piece for piece in pieces if piece.null_count() < len(piece)]
    kinds = [piece.dtype for piece in filled]
    are_categories = bool(kinds) and all(isinstance(kind, pl.Categorical | pl.Enum) for kind in kinds)
    are_numbers = column in (config.time, config.weight) or (column == config.target and has_numeric_target(config))
    if column in config.categorical or (are_categories and not are_numbers):
        texts, marks = missing.in_texts(_categories(_texts(pieces, "text"), column, config), config.missing)
        return _of_kind(table, column, "text", texts, marks)
    if kinds and all(kind == pl.Boolean for kind in kinds):
        return Cells(column=column, kind="truth", values=pl.concat(_as(piece, pl.Boolean()) for piece in pieces))
    kinds_of_parquet: tuple[Kind, ...] = ("number", "date")
    for kind in kinds_of_parquet:
        others = [piece for piece in filled if not _is_native(piece, kind)]
        if not others:
            return _read_native(table, column, kind, config)
        # If some files have text, and others numbers or dates, the text is read separately, since its form may differ
        if len(others) == len(filled) or any(piece.dtype != pl.String for piece in others):
            continue
        cells = _read_texts(table, column, _texts(pieces, kind), config)
        if cells.kind == kind and (kind == "date" or not number_units.split(cells.form)[0]):  # not 5 % beside 0.05
            native = _read_native(table, column, kind, config)
            return dataclasses.replace(
                cells,
                values=native.values.zip_with(native.values.is_not_null(), cells.values),
                form=dates.SEPARATOR.join(filter(None, (cells.form, native.form))),
                bad=np.union1d(cells.bad, native.bad),
                marks=dict(Counter(cells.marks) + Counter(native.marks)),
                notes=(*cells.notes, *native.notes),
            )
    return _read_texts(table, column, _texts(pieces, "text"), config)


def has_numeric_target(config: PrepareConfig) -> bool:
    """Whether the settings say that the target is a number."""
    return config.task in ("regression", "ranking") or config.metric in METRICS["regression"]


def _is_native(piece: pl.Series, kind: Kind) -> bool:
    """Whether a file stores numbers or dates (`kind`) as such, as Parquet does, not as text."""
    return (kind == "number" and piece.dtype.is_numeric()) or (kind == "date" and piece.dtype.is_temporal())


def _native(pieces: Sequence[pl.Series], kind: Kind, config: PrepareConfig) -> tuple[pl.Series, dict[str, int]]:
    """The numbers or dates of the files that store them as such, (num_rows,), null elsewhere and where they mark missing
    values; and the counts of these marks."""
    dtype = pl.Float64() if kind == "number" else pl.Datetime("us")
    values = pl.concat(_as(piece if _is_native(piece, kind) else piece.clear(len(piece)), dtype) for piece in pieces)
    return missing.in_values(values.fill_nan(None) if kind == "number" else values, config.missing)


def _read_native(table: Table, column: str, kind: Kind, config: PrepareConfig) -> Cells:
    """The values of `_native` as cells, with messages; null in files that store texts."""
    pieces = table.pieces[column]
    values, marks = _native(pieces, kind, config)
    if kind == "number":
        return _of_kind(table, column, kind, values, marks, bad=values.is_infinite().fill_null(False))
    form = dates.OFFSET if _zones(pieces) else ""
    return _of_kind(table, column, kind, values, marks, _zone_notes(column, pieces), form)


def _texts(pieces: Sequence[pl.Series], kind: Kind) -> pl.Series:
    """The cells as texts without surrounding blanks and invisible characters, (num_rows,); null in files that store `kind`
    as such, see `_native`."""
    if all(_is_native(piece, kind) for piece in pieces):  # most columns, of which a table may have thousands
        return pl.Series([None], dtype=pl.String).new_from_index(0, sum(map(len, pieces)))
    texts = pl.concat(as_text(piece.clear(len(piece)) if _is_native(piece, kind) else piece) for piece in pieces)
    texts = texts.str.strip_chars(INVISIBLE).str.strip_chars()
    texts = in_one_notation(texts, pieces) if kind == "text" else texts
    return texts.set(texts == "", None)


def _truths(texts: pl.Series) -> pl.Series:
    """The values of `TRUTHS`, null for other texts."""
    return texts.replace_strict(TRUTHS, default=None, return_dtype=pl.Boolean)


def _of_kind(
    table: Table,
    column: str,
    kind: Kind,
    values: pl.Series,
    marks: dict[str, int],
    notes: tuple[str, ...] = (),
    form: str = "",
    bad: pl.Series | None = None,
    texts: pl.Series | None = None,
) -> Cells:
    """The cells of a column, with messages. bad : rows, (num_rows,) bool, whose `texts` (by default `values`) are not of
    this kind. Dates of Parquet outside of `YEARS_1_TO_9999` are bad too."""
    bad = pl.zeros(len(values), pl.Boolean, eager=True) if bad is None else bad
    bad_notes = _bad_notes(table, column, values if texts is None else texts, bad, PLURALS[kind])
    notes = (*missing.notes(column, marks), *bad_notes, *notes)
    if kind == "date" and (far := ~values.dt.epoch("us").is_between(*YEARS_1_TO_9999).fill_null(True)).any():
        years = "year " + values.dt.year().cast(pl.String)
        notes += _bad_notes(table, column, years, far, "dates of the years 1 to 9999")
        bad |= far
    return Cells(column=column, kind=kind, values=values.set(bad, None), form=form, bad=_rows(bad), marks=marks, notes=notes)


def _categories(texts: pl.Series, column: str, config: PrepareConfig) -> pl.Series:
    """The texts, as 12 instead of 12.0 in a column of numbers that are categories: pandas writes 12.0 beside empty cells."""
    return texts.str.replace(WHOLE_FLOAT, "${1}") if column in config.categorical else texts


def _read_texts(table: Table, column: str, texts: pl.Series, config: PrepareConfig) -> Cells:
    """The cells of a column whose kind follows from its `texts`, (num_rows,)."""
    drop = f", or 'drop=[{column}]'" if column not in (config.target, config.time, config.weight) else ""
    advice = f": add decimal=. or decimal=,{drop}"
    if not config.missing and config.decimal != ",":  # most columns are plain numbers, and tables can have thousands of them
        plain = texts.cast(pl.Float64, strict=False)
        are_plain = plain.null_count() == texts.null_count() < len(texts) and plain.is_finite().all()
        if are_plain and not texts.str.contains(LEADING_ZERO).any():
            if not config.decimal:
                number_forms.refuse_hidden_thousands(table, column, texts, plain, advice)
            return Cells(column=column, kind="number", values=plain, notes=number_forms.code_notes(column, texts))
    texts, marks = missing.in_texts(texts, config.missing)
    cells, default_marks = missing.in_texts(texts, () if config.missing else missing.MISSING)
    all_marks = marks | default_marks
    num_cells = cells.count()
    if not num_cells:
        return _of_kind(table, column, "text", texts, marks)
    allowed = config.max_bad_fraction * num_cells
    truths = cells.str.to_lowercase()
    different = truths.drop_nulls().unique()
    if different.is_in(list(TRUTHS)).all() and (are_words := different.is_in(("true", "false"))).any():
        message = f"the column '{column}' is read as booleans: 1 is true and 0 is false"
        return _of_kind(table, column, "truth", _truths(truths), all_marks, () if are_words.all() else (message,))

    numbers, no_number = _numbers(table, column, cells, "", all_marks, allowed, advice, config)
    if numbers:
        return numbers

    advice = f": add dates=day_first or dates=month_first{drop}"
    read_dates = dates.read(table, column, cells, config.dates, allowed, advice)
    no_date = cells.is_not_null() & read_dates.values.is_null()
    if no_date.sum() <= allowed:
        notes = dates.forms_note(table, column, read_dates)
        values, all_marks = missing.in_values(read_dates.values, config.missing, all_marks)
        return _of_kind(table, column, "date", values, all_marks, notes, read_dates.form, no_date, cells)

    unit_notes: tuple[str, ...] = ()
    if unit := number_units.find(cells, allowed):
        try:
            advice = f": it is read as text; add decimal=. or decimal=,{drop}"
            with_unit, _ = _numbers(table, column, cells, unit, all_marks, allowed, advice, config)
            if with_unit:
                return with_unit
        except UserError as error:  # its separators are ambiguous, as in $1,234
            unit_notes = (str(error),)

    notes = unit_notes or _like_numbers(column, cells, allowed, config)
    for bad, kinds in ((no_date, "dates"), (no_number, "numbers")):
        if num_cells - bad.sum() > NEARLY * num_cells:
            notes = (_nearly(table, column, cells, bad, kinds, is_feature=bool(drop)),)
    return dataclasses.replace(_of_kind(table, column, "text", texts, marks, notes), is_ambiguous=bool(unit_notes))


def _numbers(
    table: Table,
    column: str,
    cells: pl.Series,
    unit: str,
    marks: dict[str, int],
    allowed: float,
    advice: str,
    config: PrepareConfig,
) -> tuple[Cells | None, pl.Series]:
    """The column as numbers with `unit` (number_units.py), None if more than `allowed` cells are no such numbers; and which
    cells are no numbers, (num_rows,) bool. advice : how to resolve an ambiguous form, for the error."""
    signed = number_forms.respelled(cells)
    is_grouped = cells.str.contains(number_forms.GROUPED).fill_null(False)
    is_odd = (signed != cells).fill_null(False) & ~is_grouped
    if is_odd.sum() == cells.count() and not cells.str.contains(r"[−%\p{Sc}]").any():
        signed = cells  # (1) and (2) alone are no negative numbers
    if is_grouped.any() and not unit:
        shapes = cells.filter(cells.str.contains(r"\d")).str.replace_all(r"\d", "0").unique()
        if len(shapes) == 1 and not shapes.str.contains("[.,]").any():
            signed = cells  # 640 480 and 800 600 may be pairs, 2 345,50 and 9 800,00 not
    bare = number_units.remove(signed, unit)
    decimal = "" if unit in number_units.TIMES else config.decimal  # the hours of times have a decimal point
    forms, values = number_forms.choose(table, column, bare, decimal, number_forms.PLAIN, allowed, advice)
    no_number = cells.is_not_null() & values.is_null()
    if no_number.sum() > allowed:
        return None, no_number
    if set(forms) == {number_forms.PLAIN} and not config.decimal:
        number_forms.refuse_hidden_thousands(table, column, bare, values, advice)
    # A few cells without the unit may have another one: 900 beside 12.8K
    is_required = number_units.is_required(unit)
    has_no_unit = (bare == signed) & (values != 0) if is_required else pl.zeros(len(cells), pl.Boolean, eager=True)
    bad = no_number | has_no_unit.fill_null(False) | values.is_infinite().fill_null(False)
    values, marks = missing.in_values(values, config.missing, marks)
    form = number_units.form_of(unit, number_forms.of_column(table, bare, forms))
    notes = number_forms.notes(table, column, [number_units.form_of(unit, form) for form in forms])
    notes += number_forms.code_notes(column, cells)
    if (is_joined := is_grouped & values.is_not_null()).any():
        first = int(is_joined.arg_max() or 0)
        notes += (f"the column '{column}' is read as numbers, so that '{cells[first]}' is {values[first]:.15g}",)
    if is_odd.any():
        notes += (f"the column '{column}' is read as numbers, so that '{cells.filter(is_odd)[0]}' is negative",)
    zeros = bare.filter(bare.str.contains(LEADING_ZERO))
    if len(zeros):
        example = f"'{zeros[0]}' is {int(zeros[0])}"
        notes += (f"the column '{column}' is read as numbers, so that {example}: their leading zeros do not count",)
    form = "" if form == number_forms.PLAIN else form
    return _of_kind(table, column, "number", values, marks, notes, form, bad, cells), no_number


def _like_numbers(column: str, cells: pl.Series, allowed: float, config: PrepareConfig) -> tuple[str, ...]:
    """A message about a column of texts that are probably numbers or dates of an unknown form, or of several units."""
    known = cells.drop_nulls()
    is_like = known.str.contains(number_units.LIKE_A_NUMBER)
    if (~is_like).sum() > max(allowed, NEARLY * len(known)):
        return ()
    first = [text for part in (is_like, ~is_like) for text in known.filter(part).head(1)]
    shown = ", unlike ".join(f"'{visible(shortened(text, EXCERPT_CHARACTERS))}'" for text in first)
    number = f"with the mark of decimal={config.decimal}, or leave that out" if config.decimal else "as 1234.5"
    advice = f"if they are numbers or dates, write them {number}, or as 2024-01-31 with four digits of the year"
    return (f"the column '{column}' is read as text, such as {shown}: {advice}",)


def read_as(table: Table, column: str, kind: Kind, form: str, config: PrepareConfig) -> Cells:
    """Read a column of new rows as the `kind` of the training data; other cells count as empty.

    form : the form in the training data, which decides ambiguous cells. Raises `UserError` for nested values, for ambiguous
    numbers or dates, and if a column that is not empty has no cell of this kind.
    """
    kinds = PLURALS[kind]
    if column in table.nested:
        raise UserError(
            f"the column '{column}' holds {table.nested[column]}, but members were trained on {kinds}: give {kinds}"
        )
    pieces = table.pieces[column]
    cells = _texts(pieces, kind)
    native, native_marks = _native(pieces, kind, config) if kind in ("number", "date") else (None, {})
    is_usual = kind == "number" and not (form or config.missing or config.decimal == ",")
    if native is not None and is_usual:  # most columns, as in `_read_texts`
        plain = native.zip_with(native.is_not_null(), cells.cast(pl.Float64, strict=False))
        numbers, num_empty = plain.to_numpy(), (native.is_null() & cells.is_null()).sum()
        if np.isnan(numbers).sum() == num_empty == plain.null_count() and not (np.abs(numbers) > LARGEST).any():
            return Cells(column=column, kind=kind, values=plain)
    cells = _categories(cells, column, config) if kind == "text" else cells
    cells, marks = missing.in_texts(cells, config.missing or (() if kind == "text" else missing.MISSING))
    marks |= native_marks
    advice = ", and training had neither: write them as in training"
    form_notes: tuple[str, ...] = ()
    new_form = ""
    if kind == "text":
        values = cells
    elif kind == "truth":
        values = _truths(cells.str.to_lowercase())
    elif kind == "date":
        known = form.split(dates.SEPARATOR) if form else [dates.ISO[0]]
        if dates.DIGITS_OF_A_DAY in form:
            cells = cells.str.replace(r"^(\d{8})\.0*$", "${1}")  # of a column of floats
        read_dates = dates.read(table, column, cells, config.dates, cells.count(), advice, known)
        values, form_notes = read_dates.values, dates.forms_note(table, column, read_dates)
        form_notes += _zone_notes(column, pieces)
        if values.count() or (native is not None and native.count()):
            form_notes += dates.offset_note(column, read_dates, form, _zones(pieces))
    else:
        truths = _truths(cells.str.to_lowercase())
        if truths.null_count() == cells.null_count():  # 1 and 0 in training
            cells = truths.cast(pl.Int8).cast(pl.String)
        allowed = cells.count() - 1  # at least one cell is a number
        unit, known_form = number_units.split(form)
        number_units.refuse_two_scales(column, cells, unit)
        signed = number_forms.respelled(cells)
        cells = number_units.remove(signed, unit)
        if known_form in (number_forms.BOTH, number_forms.WHOLE):
            had = "both" if known_form == number_forms.BOTH else "whole numbers"
            advice = f", and training had {had}: leave out the thousands separators, or write 1.234 as 1.2340"
        decimal = "" if unit in number_units.TIMES else config.decimal  # the hours of times have a decimal point
        forms, values = number_forms.choose(table, column, cells, decimal, known_form, allowed, advice)
        new_form = next((form for form in forms if form != number_forms.PLAIN), "")
        is_other = values.ne_missing(cells.cast(pl.Float64, strict=False)).any()
        form_notes = number_forms.notes(table, column, forms) if is_other else ()
        if number_units.is_required(unit):
            lacks_unit = ((cells == signed) & (values != 0)).fill_null(False)
            if (cells != signed).any():  # 900 beside 12.8K may have another unit, as in `_numbers`
                values = values.set(lacks_unit, None)
            elif lacks_unit.any() or (native is not None and native.count()):
                form_notes += (f"the column '{column}' has numbers without the unit of training: they are read as {form}",)
    if native is not None:
        values = values.zip_with(native.is_null(), native)
        cells = cells.zip_with(native.is_null(), native.to_physical().cast(pl.String))
    if kind in ("number", "date"):
        is_read = values.is_not_null()
        values, marks = missing.in_values(values, config.missing, marks)
        cells = cells.set(is_read & values.is_null(), None)
    if kind == "number":
        is_huge = (values.abs() > LARGEST).fill_null(False)
        values = values.set(is_huge, None)
        kinds = f"numbers up to {LARGEST:.1e}" if is_huge.any() else kinds
    bad = cells.is_not_null() & values.is_null()
    if bad.any() and bad.sum() == cells.count():
        first = first_of(table, cells, _rows(bad))
        raise UserError(f"the column '{column}' held {kinds} in training, but has none now: {first}: give {kinds}")
    return _of_kind(table, column, kind, values, marks, form_notes, new_form, bad, cells)


def refuse_two_marks(table: Table, cells_of: dict[str, Cells], advice: str) -> None:
    """Raise `UserError`, with `advice`, if a column has decimal commas, and all numbers of another are like 1.234 and 987:
    then 1.234 may mean 1234."""
    numbers = {column: cells for column, cells in cells_of.items() if cells.kind == "number"}
    with_comma = [column for column, cells in numbers.items() if number_forms.DECIMAL_COMMA in cells.form]
    for column, cells in numbers.items() if with_comma else ():
        unit, form = number_units.split(cells.form)
        if form == number_forms.PLAIN and unit not in number_units.TIMES:
            are_counted = cells.values.is_not_null() & ~pl.Series(table.are_json).gather(table.file_number)
            texts = number_forms.respelled(_texts(table.pieces[column], "number").filter(are_counted))
            texts = number_units.remove(texts, unit or number_units.find(texts, 0))
            number_forms.refuse_thousands(column, texts, f"'{with_comma[0]}' has decimal commas: {advice}")


def of_whole_numbers(table: Table, cells_of: dict[str, Cells]) -> dict[str, Cells]:
    """The columns of whole numbers, with a form for new rows instead of none. If another column has decimal commas, it is
    that form: 1.234 is read as 1234, or refused if a further column has numbers such as 1,234.5. Without decimal commas,
    1.234 is refused if the file has texts, and some numbers are 1000 or more."""
    numbers = {column: cells for column, cells in cells_of.items() if cells.kind == "number"}
    forms = {number_units.split(cells.form)[1] for cells in numbers.values()}
    form = number_forms.DECIMAL_COMMA if number_forms.DECIMAL_COMMA in forms else ""
    form = number_forms.BOTH if number_forms.BOTH in forms or (form and number_forms.COMMA_GROUPS in forms) else form
    changed = {}
    for column, cells in numbers.items():
        known = cells.values.drop_nulls().to_numpy()
        has_thousands = (np.abs(known) >= 1000).any() and all(piece.dtype == pl.String for piece in table.pieces[column])
        if not cells.form and (form or has_thousands) and (known == np.floor(known)).all():
            changed[column] = dataclasses.replace(cells, form=form or number_forms.WHOLE)
    return changed


def days(cells: Cells, first: datetime.date = datetime.date(1000, 1, 1), last: datetime.date = datetime.date.max) -> Cells:
    """The cells as dates if all are numbers such as 20240131 from `first` to `last`; else unchanged, or with a message."""
    if cells.kind != "number":
        return cells
    known = cells.values.drop_nulls()
    numbers = known.to_numpy()
    if not numbers.size:
        return cells
    if (numbers != np.floor(numbers)).any():
        return dataclasses.replace(cells, notes=(*cells.notes, *dates.month_note(cells.column, numbers)))
    least, most = (int(day.strftime(DIGITS_OF_A_DAY)) for day in (first, last))
    if known.is_between(least, most).all():
        values = cells.values.cast(pl.Int64).cast(pl.String).str.to_datetime(DIGITS_OF_A_DAY, time_unit="us", strict=False)
        if values.null_count() == cells.values.null_count():
            note = f"the column '{cells.column}' is read as dates that are written as {dates.example(DIGITS_OF_A_DAY)}"
            return dataclasses.replace(cells, kind="date", values=values, form=DIGITS_OF_A_DAY, notes=(*cells.notes, note))
    notes = dates.year_last_note(cells.column, known) or dates.odd_days_note(cells.column, known)
    return dataclasses.replace(cells, notes=(*cells.notes, *notes))


def _zone_notes(column: str, pieces: Sequence[pl.Series]) -> tuple[str, ...]:
    """A message about dates of Parquet with another time zone than UTC."""
    named = {ZONE_OF_OFFSETS: "with a UTC offset"}
    others = [named.get(zone, f"of the zone {zone}") for zone in _zones(pieces) if zone != "UTC"]
    return tuple(f"the column '{column}' has times {which}, which are converted to UTC" for which in others)


def _zones(pieces: Sequence[pl.Series]) -> list[str]:
    """The different time zones of times of Parquet."""
    zones = (piece.dtype.time_zone for piece in pieces if isinstance(piece.dtype, pl.Datetime))
    return list(dict.fromkeys(zone for zone in zones if zone is not None))


def _as(piece: pl.Series, kind: pl.DataType) -> pl.Series:
    """The values as another type, with times in UTC. A series of nulls alone is converted too, whatever its type is."""
    if piece.null_count() == len(piece):
        return pl.repeat(None, len(piece), dtype=kind, eager=True)
    return in_utc(piece).cast(kind)


def _rows(flags: pl.Series) -> np.ndarray:
    return flags.arg_true().to_numpy().astype(np.int64)


def in_range(table: Table, cells: Cells) -> Cells:
    """The cells of a feature, with messages about numbers that float32 cannot hold: 1e300 counts as empty, 1e-50 as 0."""
    if cells.kind != "number":
        return cells
    magnitudes = np.abs(cells.values.to_numpy())  # a table may have thousands of columns, and polars takes longer for each
    if not ((magnitudes > LARGEST) | ((magnitudes > 0) & (magnitudes < SMALLEST))).any():
        return cells
    sizes, column = cells.values.abs(), cells.column
    huge, tiny = (sizes > LARGEST).fill_null(False), (sizes.is_between(0, SMALLEST, closed="none")).fill_null(False)
    texts = cells.values.cast(pl.String)
    notes = (*cells.notes, *_bad_notes(table, column, texts, huge, "in the range of 32-bit floats"))
    if tiny.any():
        shown = first_of(table, texts, _rows(tiny))
        notes += (f"the column '{column}' has cells that count as 0, too small for 32-bit floats ({tiny.sum():,}): {shown}",)
    return dataclasses.replace(cells, values=cells.values.set(huge, None), notes=notes)


def _bad_notes(table: Table, column: str, cells: pl.Series, bad: pl.Series, kinds: str) -> tuple[str, ...]:
    """A message about the cells that are `bad`, (num_rows,) bool, as they are not `kinds`, such as numbers."""
    rows = _rows(bad)
    if not len(rows):
        return ()
    first = first_of(table, cells.cast(pl.String), rows)
    return (f"the column '{column}' has cells that are not {kinds} and count as empty ({len(rows):,}): {first}",)


def _nearly(table: Table, column: str, cells: pl.Series, bad: pl.Series, kinds: str, is_feature: bool) -> str:
    """A message about a column of texts of which all cells but the `bad` ones, (num_rows,) bool, are numbers or dates."""
    rows = _rows(bad)
    comma, more = (",", ", or allow more with max_bad_fraction") if is_feature else (", or", "")
    return (
        f"the column '{column}' is read as text, since {len(rows):,} of {cells.count():,} cells are not "
        f"{kinds}: {first_of(table, cells, rows)}; correct them{comma} name them in missing=[…] if they mean an empty cell"
        f"{more}"
    )


def first_of(table: Table, cells: pl.Series, rows: np.ndarray) -> str:
    """The first cells of `rows`, with file and line."""
    texts = [visible(shortened(cells[int(row)] or "?", EXCERPT_CHARACTERS)) for row in rows[:MOST_SHOWN]]
    return ", ".join(f"'{text}' ({table.place(int(row))})" for text, row in zip(texts, rows, strict=False))


def unseen(texts: pl.Series, categories: list[str]) -> pl.Series:
    """Which texts, (num_rows,) with null for empty cells, are none of the categories; False for null."""
    return texts.is_not_null() & ~texts.is_in(categories).fill_null(True)
