"""Checks of the folder that a recipe prepared: its manifest and columns must be such as members can use."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.task import KINDS, task_of

TRAIN = "train"
LARGEST_TARGET = 1e150
"""The square of a much larger number is infinite."""
GUIDE = "see ensemble/recipes/README.md"


def check(name: str, folder: str | Path, manifest: dict[str, Any]) -> None:
    """Raise `UserError` for a manifest or column that members could not use. name : of the recipe that prepared the
    folder."""
    missing = [entry for entry in ("recipe", "config", "splits", "features") if entry not in manifest]
    missing += [f"rows of the split {split}" for split, facts in manifest.get("splits", {}).items() if "rows" not in facts]
    if missing:
        raise UserError(f"the manifest that the recipe {name} wrote lacks {', '.join(missing)}: {GUIDE}")
    if manifest["recipe"] != name:
        raise UserError(f"the recipe {name} wrote recipe={manifest['recipe']} into its manifest: write {name} there")
    for feature in manifest["features"]:
        if feature.get("unit") == "category" and not feature.get("categories"):
            raise UserError(f"the feature {feature['name']} has the unit category, but no categories: give their number")
    if "task" not in manifest:  # members of such a recipe are networks with files of their own
        return
    task = task_of(manifest)
    if task.kind not in KINDS:
        raise UserError(f"the task is of kind {task.kind}: choose one of {', '.join(KINDS)}")
    if task.kind == "multiclass" and len(task.classes) < 2:
        raise UserError("a multiclass task names its classes: give Task(…, classes=(…))")
    names = [feature["name"] for feature in manifest["features"]]
    tables = {split: open_table(Path(folder) / "rows" / split) for split in manifest["splits"]}
    for split, table in tables.items():
        ids = ["row_id", task.group, task.cluster]
        _check_columns(split, table.schema, ids, pa.types.is_integer, "whole numbers, such as int64")
        targets = "float32 or float64, or a fixed-size list of integers"
        _check_columns(split, table.schema, [task.target], _holds_targets, targets)
        _check_columns(split, table.schema, names, lambda kind: kind == pa.float32(), "float32")
    _check_row_ids(tables)
    for split, table in tables.items():
        if split != FORECAST and not pa.types.is_fixed_size_list(table.schema.field(task.target).type):
            _check_target(split, table, task.target)
    for sentence in unknown_values(tables, names):
        print(f"warning: {sentence}")


def unknown_values(tables: dict[str, pa.Table], features: list[str]) -> list[str]:
    """Warnings of missing values in features that are never missing in train.

    A category that is not in train is a missing value in prepared rows.
    """
    others = {split: table for split, table in tables.items() if split != TRAIN}
    warnings = []
    for name in features if TRAIN in tables else ():
        counts = {split: int(np.isnan(table[name].to_numpy()).sum()) for split, table in others.items()}
        if any(counts.values()) and not np.isnan(tables[TRAIN][name].to_numpy()).any():
            where = ", ".join(
                f"{count:,} of {others[split].num_rows:,} rows of {split}" for split, count in counts.items() if count
            )
            warnings.append(
                f"the feature {name} is empty or unknown in {where}, and never in train: see ensemble/trees/unknown.py"
            )
    return warnings


def _holds_targets(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind):
        return pa.types.is_integer(kind.value_type)
    return kind in (pa.float32(), pa.float64())


def _check_row_ids(tables: dict[str, pa.Table]) -> None:
    ids = np.concatenate([table["row_id"].to_numpy() for table in tables.values()])
    if (np.diff(ids) > 0).all():
        return
    ids.sort()
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        row_id = repeated[0]
        splits = [split for split, table in tables.items() if (table["row_id"].to_numpy() == row_id).any()]
        raise UserError(
            f"the row_id {row_id} is more than once in {' and '.join(f'rows/{split}' for split in splits)}: each row of all "
            f"splits has a row_id of its own; {GUIDE}"
        )


def _check_target(split: str, table: pa.Table, name: str) -> None:
    target = table[name].to_numpy().astype(np.float64)
    bad = np.flatnonzero(~(np.abs(target) <= LARGEST_TARGET))
    if bad.size:
        rule = f"only rows of the split {FORECAST} have no target, and none is beyond {LARGEST_TARGET:g}"
        raise UserError(
            f"the target {name} of {bad.size:,} of {len(target):,} rows of rows/{split} is missing or too large, the first "
            f"is {target[bad[0]]:g} with row_id {table['row_id'][int(bad[0])]}: {rule}; {GUIDE}"
        )


def _check_columns(split: str, schema: pa.Schema, names: list[str], holds: Any, wanted: str) -> None:
    for name in names:
        if name not in schema.names:
            raise UserError(f"rows/{split} has no column {name}, which the manifest names: {GUIDE}")
        if not holds(schema.field(name).type):
            raise UserError(f"the column {name} of rows/{split} is {schema.field(name).type}: it must be {wanted}; {GUIDE}")
