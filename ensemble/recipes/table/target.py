"""The target of a table: the kind of task, and the target as numbers."""

import dataclasses
from collections import Counter

import numpy as np
import polars as pl

from ensemble.data.prepared import LARGEST_TARGET
from ensemble.data.records import MOST_EXACT
from ensemble.errors import UserError
from ensemble.recipes.table import cells, columns, missing, number_units, sources
from ensemble.recipes.table.dates import LOOKS_LIKE_A_DATE
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.task import METRICS

MAX_WHOLE_CLASSES = 10
"""With more different whole numbers, a target is inferred to be a regression."""
MAX_CLASSES = 100
FEW_CODES = 0.05
"""Numbers such as 05 are no codes if they are at most this fraction of the numbers of a target."""
MAX_RELEVANCE = 30  # the largest label in LightGBM's default label_gain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The target as numbers."""

    kind: str
    """The kind of task."""
    values: np.ndarray
    """(num_rows,) float64, NaN for empty cells."""
    names: tuple[str, ...]
    """Names of the classes in the order of their numbers; empty for regression and ranking."""
    notes: tuple[str, ...] = ()
    """Messages about unusual classes."""


def refuse_bad(table: sources.Table, column: cells.Cells, setting: str) -> None:
    """Raise `UserError` for cells of the column that `setting` names which are not of the column's kind."""
    if len(column.bad):
        raw = pl.concat([sources.as_text(piece) for piece in table.pieces[column.column]])
        are_codes = setting == "target" and column.values.drop_nulls().n_unique() <= MAX_WHOLE_CLASSES
        raise UserError(
            f"{setting}={column.column} has cells that are not {cells.PLURALS[column.kind]} ({len(column.bad):,}): "
            f"{cells.first_of(table, raw, column.bad)}; correct them, or name them in missing=[…]"
            f"{', or add max_bad_fraction=0 if they are classes too' if are_codes else ''}"
        )


def numeric(table: sources.Table, column: cells.Cells, setting: str) -> pl.Series:
    """The values of the column that `setting` names. Raises `UserError` if it holds texts, or cells of another kind."""
    if column.kind == "text":
        if not column.values.count():
            raise UserError(f"{setting}={column.column} is empty in every row: name another column")
        known = column.values.drop_nulls()
        others = known.filter(~known.str.contains(LOOKS_LIKE_A_DATE))
        example = (others if len(others) else known).head(1).to_list()
        notes = f" ({'; '.join(column.notes)})" if column.notes else ""
        problem, fix = "holds no numbers", "write each weight as a number"
        if setting != "weight":
            problem = "holds neither numbers nor dates"
            fix = (
                "write all dates in the same form, such as 2024-01-31, 31/01/2024, 2024-01-31 13:45:00 or "
                "2024-01-31T13:45:00Z"
            )
        raise UserError(
            f"{setting}={column.column} {problem}, such as '{''.join(example)}': {fix}, or name another column{notes}"
        )
    refuse_bad(table, column, setting)
    return column.values


def codes_as_texts(config: PrepareConfig, table: sources.Table, column: cells.Cells) -> cells.Cells:
    """The cells of the target, which become texts if they may be classes and are codes or numbers with a unit."""
    most = MAX_WHOLE_CLASSES if column.form and not config.task else MAX_CLASSES
    if cells.has_numeric_target(config) or column.values.drop_nulls().n_unique() > most:
        return column
    return exact_texts(table, column)


