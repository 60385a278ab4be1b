"""DataFrames of pandas as Arrow tables."""

import datetime
import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from ensemble.errors import UserError
from ensemble.predictor.frames import as_files, to_arrow, write


def test_a_sparse_or_categorical_column_is_that_of_its_values() -> None:
    """A frame of pandas would be refused for the way in which it stores a column."""
    values = [0.0, 2.5, 0.0, float("nan")]
    frame = pd.DataFrame({"sparse": pd.arrays.SparseArray(values, fill_value=0.0), "kind": pd.Categorical(list("abca"))})
    table, _ = to_arrow(frame)
    assert np.array_equal(table["sparse"].to_numpy(), values, equal_nan=True)
    assert table["kind"].to_pylist() == list("abca")


def test_periods_are_dates_and_intervals_are_texts() -> None:
    """A month would be the number of months since 1970, and an interval a pair of numbers that is left out."""
    periods, intervals = pd.period_range("2024-01", periods=3, freq="M"), pd.interval_range(0, 3)
    table, _ = to_arrow(pd.DataFrame({"month": periods, "range": intervals, "bin": pd.cut([0, 1, 2], [-1, 0, 2])}))
    assert table["month"].to_pylist() == [datetime.datetime(2024, month, 1) for month in (1, 2, 3)]
    assert table["range"].to_pylist() == ["(0, 1]", "(1, 2]", "(2, 3]"]
    assert table["bin"].to_pylist() == ["(-1, 0]", "(0, 2]", "(0, 2]"]


def test_a_subclass_of_a_frame_is_a_frame() -> None:
    """A GeoDataFrame would be refused with the advice to give a pandas DataFrame."""

    class Geo(pd.DataFrame):
        pass

    assert to_arrow(Geo({"a": [1]}))[0].to_pydict() == {"a": [1]}


def test_not_every_name_is_compared_with_every_other() -> None:
    """A frame of 20,000 genes would take 7 s longer, also for the prediction of one row; a repeated name is refused."""

    class Name(str):
        __hash__ = str.__hash__
        num_compared = 0

        def __eq__(self, other: object) -> bool:
            Name.num_compared += 1
            return str.__eq__(self, other)

    class Label:
        def __init__(self, name: str):
            self.name = Name(name)

        def __str__(self) -> str:
            return self.name

    labels = [Label(f"gene {number}") for number in range(500)]
    to_arrow(pd.DataFrame(np.zeros((1, 500)), columns=labels))
    assert Name.num_compared < 20 * 500
    with pytest.raises(UserError, match="two columns are named 'gene 1': rename one"):
        to_arrow(pd.DataFrame(np.zeros((1, 2)), columns=["gene 1", labels[1]]))


def test_what_is_no_frame_is_refused_whatever_its_shape() -> None:
    """A frame of dask, whose number of rows is not known, or the class in place of a frame would end in a TypeError."""

    class Unknown:
        def __eq__(self, other: object) -> "Unknown":  # type: ignore[override]
            return self

        def __bool__(self) -> bool:
            raise TypeError("Truth of Delayed objects is not supported")

    class Lazy:
        shape = (Unknown(), 2)

    for rows, name in ((Lazy(), "Lazy"), (pd.DataFrame, "type"), (np.empty((0, 2)), "ndarray")):
        with pytest.raises(UserError, match=f"^rows are of the type {name}: give a path, a pandas or polars DataFrame"):
            to_arrow(rows)


@pytest.mark.parametrize("dtype", ["float32", "Float32", "float[pyarrow]"])
def test_categories_that_are_32_bit_floats_are_those_of_a_file(dtype: str, tmp_path: Path) -> None:
    """0.1 would be the category 0.10000000149011612, and count as empty in a CSV file of the same frame."""
    frame = pd.DataFrame({"x": pd.Series([0.1, 3.0, 0.1], dtype=dtype).astype("category")})
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert to_arrow(frame)[0]["x"].to_pylist() == ["0.1", "3", "0.1"]


