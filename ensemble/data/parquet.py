"""Batches of rows of a Parquet file, with types that polars reads."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from ensemble.errors import UserError

BUFFER_BYTES = 1 << 20  # without it, pyarrow reads a whole column of a row group into memory
OFFSET = r"[+-]\d\d:?\d\d"
"""A time zone that is an offset, such as +05:30."""
ZONE_OF_OFFSETS = "Etc/GMT"
"""The time zone in which such times are returned. It equals UTC, but has another name, so that readers can tell these times
from those whose zone in the file is UTC."""


def batches(path: Path, columns: list[str] | None, num_rows: int) -> Iterator[pa.RecordBatch]:
    """The `columns` of a file, None for all, in batches of `num_rows` rows. Raises `UserError` for a damaged file."""
    try:
        # Nanoseconds, the default for the 96-bit times of Spark, would wrap 9999-12-31 to a day of 1816
        with pa.parquet.ParquetFile(path.absolute(), buffer_size=BUFFER_BYTES, coerce_int96_timestamp_unit="us") as file:
            categorical = _categorical(file.schema_arrow.metadata or {})
            for batch in file.iter_batches(num_rows, columns=columns, use_threads=False):
                batch.validate(full=True)  # polars panics at text or metadata that is not UTF-8
                yield _with_known_types(batch.replace_schema_metadata(None), categorical)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is not a valid Parquet file ({' '.join(str(error).split())}): get it again") from None


def _categorical(metadata: dict[bytes, bytes]) -> set[str]:
    """The columns that were categorical in pandas. Parquet itself keeps this type only if the categories are texts."""
    try:
        columns = json.loads(metadata[b"pandas"])["columns"]
        return {column["field_name"] for column in columns if column["pandas_type"] == "categorical"}
    except (KeyError, TypeError, ValueError):
        return set()


def _with_known_types(batch: pa.RecordBatch, categorical: set[str]) -> pa.RecordBatch:
    """The batch without 16-bit floats, decimals of other than 128 bits and zones such as +05:30, which polars does not read;
    and with numbers and booleans in the columns `categorical` as categories."""
    for position, field in enumerate(batch.schema):
        kind = field.type
        if pa.types.is_float16(kind):
            kind = pa.float32()
        elif pa.types.is_decimal256(kind):
            kind = pa.float64()
        elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
            kind = pa.decimal128(kind.precision, kind.scale)
        elif field.name in categorical and (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
            batch = batch.set_column(position, field.name, _texts(batch.column(position)).dictionary_encode())
            continue
        elif pa.types.is_timestamp(kind) and re.fullmatch(OFFSET, kind.tz or ""):
            kind = pa.timestamp(kind.unit, ZONE_OF_OFFSETS)  # Arrow stores times of any zone in UTC
        if kind != field.type:
            batch = batch.set_column(position, field.name, batch.column(position).cast(kind))
    return batch


def _texts(values: pa.Array) -> pa.Array:
    """Numbers or booleans as texts: 3 for 3.0, and 40123456789001 for 4.0123456789001e+13, as in CSV."""
    texts = values.cast(pa.string())
    if not pa.types.is_floating(values.type):
        return texts
    is_whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less(pc.abs(values), 2.0**53))
    return pc.coalesce(pc.if_else(is_whole, values, None).cast(pa.int64()).cast(pa.string()), texts)


def frame(path: Path, batch: pa.RecordBatch) -> pl.DataFrame:
    """A batch of the file `path` as a frame. Raises `UserError` for a type that polars does not read."""
    try:
        return pl.DataFrame(batch)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # PanicException is no subclass of Exception
        types = ", ".join(f"{field.name} ({field.type})" for field in batch.schema)
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{path} has a column of a type that polars does not read, among {types}: give it another type ({reason})"
        ) from None


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python objects. A column with a value that Python cannot represent, such as a date of the year 10000, is
    None in all rows of the batch."""
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            columns[field.name] = column.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException):
            columns[field.name] = [None] * len(column)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
