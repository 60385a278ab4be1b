"""Columns whose numbers or dates are ambiguous, read like the other columns of the table.

A table is usually written by one program. If `1,004` may be 1004 or 1.004, and another column has 33.51, it is 1004. If
07/01/2013 may be in January or in July, and another column has 06/30/2014, it is in July.
"""

import dataclasses
from typing import Any

import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.table import cells, dates, number_forms, number_units
from ensemble.recipes.table.cells import Cells
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.sources import Table

DECIMALS = r"\d\.(?:\d{1,2}|\d{4,})(?:\D|$)"
"""Matches numbers such as 33.51. The point of 1.234 may separate thousands."""
SAME = {"decimal": "decimal mark", "dates": "order of day and month"}
"""What an ambiguous column has in common with another one, by the setting that would give it."""


def read(table: Table, names: list[str], config: PrepareConfig) -> dict[str, Cells]:
    """The cells of the columns `names`. A column that is ambiguous by itself has the decimal mark, and the order of day and
    month, of the other columns, with a message. Raises `UserError` if these have none, or several."""
    cells_of: dict[str, Cells] = {}
    errors: dict[str, UserError] = {}
    for name in names:
        try:
            cells_of[name] = cells.read(table, name, config)
        except UserError as error:
            errors[name] = error
    unclear = [name for name in names if name in errors or cells_of[name].is_ambiguous or _has_any_order(cells_of[name])]
    if not unclear:
        return cells_of
    examples = {"decimal": _decimal_marks(table, cells_of), "dates": _orders(cells_of)}
    found: dict[str, Any] = {
        setting: next(iter(columns))
        for setting, columns in examples.items()
        if len(columns) == 1 and not getattr(config, setting)
    }
    for name in unclear:
        if not found and name in errors:
            raise errors[name]
        column = cells.read(table, name, dataclasses.replace(config, **found))
        setting = "dates" if column.kind == "date" else "decimal"
        if setting in found and column.kind in ("date", "number"):
            other = examples[setting][found[setting]]
            note = f"the column '{name}' could be read in two ways: it has the {SAME[setting]} of the column '{other}'"
            column = dataclasses.replace(column, notes=(*column.notes, note))
        cells_of[name] = column
    return {name: cells_of[name] for name in names}


def _decimal_marks(table: Table, cells_of: dict[str, Cells]) -> dict[str, str]:
    """The decimal marks of the numbers that are stored as text, each with a column that has it. JSON does not count."""
    marks: dict[str, str] = {}
    for name, column in cells_of.items():
        unit, form = number_units.split(column.form)
        if column.kind != "number" or unit in number_units.TIMES:
            continue
        if number_forms.DECIMAL_COMMA in form:
            marks.setdefault(",", name)
        texts = [
            piece
            for piece, is_json in zip(table.pieces[name], table.are_json, strict=True)
            if piece.dtype == pl.String and not is_json
        ]
        if form != number_forms.DECIMAL_COMMA and any(piece.str.contains(DECIMALS).any() for piece in texts):
            marks.setdefault(".", name)
    return marks


def _orders(cells_of: dict[str, Cells]) -> dict[str, str]:
    """The orders of day and month of the dates, each with a column that has it."""
    orders: dict[str, str] = {}
    for name, column in cells_of.items():
        for form in column.form.split(dates.SEPARATOR) if column.kind == "date" and not _has_any_order(column) else ():
            if order := dates.order_of(form):
                orders.setdefault(order, name)
    return orders


def _has_any_order(column: Cells) -> bool:
    """Whether both orders of day and month give the same dates, as 01/01/2024 and 02/02/2024: new rows may have others."""
    if column.kind != "date" or not any(map(dates.order_of, column.form.split(dates.SEPARATOR))):
        return False
    return bool((column.values.dt.day() == column.values.dt.month()).all())
