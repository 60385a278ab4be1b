"""DataFrames of pandas as Arrow tables."""

import numpy as np
import pandas as pd
import pytest

from ensemble.errors import UserError
from ensemble.predictor.frames import to_arrow


def test_a_sparse_or_categorical_column_is_that_of_its_values() -> None:
    """A frame of pandas would be refused for the way in which it stores a column."""
    values = [0.0, 2.5, 0.0, float("nan")]
    frame = pd.DataFrame({"sparse": pd.arrays.SparseArray(values, fill_value=0.0), "kind": pd.Categorical(list("abca"))})
    table, _ = to_arrow(frame)
    assert np.array_equal(table["sparse"].to_numpy(), values, equal_nan=True)
    assert table["kind"].to_pylist() == list("abca")


def test_a_text_that_no_file_can_hold_is_refused() -> None:
    """A traceback of an encoder instead of the name of the column."""
    with pytest.raises(UserError, match="the column 'x' cannot be read"):
        to_arrow(pd.DataFrame({"x": pd.Series(["a", "\ud800"], dtype=object)}))
