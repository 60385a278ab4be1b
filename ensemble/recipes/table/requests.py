"""Requests to the service of an ensemble fitted on a table: rows as JSON objects, checked and converted to a table.

    {"rows": [{"age": 39, "job": "clerk", "joined": "2024-01-31"}, …]}

A column that is neither a feature nor in the settings `group` or `id` is ignored, even if it holds lists or objects. A
column that a row lacks is missing in this row, as in a file.
"""

import json
import math
import re
from collections.abc import Collection
from typing import Annotated, Any

import polars as pl
import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ensemble.data.records import MOST_EXACT, is_number
from ensemble.errors import listed, shortened
from ensemble.recipes.table import dates, number_forms, number_units
from ensemble.recipes.table.columns import by_column, kind_of, name_of
from ensemble.recipes.table.missing import MISSING

PLAIN_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,18})?", re.ASCII)
"""Matches numbers such as 1234.5, which columns of any form may have."""
MIXED = "the column '{}' holds JSON numbers too: write all its values as numbers or all as texts, missing ones as null"
FORMS = "other values of the column '{}' are written in another form: write all values of a request alike"
Value = bool | int | float | str | list[Any] | dict[str, Any] | None


def _as_in_files(row: dict[str, Value]) -> dict[str, Value]:
    """The row with the names of columns without surrounding blanks, and None for NaN."""
    stripped: dict[str, Value] = {}
    for name, value in row.items():
        if (name := name.strip()) in stripped:
            raise ValueError(f"the row has two columns '{name}': keep one of them")
        stripped[name] = None if value != value else value
    return stripped


class Request(BaseModel):
    """New rows."""

    model_config = ConfigDict(extra="forbid")
    rows: Annotated[list[Annotated[dict[str, Value], AfterValidator(_as_in_files)]], Field(min_length=1)]


def counts(request: Request) -> dict[str, int]:
    """Number of rows in a request."""
    return {"rows": len(request.rows)}


def problem(request: Request, training: dict[str, Any]) -> tuple[list[str | int], str] | None:
    """Location and error message of the first value that does not fit its column, or an error message about
    all rows if they have no column of a feature; None if all fit.

    training : the manifest of the training data.
    """
    kinds = columns(training)
    missing = training["config"]["missing"] or MISSING
    form_of = {name: features[0].get("form", "") for name, features in by_column(training["features"]).items()}
    form_of = {name: "" if form == number_forms.WHOLE else form for name, form in form_of.items()}
    date_forms = {name: form_of[name] for name, kind in kinds.items() if kind == "date"}
    unread = _texts_that_are_no_dates(request, date_forms, missing)
    number_columns = [name for name, kind in kinds.items() if kind == "number"]
    no_numbers = {name: _no_numbers(request, name, form_of[name], training["config"]) for name in number_columns}
    for number, row in enumerate(request.rows):
        for name, value in row.items():
            if name not in kinds or _is_missing(value, missing):
                continue
            is_unread = (name in unread and unread[name] == _cell(value)) or (
                isinstance(value, str) and value.strip() in no_numbers.get(name, ())
            )
            if is_unread or not _fits(kinds[name], value):
                kind = kinds[name] if kinds[name] == "true or false" else f"{kinds[name]}s"
                kind += " with decimal commas" if kind == "numbers" and training["config"].get("decimal") == "," else ""
                shown = shortened(json.dumps(value))
                return ["rows", number, name], f"{shown} does not fit: the column '{name}' holds {kind}"
    for name, kind in kinds.items():
        cells = {number: row.get(name) for number, row in enumerate(request.rows)}
        cells = {number: value for number, value in cells.items() if value is not None and str(value).strip()}
        if odd := _in_another_form(kind, cells, form_of[name], training["config"], missing):
            return ["rows", odd[0], name], f"{shortened(json.dumps(cells[odd[0]]))} does not fit: {odd[1].format(name)}"
    if not any(name in kinds for row in request.rows for name in row):
        return ["rows"], f"no row has a column that the members learned from: {listed(kinds, 9)}"
    return None


def _in_another_form(
    kind: str, cells: dict[int, Value], form: str, config: dict[str, Any], missing: Collection[str]
) -> tuple[int, str] | None:
    """The row of the first value of a column in another form than the others, and an error message; None if there is none.
    Such a value could be read differently if it were sent without the others.

    cells : by row, without empty ones. form : of the values in training.
    """
    has_commas = config.get("decimal") == ","
    texts = {row: value for row, value in cells.items() if isinstance(value, str)}
    texts = {row: text.strip() for row, text in texts.items() if has_commas or not _is_missing(text, missing)}
    are_both = texts and any(isinstance(value, int | float) for value in cells.values())
    if kind == "number" and are_both and (form or has_commas or not all(map(is_number, texts.values()))):
        return next(iter(texts)), MIXED
    if kind == "number" and len(set(texts.values())) > 1 and (form or not all(map(PLAIN_NUMBER.fullmatch, texts.values()))):
        unit, numbers = number_units.split(form)
        signed = number_forms.respelled(pl.Series(list(texts.values())))
        bare = number_units.remove(signed, unit)
        decimal = "" if unit in number_units.TIMES else config.get("decimal", "")
        is_other = number_forms.read_otherwise(bare, decimal, numbers)
        if number_units.is_required(unit) and (bare != signed).any():  # 5 beside 12 % would count as empty
            is_other |= (bare == signed) & ~bare.str.contains(number_units.ZERO) & ~bare.is_in(missing)
        if is_other.any():
            return list(texts)[is_other.arg_max() or 0], FORMS
    if kind == "date":
        days = {row: _cell(value) for row, value in cells.items() if not _is_missing(value, missing)}
        if len(set(days.values())) < 2:
            return None
        texts_of_days = pl.Series(list(days.values()), dtype=pl.String)
        unread = dates.in_one_form(texts_of_days, config.get("dates", ""), form).is_null()
        if unread.any():
            return list(days)[unread.arg_max() or 0], FORMS
    return None