def read_target(config: PrepareConfig, table: sources.Table, column: cells.Cells) -> Target:
    """Infer or check the kind of task, and return the target as numbers."""
    refuse_bad(table, column, "target")
    values, name, kind = column.values, config.target, config.task
    column_notes = "".join(f"; {note}" for note in column.notes)
    if column.marks and not config.missing:
        words = ", ".join(f"'{word}' ({count:,})" for word, count in column.marks.items())
        raise UserError(
            f"target={name} holds {words} among its {cells.PLURALS[column.kind]}: add missing=[{','.join(column.marks)}] if "
            "that means an empty cell, whose row is then predicted, or correct it"
        )
    known = values.drop_nulls()
    different = known.unique().sort().to_list()
    if len(different) < 2:
        what = f"is '{columns.name_of(different[0])}' in every row" if different else "is empty in every row"
        counted = " (the texts of missing=[…] count as empty)" if column.marks else ""
        raise UserError(f"target={name} {what}{counted}, so there is nothing to learn: name another column")
    is_text = values.dtype == pl.String
    is_whole = values.dtype == pl.Boolean or (values.dtype == pl.Float64 and (known == known.floor()).all())
    if not kind:
        few = MAX_CLASSES if is_text else MAX_WHOLE_CLASSES
        if config.metric in METRICS["regression"] and values.dtype == pl.Float64:
            kind = "regression"  # also a few whole numbers, such as a number of visits
        elif len(different) == 2:
            kind = "binary"
        elif is_text and len(known) / 2 < len(different) <= MAX_CLASSES:
            raise UserError(
                f"target={name} has {len(different):,} different texts in {len(known):,} rows, too many for classes: name "
                f"another column, or add task=multiclass{column_notes}"
            )
        elif is_text and MAX_WHOLE_CLASSES < len(different) <= MAX_CLASSES and _are_mostly_numbers(column):
            raise UserError(
                f"target={name} has {len(different):,} different texts, most of which are numbers: correct the others, or "
                f"add task=multiclass if they are classes{column_notes}"
            )
        elif (is_text or is_whole) and len(different) <= few:
            kind = "multiclass"
        elif is_text:
            raise UserError(
                f"target={name} has {len(different):,} different texts, more than {MAX_CLASSES} classes: name another "
                f"column{column_notes}"
            )
        else:
            kind = "regression"
    if kind == "binary" and len(different) != 2:
        raise UserError(
            f"task=binary, but target={name} has {len(different):,} different values: leave task out, or give another task"
        )
    if kind == "multiclass" and (len(different) > MAX_CLASSES or not (is_text or is_whole)):
        raise UserError(
            f"task=multiclass, but target={name} has {len(different):,} different values, and classes must be at most "
            f"{MAX_CLASSES} texts or whole numbers: give task=regression, or name another column"
        )
    if kind in ("regression", "ranking") and is_text:
        raise UserError(
            f"task={kind}, but target={name} holds texts such as '{different[0]}': give task=multiclass, or leave task out"
            f"{column_notes}"
        )
    if kind == "ranking" and not (is_whole and different[0] >= 0 and different[-1] <= MAX_RELEVANCE):
        raise UserError(
            f"task=ranking, but target={name} holds {columns.name_of(different[0])} to {columns.name_of(different[-1])}: "
            f"relevances must be whole numbers from 0 to {MAX_RELEVANCE}; correct them, or give another task"
        )
    metric = config.metric or METRICS[kind][0]
    if metric not in METRICS[kind]:
        raise UserError(f"metric={metric} does not fit a {kind} target: write one of {', '.join(METRICS[kind])}")
    if kind in ("regression", "ranking"):
        numbers = columns.numbers_of(values)
        if len(huge := np.flatnonzero(np.abs(numbers) > LARGEST_TARGET)):
            raise UserError(
                f"target={name} holds {numbers[huge[0]]:g} ({table.place(int(huge[0]))}), beyond {LARGEST_TARGET:g}: "
                "correct it, or name it in missing=[…] if it means an empty cell, whose row is then predicted"
            )
        return Target(kind=kind, values=numbers, names=())
    codes = values.replace_strict(different, range(len(different)), default=None, return_dtype=pl.Float64)
    names = tuple(map(columns.name_of, different))
    folded = Counter(name.casefold() for name in names)
    twins = [name for name in names if folded[name.casefold()] > 1]
    notes = []
    if twins:
        shown = ", ".join(map(repr, twins))
        notes.append(f"the classes {shown} of {name} differ only in upper and lower case: are they different?")
    if marks := [text for text in names if text in missing.MISSING]:
        notes.append(
            f"{', '.join(map(repr, marks))} of {name} is a class: add missing=[{','.join(marks)}] if it means an empty cell"
        )
    return Target(kind=kind, values=columns.numbers_of(codes), names=names, notes=tuple(notes))


def _are_mostly_numbers(column: cells.Cells) -> bool:
    """Whether most texts of a column are numbers, or all have a unit and an ambiguous form, as in $1,200; not if they are
    codes such as 01, about which there is no message."""
    known = column.values.drop_nulls()
    num_numbers = known.cast(pl.Float64, strict=False).count()
    has_message = len(column.notes) > bool(column.marks)  # beside that about marks of missing values
    return has_message and (2 * num_numbers > len(known) or bool(number_units.find(known, 0)))


def exact_texts(table: sources.Table, column: cells.Cells) -> cells.Cells:
    """Convert numbers back to their texts if they have a unit, or if more than `FEW_CODES` of them are codes: with leading
    zeros, or with too many digits to be exact as floats. A column that a file stores as floats is unchanged."""
    pieces = table.pieces[column.column]
    if column.kind != "number" or any(piece.dtype.is_float() for piece in pieces):
        return column
    texts = pl.concat([sources.as_text(piece) for piece in pieces]).str.strip_chars()
    is_long = (column.values.abs() >= MOST_EXACT) & texts.str.contains(r"^[+-]?\d+$")
    num_codes = (texts.str.contains(cells.LEADING_ZERO) | is_long).sum() or 0
    if not number_units.split(column.form)[0] and num_codes <= FEW_CODES * column.values.count():
        return column
    is_empty = column.values.is_null().scatter(column.bad, False)
    return dataclasses.replace(column, kind="text", values=texts.set(is_empty, None), bad=column.bad[:0], notes=())
