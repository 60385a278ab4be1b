"""Folders of prepared data from given tables, for tests of members that train on any such folder."""

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa

from ensemble import folders
from ensemble.arrow import write_table
from ensemble.task import Task


def write(folder: Path, tables: dict[str, pa.Table], task: Task, features: list[dict[str, Any]], **entries: Any) -> str:
    """Write a table for each split, and a manifest with more or other `entries`; returns its fingerprint."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, table in tables.items():
        write_table(folder / "rows" / split, table)
    content = {
        "kind": "prepared data",
        "recipe": "small",
        "task": dataclasses.asdict(task),
        "features": features,
        "splits": {split: {"rows": table.num_rows} for split, table in tables.items()},
        "config": {},
    }
    return folders.write_manifest(folder, content | entries)["fingerprint"]
