"""The forms of numbers in texts: 1234.5, 1,234.5 and 1.234,5. Each file of a table may have its own.

    forms, values = choose(table, "price", cells, decimal="", known=PLAIN, allowed=0, advice="")
    forms, values       # the form of each file; Series of Float64, null where a cell is not a number

The form of a file is the one that leaves the fewest cells unread.
"""

import functools
import operator
import re
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.table.sources import Table

PLAIN, COMMA_GROUPS, DECIMAL_COMMA = "1234.5", "1,234.5", "1.234,5"
BOTH = f"{COMMA_GROUPS} or {DECIMAL_COMMA}"
"""The form of a column with decimal points in some files and decimal commas in others."""
WHOLE = "1234"
"""The form of a column of whole numbers, some 1000 or more: in new rows, the point of 1.234 may separate thousands."""
PATTERNS = {
    COMMA_GROUPS: r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?(e[369])?$",  # e3, e6 and e9 stand for K, M and B
    DECIMAL_COMMA: r"^[+-]?(([1-9]\d{0,2}(\.\d{3})+(,\d*)?|\d+(,\d*)?)([eE][+-]?\d+)?|,\d+)$",
}
"""Patterns of numbers in other forms than Python's. With groups of digits, numbers without groups are read too."""
TWO_GROUPS = r"\.\d{3}\.\d{3}"
THOUSANDS = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
"""Matches numbers such as 1.234, whose point may separate thousands."""
LEAST_HIDDEN = 20
"""With fewer different numbers such as 1.234, a column of decimals may have none with one or two decimals by chance."""
LIKE_CODES, LIKE_VERSIONS = r"^\d+[eE]\d+$", r"^\d+\.\d{1,2}$"
MOST_VERSIONS = 256
"""Columns with more different numbers hold no versions."""
_AMOUNT = r"\d+(?:[.,]\d+)*"
NEGATIVE = (
    rf"^(?:\((\p{{Sc}}?\s?{_AMOUNT}(?:\s?[%\p{{Sc}}])?)\)|(\p{{Sc}})\s?\(({_AMOUNT})\)|({_AMOUNT})-"
    rf"|−(\pL{{0,3}}\p{{Sc}}?\s?{_AMOUNT}(?:\s?[^\d\s.,_]\D{{0,19}})?))$"
)
"""Negative numbers as accounting, Excel, SAP and typesetting write them: (12.5), ($12.5), $(12.5), 12.5- and −12.5 °C."""
SEPARATOR = "[ \u00a0\u2009\u202f'’]"
GROUPED = (
    rf"^[+−-]?\(?(?:\pL{{0,3}}\p{{Sc}}|[A-Z]{{3}}\s|kr\.?)?\s?[1-9]\d{{0,2}}(?:{SEPARATOR}\d{{3}})+(?:[.,]\d+)?"
    r"(?:\s?[^\d\s.,_]\D{0,19})?$"
)
"""Matches numbers whose thousands are separated by blanks or apostrophes: 1 234 567, (1 234), 1 234,5 € and CHF 1'234.50."""


def respelled(cells: pl.Series) -> pl.Series:
    """The cells with a minus sign before the negative numbers of `NEGATIVE`, and those of `GROUPED` without separators."""
    joined = cells
    for _ in range(2):  # a match cannot begin with the last digit of the match before it
        joined = joined.str.replace_all(rf"(\d){SEPARATOR}(\d{{3}})", "${1}${2}")
    cells = cells.zip_with(~cells.str.contains(GROUPED).fill_null(False), joined)
    return cells.str.replace(NEGATIVE, "-${1}${2}${3}${4}${5}")


def of_column(table: Table, cells: pl.Series, forms: Sequence[str]) -> str:
    """The form in which new rows of a column are read if they are ambiguous. forms : of the files; JSON does not count."""
    if len(set(forms)) > 1:
        parts = zip(table.by_file(cells), forms, table.are_json, strict=True)
        marks = {_mark(form) for part, form, is_json in parts if not is_json and part.str.contains("[.,]").any()}
        if len(marks) > 1:
            return BOTH
    return next((form for form in forms if form != PLAIN), PLAIN)


