"""Messages about columns that give the target away, columns that number the rows, a second header, a row of totals, and
times far from the others."""

from typing import Any

import numpy as np
import polars as pl

from ensemble.data.records import EXCERPT_CHARACTERS
from ensemble.errors import shortened
from ensemble.recipes.table import cells, columns, sources
from ensemble.recipes.table.target import Target

LEAK = "the column '{0}' determines the target: add it to drop=[…] unless it is known when you forecast"
OTHER_VALUES = "; if its values in new rows are others, such as the ids of new patients, name it as group='{0}'"
BY_CHANCE = 20.0
"""For a column with more distinct values than the target: it counts as determining the target if, without a relation, more
rows than this would be expected to differ in the target from an earlier row with the same value."""
ROW_NUMBER = "the column '{}' numbers the rows: add it to drop=[…] unless their order means something"

LEAST_NAMES = 3
"""With fewer texts that are in no other row, a first row is no header."""
HEADER = (
    "{} is probably a second header, since {} of its texts, such as '{}', are in no other row: delete it, or it counts as a "
    "row of the table"
)
TOTAL = "the last row with a target, {}, is probably a row of totals, since {}: delete it, or it counts as a training row"
FAR = (
    "time={} is {} in {}, farther from the times of nearly all other rows, {} to {}, than these are from each other: "
    "correct it if it is a mistake, since it decides which features of the time are used"
)
WORDS_OF_TOTALS = r"(?i)^(?:(?:grand )?totals?|overall|sums?|summe|gesamt|total g[eé]n[eé]ral):?$"


def header_notes(table: sources.Table, cells_of: dict[str, cells.Cells]) -> list[str]:
    """A message for each file whose first row is probably a second header, as in exports of surveys: in most columns that
    repeat texts and are not empty in this row, no other row, but the first of another file, has its text."""
    first = np.flatnonzero(np.diff(table.file_number, prepend=-1))
    known = [column.values for column in cells_of.values() if column.kind == "text"]
    known = [values for values in known if values.drop_nulls().n_unique() <= values.count() / 2]
    notes = []
    for row in first:
        texts = [(values[int(row)], values) for values in known if values[int(row)] is not None]
        names = [text for text, values in texts if (values == text).sum() == (values.gather(first) == text).sum()]
        if len(names) >= max(LEAST_NAMES, len(texts) / 2):
            notes.append(HEADER.format(table.place(int(row)), len(names), shortened(names[0], EXCERPT_CHARACTERS)))
    return notes


def total_notes(table: sources.Table, cells_of: dict[str, cells.Cells], target: Target) -> list[str]:
    """A message if the target of the last labelled row is the sum of the others, or if this row alone has a word for a
    total, such as Total, in the first column of texts."""
    labelled = np.flatnonzero(~np.isnan(target.values))
    last, rest = int(labelled[-1]), target.values[labelled[:-1]]
    is_sum = abs(target.values[last] - rest.sum()) < 1e-9 * abs(rest.sum())
    if target.kind == "regression" and is_sum and np.count_nonzero(rest) > len(rest) / 2:  # few numbers may add up by chance
        return [TOTAL.format(table.place(last), "its target is the sum of the others")]
    texts = next((column.values for column in cells_of.values() if column.kind == "text"), pl.Series(dtype=pl.String))
    if texts.str.contains(WORDS_OF_TOTALS).arg_true().to_list() == [last]:
        return [TOTAL.format(table.place(last), f"it holds '{texts[last]}'")]
    return []


def target_notes(
    cells_of: dict[str, cells.Cells], features: list[dict[str, Any]], target: Target, in_train: np.ndarray
) -> list[str]:
    """A message for each feature whose repeated values each have one value of the target, or of which the target is a linear
    function, apart from empty cells."""
    rows = pl.Series(in_train)
    expected = pl.Series("target", target.values).filter(rows)
    values = [cells_of[column].values.filter(rows).alias(f"{column}:") for column in columns.by_column(features)]
    distinct = pl.DataFrame([*values, expected]).unique(maintain_order=True)
    notes = []
    for feature in features:
        if "part" in feature or "text" in feature:
            continue
        # Not by `select`, whose time grows with the number of all columns
        pairs = pl.DataFrame({"value": distinct[f"{feature['column']}:"], "target": distinct["target"]}).drop_nulls()
        num_values = pairs["value"].n_unique()
        is_repeated = 1 < num_values < len(pairs) / 2 and len(pairs) > len(distinct) / 2
        note = ""
        if is_repeated and pairs.n_unique() == num_values:
            counts = pairs["target"].value_counts()["count"]
            num_different = (len(pairs) - num_values) * (1 - float(((counts / len(pairs)) ** 2).sum()))
            if len(counts) == num_values:
                note = LEAK
            elif num_different > BY_CHANCE:
                note = LEAK + OTHER_VALUES
        if target.kind == "regression" and pairs["value"].dtype != pl.String:
            x, y = columns.numbers_of(pairs["value"]), pairs["target"].to_numpy()
            known = np.isfinite(x)
            is_varied = known.sum() > 2 and np.ptp(x[known]) > 0 and np.ptp(y[known]) > 0
            if is_varied and abs(np.corrcoef(x[known], y[known])[0, 1]) > 1 - 1e-9:
                note = LEAK
        if note:
            notes.append(note.format(feature["column"]))
    return notes


def row_number_notes(cells_of: dict[str, cells.Cells], features: list[dict[str, Any]]) -> list[str]:
    """A message for each feature that numbers the rows."""
    names = [feature["column"] for feature in features]
    return [ROW_NUMBER.format(name) for name in names if numbers_rows(name, cells_of[name])]


def numbers_rows(name: str, column: cells.Cells) -> bool:
    """Whether a column numbers the rows in any order, as does an index that pandas or R has written. In a first column
    without a name, which pandas calls `Unnamed: 0`, numbers may be missing, as in the index of a filtered frame."""
    if column.kind != "number" or column.values.null_count():
        return False
    numbers, may_have_gaps = column.values.to_numpy(), name in ("column 1", "Unnamed: 0")
    if not (may_have_gaps or np.ptp(numbers) == len(numbers) - 1):  # checked first, since sorting takes longer
        return False
    steps = np.diff(np.sort(numbers))
    return bool(((steps == 1) | (may_have_gaps & (steps > 1) & (steps % 1 == 0))).all())


def far_time_notes(table: sources.Table, time: cells.Cells, rows: np.ndarray) -> list[str]:
    """A message if at most 1 % of `rows`, or one, have a time such as 2204-05-30 that is farther from those of the others
    than these are from each other. rows : the numbers of the labelled rows."""
    numbers = columns.numbers_of(time.values)
    rows = rows[np.isfinite(numbers[rows])]
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    inner = rows[(few := max(1, len(rows) // 100)) : -few]
    if not inner.size:
        return []
    first, last = numbers[inner[[0, -1]]]
    far = rows[(numbers[rows] < first - (last - first)) | (numbers[rows] > last + (last - first))]
    if not far.size or first == last:
        return []
    names = [columns.name_of(time.values[int(row)]) for row in (far[-1], inner[0], inner[-1])]
    return [FAR.format(time.column, names[0], table.place(int(far[-1])), *names[1:])]
