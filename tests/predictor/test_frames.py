"""DataFrames of pandas as Arrow tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ensemble.errors import UserError
from ensemble.predictor.frames import to_arrow, write


def test_a_sparse_or_categorical_column_is_that_of_its_values() -> None:
    """A frame of pandas would be refused for the way in which it stores a column."""
    values = [0.0, 2.5, 0.0, float("nan")]
    frame = pd.DataFrame({"sparse": pd.arrays.SparseArray(values, fill_value=0.0), "kind": pd.Categorical(list("abca"))})
    table, _ = to_arrow(frame)
    assert np.array_equal(table["sparse"].to_numpy(), values, equal_nan=True)
    assert table["kind"].to_pylist() == list("abca")


@pytest.mark.parametrize("frame", [pd.DataFrame({"a": []}), pd.DataFrame(index=[1, 2]), pl.DataFrame({"a": []})])
def test_a_frame_without_rows_is_refused(frame: Any) -> None:
    """The error would be about a file that the caller does not have."""
    with pytest.raises(UserError, match=r"^the frame has \d rows and \d columns: give at least one of each$"):
        to_arrow(frame)


def test_a_text_that_no_file_can_hold_is_refused() -> None:
    """A traceback of an encoder instead of the name of the column."""
    with pytest.raises(UserError, match="the column 'x' cannot be read"):
        to_arrow(pd.DataFrame({"x": pd.Series(["a", "\ud800"], dtype=object)}))


def test_a_column_that_parquet_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Empty objects from an API would be a traceback of pyarrow."""
    table, _ = to_arrow(pl.DataFrame({"x": [1], "extra": [{}]}))
    with pytest.raises(UserError, match=r"cannot be stored as Parquet .*'extra'.*: leave that column out, or convert it"):
        write(table, tmp_path / "a.parquet")
