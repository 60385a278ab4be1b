"""Parquet files with types that polars does not read, and values that Python does not have."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ensemble.data import records
from ensemble.data.parquet import ZONE_OF_OFFSETS
from ensemble.errors import UserError

MICROSECONDS = 1_704_067_200_000_000
"""2024-01-01."""


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(np.array([0.5, 1.5], np.float16)), [0.5, 1.5]),
        (pa.array([decimal.Decimal("1.5"), None], pa.decimal256(60, 2)), [1.5, None]),
        (pa.array([decimal.Decimal("1.5"), None], pa.decimal64(12, 2)), [1.5, None]),
        (pa.array([MICROSECONDS], pa.timestamp("us", "+05:30")), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    ],
    ids=["float16", "decimal256", "decimal64", "offset"],
)
def test_types_that_polars_lacks_are_read(column: pa.Array, expected: list[Any], tmp_path: Path) -> None:
    """A table from pandas or BigQuery would end in a traceback, and 16-bit floats would be zeros in new rows."""
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    file = records.look(tmp_path / "a.parquet")
    ((frame, _),) = records.read_blocks(file, {"x": "x"}, {}, records.BLOCK_BYTES)
    assert frame["x"].to_list() == expected
    assert frame["x"].dtype in (pl.Float32, pl.Float64, pl.Decimal(12, 2), pl.Datetime("us", ZONE_OF_OFFSETS))


def test_far_times_of_spark_are_read(tmp_path: Path) -> None:
    """9999-12-31, a placeholder, would be a day of 1816 in a file of Spark, which writes times in 96 bits."""
    times = [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), datetime.datetime(2024, 1, 1, 13, 45, 0, 1)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    file = records.look(tmp_path / "a.parquet")
    ((frame, _),) = records.read_blocks(file, {"t": "t"}, {}, records.BLOCK_BYTES)
    assert frame["t"].to_list() == [row["t"] for row in file.head] == times


def test_a_date_beyond_python_is_no_traceback(tmp_path: Path) -> None:
    """A single date of the year 20983, a placeholder, would end the run in an OverflowError."""
    times = pa.array([MICROSECONDS // 1000, 600_000_000_000_000], pa.timestamp("ms"))
    pq.write_table(pa.table({"t": times, "x": [1, 2]}), tmp_path / "a.parquet")
    assert records.look(tmp_path / "a.parquet").head == [{"t": None, "x": 1}, {"t": None, "x": 2}]


def test_an_unknown_zone_is_named(tmp_path: Path) -> None:
    """The user would see a traceback of the library, without the name of the column."""
    pq.write_table(pa.table({"t": pa.array([MICROSECONDS], pa.timestamp("us", "Foo/Bar"))}), tmp_path / "a.parquet")
    file = records.look(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"type that polars does not read, among t \(timestamp\[us, tz=Foo/Bar\]\): give it"):
        list(records.read_blocks(file, {"t": "t"}, {}, records.BLOCK_BYTES))