def _cell(value: Value) -> str:
    """The text of a value in a file, without surrounding blanks. pandas writes 3 as 3.0 in a column with missing values."""
    return name_of(value) if isinstance(value, float) else str(value).strip()


def _is_missing(value: Value, missing: Collection[str]) -> bool:
    return not isinstance(value, bool) and (str(value).strip() in missing or _cell(value) in missing)


def _texts_that_are_no_dates(request: Request, forms: dict[str, str], missing: Collection[str]) -> dict[str, str]:
    """For each column of dates that has one, the first text or number that is not a date in any form.

    forms : of the dates in training, by column
    """
    unread = {}
    for name, form in forms.items():
        values = dict.fromkeys(value for row in request.rows if isinstance(value := row.get(name), str | int | float))
        texts = [_cell(value) for value in values if not _is_missing(value, missing)]
        unread[name] = dates.first_unread(pl.Series([text for text in texts if text], dtype=pl.String), form)
    return {name: text for name, text in unread.items() if text is not None}


def _no_numbers(request: Request, name: str, form: str, config: dict[str, Any]) -> set[str]:
    """The texts of a column of numbers, without surrounding blanks, that are not numbers with the separators, signs and unit
    of numbers in files. form : of the numbers in training. All texts are examined at once, which takes much less time."""
    decimal = config.get("decimal", "")
    values = dict.fromkeys(
        text for row in request.rows if isinstance(value := row.get(name), str) and (text := value.strip())
    )
    texts = [text for text in values if decimal == "," or not PLAIN_NUMBER.fullmatch(text)]
    if not texts:  # most columns
        return set()
    unit, numbers = number_units.split(form)
    bare = number_units.remove(number_forms.respelled(pl.Series(texts)), unit)
    are_read = number_forms.are_readable(bare, "" if unit in number_units.TIMES else decimal, numbers)
    return {text for text, is_read in zip(texts, are_read, strict=True) if not is_read}


def tables(request: Request) -> tuple[pa.Table, None]:
    """The rows, and None for products: the arguments of `Predictor.predict`.

    Values of several types in one column become texts, unless all are numbers. So do columns with lists or objects, of which
    no feature is computed, and columns with whole numbers from 2^53 on, which stay exact as texts.

    Blank texts become missing values. In a column of texts a float such as 5.125 becomes '5.1250', since the point of
    '5.125' would separate thousands if the texts have decimal commas.
    """
    names = dict.fromkeys(name for row in request.rows for name in row)
    arrays = {}
    for name in names:
        values = [row.get(name) for row in request.rows]
        values = [None if isinstance(value, str) and not value.strip() else value for value in values]
        types = {type(value) for value in values if value is not None}
        # As texts, long whole numbers stay exact, also beyond the 64 bits of Arrow's integers
        has_long = any(isinstance(value, int) and abs(value) >= MOST_EXACT for value in values)
        if has_long or types & {list, dict} or (len(types) > 1 and types != {int, float}):
            values = [None if value is None else _text(value) for value in values]
        arrays[name] = pa.array(values)
    return pa.table(arrays), None


def _text(value: Value) -> str:
    text = json.dumps(value) if isinstance(value, list | dict) else name_of(value)
    return f"{text}0" if isinstance(value, float) and re.match(number_forms.THOUSANDS, text) else text


def facts(training: dict[str, Any]) -> dict[str, Any]:
    """Entries of the response of /schema, for an ensemble fitted on data with the manifest `training`."""
    texts = {feature["column"]: feature["values"] for feature in training["features"] if "values" in feature}
    columns_of_rows = {
        name: {"holds": kind, **({"values": texts[name]} if name in texts else {})}
        for name, kind in columns(training).items()
    }
    return {"target": training["target"], "task": training["task"]["kind"], "columns": columns_of_rows}


def answer(metadata: dict[str, str]) -> dict[str, Any]:
    """Further entries of a response, beside the forecast: none for a table."""
    return {}


def columns(training: dict[str, Any]) -> dict[str, str]:
    """The kind of values of each column from which features are computed."""
    kinds = {feature["column"]: kind_of(feature) for feature in training["features"]}
    return {column: "true or false" if kind == "truth" else kind for column, kind in kinds.items()}


def _fits(kind: str, value: Value) -> bool:
    """Whether a value can be a cell of a column that holds `kind`; texts in columns of numbers and dates are not checked."""
    if isinstance(value, list | dict):
        return False
    if value is None or kind == "text":
        return True
    if kind == "true or false":
        return isinstance(value, str) or value in (0, 1)
    if isinstance(value, bool):
        return False
    if kind == "date":
        return not isinstance(value, float) or value.is_integer()
    return value not in (math.inf, -math.inf)