@pytest.mark.parametrize("frame", [pd.DataFrame({"a": []}), pd.DataFrame(index=[1, 2]), pl.DataFrame({"a": []})])
def test_a_frame_without_rows_is_refused(frame: Any) -> None:
    """The error would be about a file that the caller does not have."""
    with pytest.raises(UserError, match=r"^the frame has \d rows and \d columns: give at least one of each$"):
        to_arrow(frame)


def test_an_empty_list_of_files_is_refused(tmp_path: Path) -> None:
    """A pattern without matches would end in an IndexError."""
    with pytest.raises(UserError, match=r"^the list of files is empty: give at least one path$"):
        as_files([], tmp_path / "rows.parquet")


def test_a_named_index_that_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Members would not learn from a column that the user has made the index, without a message."""
    frame = pd.DataFrame({"x": [1, 2], "z": [3, 4]})
    assert to_arrow(frame)[0].column_names == ["x", "z"]
    assert not capsys.readouterr().err
    assert to_arrow(frame.set_index("z"))[0].column_names == ["x"]
    assert capsys.readouterr().err == "warning: the index z is no column and is left out: reset_index() makes it one\n"
    to_arrow(frame.set_axis(pd.date_range("2024-01-01", periods=2)))
    assert (
        capsys.readouterr().err == "warning: the index of dates is no column and is left out: reset_index() makes it one\n"
    )


def test_a_text_that_no_file_can_hold_is_refused() -> None:
    """A traceback of an encoder instead of the name of the column."""
    with pytest.raises(UserError, match="the column 'x' cannot be read"):
        to_arrow(pd.DataFrame({"x": pd.Series(["a", "\ud800"], dtype=object)}))


def test_a_column_that_parquet_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Empty objects from an API would be a traceback of pyarrow."""
    table, _ = to_arrow(pl.DataFrame({"x": [1], "extra": [{}]}))
    with pytest.raises(UserError, match=r"cannot be stored as Parquet .*'extra'.*: leave that column out, or convert it"):
        write(table, tmp_path / "a.parquet")


def test_a_full_temporary_disk_is_no_fault_of_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would look for a mistake in the rows, and not learn of TMPDIR."""

    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(UserError, match=r"^the disk of temporary files, /.*, is full: free some space, or set TMPDIR"):
        write(pa.table({"x": [1]}), tmp_path / "a.parquet")


def test_a_worker_names_a_full_temporary_disk() -> None:
    """A full /tmp would look like an error of the program."""
    statements = (
        "import tempfile; from ensemble.predictor import worker",
        "def full(**named): raise OSError(28, 'No space left on device')",
        "tempfile.TemporaryDirectory = full; worker.main()",
    )
    first = json.dumps({"trusted": [], "manifest": {}, "folder": "x"})
    done = subprocess.run([sys.executable, "-c", "\n".join(statements)], input=first, capture_output=True, text=True)
    assert json.loads(done.stdout)["mistake"].startswith("the disk of temporary files, ")
    assert not done.stderr


@pytest.mark.parametrize(
    ("first", "kinds"),
    [
        (datetime.date(2024, 1, 1), "dates without a time and times without a zone"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "times with a zone and times without a zone"),
    ],
)
def test_objects_of_which_only_some_have_a_time_or_a_zone_are_refused(first: datetime.date, kinds: str) -> None:
    """Arrow would set the times of the column to midnight, or read local times as UTC, without a message."""
    column = pd.Series([first, pd.NaT, None, datetime.datetime(2024, 1, 2, 3)], dtype=object)
    with pytest.raises(UserError, match=f"the column 'when' has {kinds}: convert it, as by pandas.to_datetime"):
        to_arrow(pd.DataFrame({"when": column}))
    assert to_arrow(pd.DataFrame({"when": column[1:]}))[0]["when"][2].as_py() == datetime.datetime(2024, 1, 2, 3)
