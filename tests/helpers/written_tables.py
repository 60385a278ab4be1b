"""One table written in each of the text formats and as Parquet, for tests that all of them are read alike."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import strategies as st

NO_CELL = '\0\t\r\n"\x1c\x1d\x1e\x85\u2028\u2029'
"""The characters that a field of a tab-separated file cannot contain."""
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=NO_CELL), min_size=1)
DIGITS = st.from_regex(r"[0-9]{1,20}", fullmatch=True)


def as_csv(frame: pl.DataFrame) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows(["" if value is None else value for value in row] for row in frame.iter_rows())
    return stream.getvalue().encode()


def as_tsv(frame: pl.DataFrame) -> bytes:
    lines = [frame.columns, *(["" if value is None else str(value) for value in row] for row in frame.iter_rows())]
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def as_json_lines(frame: pl.DataFrame) -> bytes:
    rows = ({name: value for name, value in row.items() if value is not None} for row in frame.iter_rows(named=True))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return stream.getvalue()


FORMATS: dict[str, Callable[[pl.DataFrame], bytes]] = {
    "csv": as_csv,
    "tsv": as_tsv,
    "jsonl": as_json_lines,
    "parquet": as_parquet,
}


DAY_MS = 86_400_000
FIRST_MS = 820_454_400_000  # 1 January 1996


def times_ms(generator: np.random.Generator, num_rows: int) -> np.ndarray:
    """Times on different days from 1996 to 2022, so that no two are equal in a coarser unit."""
    return FIRST_MS + generator.permutation(9_800)[:num_rows] * DAY_MS + generator.integers(0, DAY_MS, num_rows)


def in_a_unit(data: st.DataObject, frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The frame with its milliseconds as they are, as seconds, or as dates."""
    units = {
        "milliseconds": pl.col(column),
        "seconds": pl.col(column) / 1000,
        "dates": pl.from_epoch(column, time_unit="ms").dt.strftime("%Y-%m-%d %H:%M:%S%.3f"),
    }
    return frame.with_columns(units[data.draw(st.sampled_from(sorted(units)))])


def pieces(data: st.DataObject, num_rows: int) -> list[tuple[int, int]]:
    """The first and the last row plus one of each of one to three files."""
    cuts = sorted(data.draw(st.lists(st.integers(1, num_rows - 1), max_size=2, unique=True)))
    return list(zip([0, *cuts], [*cuts, num_rows], strict=True))


def write_one(data: st.DataObject, frame: pl.DataFrame, path: Path) -> Path:
    """The frame in one of the formats."""
    form = data.draw(st.sampled_from(sorted(FORMATS)))
    path = path.with_suffix(f".{form}")
    path.write_bytes(FORMATS[form](frame))
    return path