def notes(table: Table, column: str, forms: Sequence[str]) -> tuple[str, ...]:
    """Messages about the form of the numbers of each file, if it is not the default."""
    messages = []
    for form in dict.fromkeys(form for form in forms if form != PLAIN):
        where = "" if len(set(forms)) == 1 else f" in {table.files[forms.index(form)].name}"
        messages.append(f"the column '{column}' is read as numbers that are written as {form}{where}")
    return tuple(messages)


def code_notes(column: str, texts: pl.Series) -> tuple[str, ...]:
    """A message about numbers that are probably codes such as 1E5 or versions such as 3.1 and 3.10."""
    known = texts.drop_nulls()
    pattern = next((pattern for pattern in (LIKE_CODES, LIKE_VERSIONS) if re.match(pattern, known[0])), None)
    if pattern is None or (pattern == LIKE_VERSIONS and known.n_unique() > MOST_VERSIONS):
        return ()
    texts_once = sorted(known.unique().to_list())
    if not all(re.match(pattern, text) for text in texts_once):
        return ()
    shown = f"'{known[0]}' is {float(known[0]):.0f}"
    if pattern == LIKE_VERSIONS:
        longer = [text for text in texts_once if re.search("[1-9]0$", text) and text[:-1] in texts_once]
        if not longer:
            return ()
        shown = f"'{longer[0]}' is {longer[0][:-1]}"
    return (f"the column '{column}' is read as numbers, so that {shown}: add it to categorical=[…] if these are codes",)


def choose(
    table: Table, column: str, cells: pl.Series, decimal: str, known: str, allowed: float, advice: str
) -> tuple[list[str], pl.Series]:
    """The form of the numbers of each file, which leaves the fewest of its cells unread, and the values of all cells.

    If several forms leave equally few cells unread, the form is `known` if that is one of them, else the one with the
    decimal mark of the other files. Raises `UserError`, with `advice`, if neither rule applies, at most `allowed` cells of
    the file are unread, and the forms give different values. Raises it too for a file whose numbers are all like 1.234 and
    987, if `decimal` is empty and another file has decimal commas. Numbers of JSON have a decimal point.
    """
    files = []
    marks = set()
    for part, is_json in zip(table.by_file(cells), table.are_json, strict=True):
        is_json = is_json and not part.str.contains(",").any()
        best = _best_readings(part, "" if is_json else decimal, PLAIN if is_json else known)
        one, values = next(iter(best.items()))
        is_read = (part.is_not_null() & values.is_null()).sum() <= allowed
        if is_read and len(best) == 1 and part.str.contains("[.,]").any():
            marks.add(_mark(one))
        files.append((part, is_json, best, is_read))
    forms = []
    for part, is_json, best, is_read in files:
        alike = [form for form in best if {_mark(form)} == marks]
        form = known if known in best else alike[0] if len(alike) == 1 else next(iter(best))
        for other in best if is_read and form != known and form not in alike else ():
            if (differ := best[other].ne_missing(best[form])).any():
                raise UserError(
                    f"the column '{column}' holds numbers such as '{part[int(differ.arg_max() or 0)]}', written as {form} "
                    f"or as {other}{advice}"
                )
        if form == PLAIN and "," in marks and not (is_json or decimal):
            are_read = best[form].is_not_null()
            refuse_thousands(
                column, part.filter(are_read), "another file has decimal commas: write the numbers of all files alike"
            )
        forms.append(form)
    return forms, pl.concat([best[form] for (_, _, best, _), form in zip(files, forms, strict=True)])


def are_readable(texts: pl.Series, decimal: str, known: str) -> pl.Series:
    """Which texts, (num_texts,) bool, are finite numbers in some form. known : the form of training."""
    readings = [values.is_finite().fill_null(False) for _, values in _numbers(texts, decimal, known)]
    return functools.reduce(operator.or_, readings)


