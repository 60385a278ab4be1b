"""The rows of training, read again as new rows: their cells must be the same numbers."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_tables import prepare, rows_of

from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.recipes.table import new_data, requests

NUM_ROWS = 60
GERMAN = ["1.234,5", "12.345,5", "987,25"]


def write_csv(file: Path, cells: Sequence[str], other: Sequence[str] = ("1", "2", "4")) -> Path:
    """`NUM_ROWS` rows of the column `c`, which repeats `cells`, and `other`."""
    lines = [f"{cells[row % len(cells)]};{other[row % len(other)]};{row % 2}\n" for row in range(NUM_ROWS)]
    file.write_text("c;other;y\n" + "".join(lines))
    return file


def read_again(folder: Path, manifest: dict[str, Any], file: Path) -> tuple[list[float | None], list[str]]:
    """The column `c` of new rows, None for an empty cell, and the messages. manifest : the manifest of training."""
    new = new_data.prepare(manifest, {"out": str(folder / "again"), "source": [str(file)]})
    rows = pl.from_arrow(open_table(folder / "again/rows/forecast")).sort("row_id")
    return rows["c"].fill_nan(None).to_list(), [note for note in new["notes"] if "'c'" in note]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("c;other\n1.234;1\n987;2\n", [1234.0, 987.0]),
        ("c;other\n1.234;1\n2.345.678;2\n", [1234.0, 2345678.0]),
        ("c;other\n1.25;1\n1.5;2\n", [1.25, 1.5]),
        ('{"c": 1.125, "other": 1}\n{"c": 2, "other": 1}\n', [1.125, 2.0]),
        (pl.DataFrame({"c": [1.125, None], "other": [1, 2]}), [1.125, None]),
    ],
    ids=["thousands", "millions", "points", "json", "parquet"],
)
def test_a_point_means_what_it_meant_in_training(new: str | pl.DataFrame, expected: list[float], tmp_path: Path) -> None:
    """1.234 would be 1234 in training, beside 987,25, and a decimal number in a new file without commas."""
    manifest = prepare(tmp_path, write_csv(tmp_path / "a.csv", GERMAN))
    file = tmp_path / "new"
    if isinstance(new, str):
        file.write_text(new)
    else:
        new.write_parquet(file)
    values, notes = read_again(tmp_path, manifest, file)
    assert values == expected
    assert bool(notes) == (1234.0 in expected)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("c;other\nTrue;1\nFalse;2\n;3\n", [1.0, 0.0, None]),
        ('{"c": true, "other": 1}\n{"c": 0, "other": 1}\n', [1.0, 0.0]),
        (pl.DataFrame({"c": [True, None, False], "other": [1, 2, 3]}), [1.0, None, 0.0]),
    ],
    ids=["csv", "json", "parquet"],
)
def test_booleans_are_the_ones_and_zeros_of_training(new: str | pl.DataFrame, expected: list[float], tmp_path: Path) -> None:
    """pandas writes True into a file where another program wrote 1: the cells would be empty."""
    manifest = prepare(tmp_path, write_csv(tmp_path / "a.csv", ["1", "0"]))
    file = tmp_path / "new"
    if isinstance(new, str):
        file.write_text(new)
    else:
        new.write_parquet(file)
    assert read_again(tmp_path, manifest, file) == (expected, [])


def test_thousands_and_millions_without_a_comma_are_numbers(tmp_path: Path) -> None:
    """1.234.567 would be a text or an empty cell, and 12.345 beside it a decimal number."""
    rows = rows_of(tmp_path, prepare(tmp_path, write_csv(tmp_path / "a.csv", ["1.234.567", "12.345", "987"])))
    assert sorted(rows["c"].unique()) == [987.0, 12345.0, 1234567.0]


@pytest.mark.parametrize(
    ("cells", "is_refused"), [(["12.345", "987"], True), (["12.345", "0.125"], False), (["7", "9"], False)]
)
def test_points_beside_decimal_commas_are_asked_about(cells: list[str], is_refused: bool, tmp_path: Path) -> None:
    """12.345 people in a German table would be read as a decimal number, which is less than 987."""
    file = write_csv(tmp_path / "a.csv", cells, other=["1,5", "2,25", "4,125"])
    if not is_refused:
        prepare(tmp_path, file)
        return
    with pytest.raises(UserError, match=r"the column 'c' holds numbers such as '12\.345', whose point .*: add decimal=,"):
        prepare(tmp_path, file)
    rows = rows_of(tmp_path, prepare(tmp_path, file, decimal=","))
    assert sorted(rows["c"].unique()) == [987.0, 12345.0]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([datetime.datetime(1, 1, 1), *[datetime.datetime(2024, 1, 1)] * (NUM_ROWS - 1)], pa.timestamp("us")),
        pa.array([datetime.date(1, 1, 1), *[datetime.date(2024, 1, 1)] * (NUM_ROWS - 1)]),
        pa.array(np.linspace(0, 1, NUM_ROWS).astype(np.float16)),
    ],
    ids=["datetime", "date", "float16"],
)
def test_cells_of_parquet_are_the_same_in_new_rows(column: pa.Array, tmp_path: Path) -> None:
    """A date of the year 1, a placeholder, would be empty in new rows only, or 16-bit floats would be zeros."""
    table = pa.table({"c": column, "other": range(NUM_ROWS), "y": [0, 1] * (NUM_ROWS // 2)})
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    values, notes = read_again(tmp_path, manifest, tmp_path / "a.parquet")
    assert (values, notes) == (rows_of(tmp_path, manifest).sort("row_id")["c"].to_list(), [])


def test_numbers_and_dates_of_parquet_do_not_become_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparation of one new row of 3,000 columns of numbers would take twice the CPU time."""
    days = [datetime.date(2024, 1, 1 + row % 9) for row in range(NUM_ROWS)]
    frame = pl.DataFrame({"c": range(NUM_ROWS), "day": days, "y": [0, 1] * (NUM_ROWS // 2)})
    frame.write_parquet(tmp_path / "a.parquet")
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    monkeypatch.setattr("ensemble.recipes.table.cells.as_text", lambda piece: pytest.fail(f"{piece.dtype} becomes text"))
    assert read_again(tmp_path, manifest, tmp_path / "a.parquet") == (list(range(NUM_ROWS)), [])


def test_numbers_beside_texts_of_another_file_are_the_same_categories_in_new_rows(tmp_path: Path) -> None:
    """3.0 of Parquet would be the category '3.0' in training and '3' in new rows, where it would count as empty."""
    numbers = {"c": [3.0, 4.0] * (NUM_ROWS // 2), "other": range(NUM_ROWS), "y": [0, 1] * (NUM_ROWS // 2)}
    pq.write_table(pa.table(numbers), tmp_path / "a.parquet")
    write_csv(tmp_path / "b.csv", ["u", "v"])
    manifest = prepare(tmp_path, tmp_path / "a.parquet", tmp_path / "b.csv")
    values, notes = read_again(tmp_path, manifest, tmp_path / "a.parquet")
    assert (values, notes) == (rows_of(tmp_path, manifest).sort("row_id")["c"].to_list()[:NUM_ROWS], [])
    assert len(set(values)) == 2


@pytest.mark.parametrize(
    ("cells", "new", "expected"),
    [
        (["False", "True", "Unknown"], [True, False, None], [1.0, 0.0, None]),
        (["FALSE", "TRUE", "Unknown"], [True, False, None], [1.0, 0.0, None]),
        (["1.0", "3.0", "X"], [3.0, 1.0, None], [1.0, 0.0, None]),
        (["1.0", "3.0", "X"], [3, 1, 4], [1.0, 0.0, None]),
        (["false", "true", "Unknown"], ["True", "FALSE", "X"], [2.0, 1.0, None]),
        (["1e-05", "2.5e-07", "X"], [1e-5, 2.5e-7, None], [0.0, 1.0, None]),
        (["0.00001", "0.0001", "X"], ["1e-05", "0.0001", "1e-06"], [0.0, 1.0, None]),
    ],
    ids=["booleans", "capitals", "floats", "integers", "texts", "small floats", "texts of small floats"],
)
def test_categories_of_a_file_are_the_booleans_and_numbers_of_a_frame(
    cells: list[str], new: list[Any], expected: list[float | None], tmp_path: Path
) -> None:
    """Without a row of Unknown the column of a frame has booleans: all its cells would count as empty."""
    manifest = prepare(tmp_path, write_csv(tmp_path / "a.csv", cells))
    pl.DataFrame({"c": new, "other": [1, 2, 3]}).write_parquet(tmp_path / "new.parquet")
    values, notes = read_again(tmp_path, manifest, tmp_path / "new.parquet")
    assert (values, len(notes)) == (expected, int(None not in new))


def test_a_number_of_a_request_is_a_category_beside_a_text(tmp_path: Path) -> None:
    """A request has 5.1250 for 5.125 beside a text: the cell would count as empty."""
    manifest = prepare(tmp_path, write_csv(tmp_path / "a.csv", ["5.125", "7.25", "X"]))
    table, _ = requests.tables(requests.Request(rows=[{"c": 5.125, "other": 1}, {"c": "X", "other": 2}]))
    pq.write_table(table, tmp_path / "new.parquet")
    assert read_again(tmp_path, manifest, tmp_path / "new.parquet") == ([0.0, 2.0], [])


@pytest.mark.parametrize(
    ("native", "texts", "names"),
    [
        ([True, False], ["True", "False", "Unknown"], ["Unknown", "false", "true"]),
        ([1.0, 2.5], ["1.0", "2.5", "X"], ["1", "2.5", "X"]),
        ([1, 2], ["1.0", "2.0", "X"], ["1", "2", "X"]),
        ([1e-5, 2.5], ["1e-05", "2.5", "X"], ["0.00001", "2.5", "X"]),
    ],
    ids=["booleans", "floats", "integers", "small floats"],
)
@pytest.mark.parametrize("categorical", [(), ("c",)])
def test_a_category_is_the_same_in_parquet_and_csv(
    native: list[Any], texts: list[str], names: list[str], categorical: tuple[str, ...], tmp_path: Path
) -> None:
    """True and true, or 1.0 and 1, would be two categories of a feature, and two classes of a target, without a message."""
    file = {"c": native * (NUM_ROWS // 2), "other": range(NUM_ROWS), "y": [0, 1] * (NUM_ROWS // 2)}
    pl.DataFrame(file).write_parquet(tmp_path / "a.parquet")
    files = tmp_path / "a.parquet", write_csv(tmp_path / "b.csv", texts)
    manifest = prepare(tmp_path, *files, categorical=categorical)
    assert next(feature["values"] for feature in manifest["features"] if feature["column"] == "c") == names
    for path in files:
        assert None not in read_again(tmp_path / path.stem, manifest, path)[0]
    assert prepare(tmp_path / "classes", *files, target="c")["target"]["names"] == names


def test_a_date_after_the_year_9999_is_named(tmp_path: Path) -> None:
    """The run would end in an OverflowError or a PanicException; a column of times would be empty without a message."""
    times = pa.array([600_000_000_000_000, *range(1, NUM_ROWS)], pa.timestamp("ms"))
    far = pa.array([2**62, *range(1, NUM_ROWS)], pa.timestamp("ms"))
    pq.write_table(pa.table({"c": far, "y": [0, 1] * (NUM_ROWS // 2)}), tmp_path / "far.parquet")
    assert "'year 249142' (far.parquet:1)" in prepare(tmp_path / "far", tmp_path / "far.parquet")["notes"][0]
    pq.write_table(pa.table({"c": times, "y": [0, 1] * (NUM_ROWS // 2)}), tmp_path / "a.parquet")
    what = "cells that are not dates of the years 1 to 9999 and count as empty (1)"
    manifest = prepare(tmp_path, tmp_path / "a.parquet")
    assert manifest["notes"] == [f"the column 'c' has {what}: 'year 20983' (a.parquet:1)"]
    assert read_again(tmp_path, manifest, tmp_path / "a.parquet")[1] == manifest["notes"]
    with pytest.raises(UserError, match=r"time=c has cells that are not dates \(1\): '\+20983-"):
        prepare(tmp_path, tmp_path / "a.parquet", time="c", out=str(tmp_path / "other"))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "UTC")])
def test_a_time_without_end_is_no_traceback(kind: pa.DataType, tmp_path: Path) -> None:
    """DuckDB writes the time infinity as 2^63 - 1: as time, group or category it would end the run in a PanicException."""
    times = pa.array([2**63 - 1, *range(1, NUM_ROWS)], kind)
    for name in ("a", "b"):
        pq.write_table(pa.table({"c": times, "x": range(NUM_ROWS), "y": [0, 1] * (NUM_ROWS // 2)}), tmp_path / name)
        times = times.take(pa.array(range(NUM_ROWS)[::-1]))
    with pytest.raises(UserError, match=r"time=c has cells that are not dates \(2\): '\+249142-"):
        prepare(tmp_path, tmp_path / "a", tmp_path / "b", time="c")
    assert prepare(tmp_path / "group", tmp_path / "a", group="c")["splits"]["train"]["groups"] == NUM_ROWS
    manifest = prepare(tmp_path / "categories", tmp_path / "a", categorical=("c",))
    assert manifest["left_out"]["c"].startswith(f"has {NUM_ROWS} different texts")


def test_numbers_that_become_zero_are_counted(tmp_path: Path) -> None:
    """A column of small probabilities would become a constant without a message."""
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"c": 1e-50 * row, "x": 2 * row, "y": row % 2}) + "\n" for row in range(NUM_ROWS))
    )
    (note,) = prepare(tmp_path, tmp_path / "a.jsonl")["notes"]
    assert note.startswith("the column 'c' has cells that count as 0, too small for 32-bit floats (59): '1e-50' (a.jsonl:2)")
