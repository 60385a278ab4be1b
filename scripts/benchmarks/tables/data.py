"""The eleven public tables: where they come from, which rows are new, and the files that every method gets.

`write` makes a folder for each table, with the same files for all methods:

    train.csv      the labelled rows, every cell as it is in the source
    new.csv        the rows to predict, without the target
    truth.parquet  row_id (the number of the row in new.csv) and the target; no method reads this file
    table.json     target, task, time column and its format, numbers of rows, SHA-256 of the sources and of train.csv
"""

import dataclasses
import gzip
import hashlib
import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from ensemble import folders
from ensemble.errors import UserError

SPLIT_SEED = 20261122
"""The seed of the random quarter of new rows of a table. It is the same for every method and every seed of a method."""
SHARE_OF_NEW_ROWS = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A public table: its columns with a special role, and where it comes from."""

    target: str
    task: Literal["binary", "multiclass", "regression"]
    origin: str
    sha256: tuple[str, ...]
    """The hash of the uncompressed CSV content of each file."""
    files: tuple[str, ...] = ()
    """Names without suffix of the file to split, or of the two files of an official split; empty for the table's name."""
    time: str = ""
    """The time column, if there is one: the rows of the last quarter in time are new."""
    time_format: str = ""
    """The format of the dates in the time column; empty if the time is a number."""
    drop: tuple[str, ...] = ()
    """Columns that are removed, since they only identify a row."""


TABLES = {
    "adult": Table(
        target="income",
        task="binary",
        origin="UCI 2, adult.data and adult.test",
        files=("adult_train", "adult_test"),
        sha256=(
            "3b8a6abd697a6623ef2ccbffc3e2802e167e7fdaa853003d3bd557b0ce7f5d2a",
            "eb6e9f02496bed4137b1a069b8af64b90eb534ba46143948667034dddef9abd9",
        ),
    ),
    "ames": Table(
        target="Sale_Price",
        task="regression",
        origin="R package modeldata, ames",
        sha256=("dc27fa1fc372a976b35142e88a9d8f86f31500efe45a3935999bbeddef0b8a98",),
    ),
    "bank_churn": Table(
        target="exited",
        task="binary",
        origin="Kaggle, Churn_Modelling.csv",
        drop=("rowNumber", "customerId", "surname", "Latitude", "Longitude"),
        sha256=("6961eaff745fbc207b074f09b00fd6ac4b936ea2e7ec35298ea16880848914ce",),
    ),
    "california_housing": Table(
        target="medianHouseValue",
        task="regression",
        origin="StatLib, cal_housing",
        sha256=("81dc3561d0438eb382b21ecd53837b844e50fba0058a39cfba37009b2687b72c",),
    ),
    "caravan": Table(
        target="Purchase",
        task="binary",
        origin="R package ISLR, Caravan",
        sha256=("e89d49b6fb8fe02d76bb5bb80d8e0dab473bf9f6a72515e30c259f6d7da42269",),
    ),
    "diamonds": Table(
        target="price",
        task="regression",
        origin="R package ggplot2, diamonds",
        sha256=("0e7164799468299f8dc09b006cf396c43717c3dc71f947f0a32cc6e199895b46",),
    ),
    "electricity": Table(
        target="class",
        task="binary",
        origin="OpenML 151, electricity",
        time="moment",
        sha256=("0349d7befbf777fb77a251a856deaef89e4e94d580c2f8eb3e5bb933901debdb",),
    ),
    "lending_club": Table(
        target="Class",
        task="binary",
        origin="R package modeldata, lending_club",
        sha256=("3dbe4d83e6efc20a42c349480fdf8e710b06cc4273eedf96896d137c9771537c",),
    ),
    "letter": Table(
        target="class",
        task="multiclass",
        origin="OpenML 6, letter",
        sha256=("681bd50705eccaa5051cfc346ae71ca35a327e3584bb35273ceef404f2b04986",),
    ),
    "metro_traffic": Table(
        target="traffic_volume",
        task="regression",
        origin="UCI 492, Metro Interstate Traffic Volume",
        time="date_time",
        time_format="%d-%m-%Y %H:%M",
        sha256=("15d568791489fa53f98d5d3c09aca5f40a02600559a95ee73b51e2c3c8745bdc",),
    ),
    "online_shoppers": Table(
        target="Revenue",
        task="binary",
        origin="UCI 468, Online Shoppers Intention",
        sha256=("170b9d87aa8a31e288aa8f1850ebb539cb56755a0fe16220165ad97da2aa6d3b",),
    ),
}


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
    """Split a table, write its files into `out`, and return the content of table.json.

    The files are not written again if `out` already has those of the same sources and the same seed.
    """
    table = TABLES[name]
    files = [(path, path.read_bytes()) for path in source_files(source, name)]
    contents = [gzip.decompress(stored) if path.suffix == ".gz" else stored for path, stored in files]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    if (out / "table.json").is_file():
        facts = folders.read_json(out / "table.json")
        if facts["sha256"] == digests and facts["split_seed"] == SPLIT_SEED:
            return facts
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
        "sha256": digests,
        "as_published_here": digests == list(table.sha256),
        "split": "official" if len(frames) == 2 else "time" if table.time else "random",
        "split_seed": SPLIT_SEED,
        "rows": {"train": train.height, "new": new.height},
        "columns": train.width,
        "train_sha256": hashlib.sha256((out / "train.csv").read_bytes()).hexdigest(),
    }
    folders.write_json(out / "table.json", facts)  # last: it marks the folder as complete
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
    """The table without dropped columns, with all cells as text, so that they are written as they were read."""
    rows = pl.read_csv(io.BytesIO(content), infer_schema=False)
    missing = [name for name in (table.target, table.time, *table.drop) if name and name not in rows.columns]
    if missing:
        raise UserError(f"the table has no column {missing[0]}: it is not the one from {table.origin}")
    return rows.drop(table.drop)