def read_otherwise(texts: pl.Series, decimal: str, known: str) -> pl.Series:
    """Which numbers of a request, (num_rows,) bool, the form of the others leaves unread, or reads as other numbers than the
    form `known` of training."""
    readings, best = dict(_numbers(texts, decimal, known)), _best_readings(texts, decimal, known)
    values = best.get(known, next(iter(best.values())))
    is_unread = values.is_null() & pl.DataFrame(readings).select(pl.coalesce("*")).to_series().is_not_null()
    in_training = readings.get(known, values)
    return is_unread | (in_training.is_not_null() & in_training.ne_missing(values))


def refuse_thousands(column: str, texts: pl.Series, why: str) -> None:
    """Raise `UserError` if all numbers are like 1.234 and 987, which may mean 1234 and 987.

    why : the reason why the points may separate thousands, and the fix.
    """
    points = texts.filter(texts.str.contains(".", literal=True))
    if len(points) and texts.drop_nulls().str.contains(PATTERNS[DECIMAL_COMMA]).all():
        raise UserError(
            f"the column '{column}' holds numbers such as '{points[0]}', whose point may be decimal or, as in 1.234,5, "
            f"separate thousands, since {why}"
        )


def refuse_hidden_thousands(table: Table, column: str, cells: pl.Series, values: pl.Series, advice: str) -> None:
    """Raise `UserError` if in a file at least `LEAST_HIDDEN` different numbers such as 1.234 stand beside whole numbers
    below 1000, and no other number has a point.

    Such columns come from writers who separate thousands by points. Writers who shorten decimals would also write 1.25.
    Numbers of JSON have a decimal point.
    """
    for texts, numbers, is_json in zip(table.by_file(cells), table.by_file(values), table.are_json, strict=True):
        known = numbers.drop_nulls().to_numpy()
        is_whole = known == np.floor(known)
        is_usual = not (np.abs(known) < 1000).all() or is_whole.all() or not (is_whole & (known != 0)).any()
        if is_json or is_usual:
            continue
        has_point = texts.str.contains(".", literal=True)
        pointed, whole = texts.filter(has_point & numbers.is_not_null()), texts.filter(~has_point & (numbers != 0))
        if len(whole) and pointed.n_unique() >= LEAST_HIDDEN and pointed.str.contains(THOUSANDS).all():
            raise UserError(
                f"the column '{column}' holds numbers such as '{pointed[0]}' and '{whole[0]}', none with one or two "
                f"decimals: the points may be decimal or separate thousands{advice}"
            )


def _mark(form: str) -> str:
    """The decimal mark of a form of numbers."""
    return "," if form == DECIMAL_COMMA else "."


def _best_readings(cells: pl.Series, decimal: str, known: str) -> dict[str, pl.Series]:
    """The forms of numbers that leave the fewest cells unread, each with its values."""
    readings = dict(_numbers(cells, decimal, known))
    fewest = min(values.null_count() for values in readings.values())
    return {form: values for form, values in readings.items() if values.null_count() == fewest}


def _numbers(cells: pl.Series, decimal: str, known: str) -> Iterator[tuple[str, pl.Series]]:
    """The possible forms of numbers, each with the values of the cells, null for cells in another form.

    If no cell has a comma, forms other than 1234.5 are possible only if `decimal` is a comma, if `known` includes the form
    1.234,5 or is `WHOLE`, or if a cell is like 1.234.567.
    """
    plain = cells.cast(pl.Float64, strict=False).fill_nan(None)
    if decimal != ",":
        yield PLAIN, plain
    if decimal != "," and known not in (DECIMAL_COMMA, BOTH, WHOLE) and not cells.str.contains(f",|{TWO_GROUPS}").any():
        return
    if decimal != ",":
        grouped = cells.str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)
        yield COMMA_GROUPS, grouped.set(plain.is_null() & ~cells.str.contains(PATTERNS[COMMA_GROUPS]).fill_null(False), None)
    if decimal != ".":
        swapped = cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        swapped = swapped.cast(pl.Float64, strict=False)
        yield DECIMAL_COMMA, swapped.set(~cells.str.contains(PATTERNS[DECIMAL_COMMA]).fill_null(False), None)
