"""Checks that the folder which a recipe prepared is what members expect, for scripts/prepare_data.py."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.task import KINDS, task_of

GUIDE = "see ensemble/recipes/README.md"


def check(name: str, folder: str | Path, about: dict[str, Any]) -> None:
    """Raise `UserError` for a manifest of the recipe `name`, or a column of its rows, that members could not use."""
    missing = [entry for entry in ("recipe", "config", "splits", "features") if entry not in about]
    missing += [f"rows of the split {split}" for split, facts in about.get("splits", {}).items() if "rows" not in facts]
    if missing:
        raise UserError(f"the manifest that the recipe {name} wrote lacks {', '.join(missing)}: {GUIDE}")
    if about["recipe"] != name:
        raise UserError(f"the recipe {name} wrote recipe={about['recipe']} into its manifest: write {name} there")
    for feature in about["features"]:
        if feature.get("unit") == "category" and not feature.get("categories"):
            raise UserError(f"the feature {feature['name']} has the unit category, but no categories: give their number")
    if "task" not in about:  # members of such a recipe are networks with files of their own
        return
    task = task_of(about)
    if task.kind not in KINDS:
        raise UserError(f"the task is of kind {task.kind}: choose one of {', '.join(KINDS)}")
    if task.kind == "multiclass" and len(task.classes) < 2:
        raise UserError("a multiclass task names its classes: give Task(…, classes=(…))")
    for split in about["splits"]:
        schema = open_table(Path(folder) / "rows" / split).schema
        _check_columns(
            split, schema, ["row_id", task.group, task.cluster], pa.types.is_integer, "whole numbers, such as int64"
        )
        _check_columns(split, schema, [task.target], lambda kind: kind in (pa.float32(), pa.float64()), "float32 or float64")
        names = [feature["name"] for feature in about["features"]]
        _check_columns(split, schema, names, lambda kind: kind == pa.float32(), "float32")


def _check_columns(split: str, schema: pa.Schema, names: list[str], holds: Any, wanted: str) -> None:
    for name in names:
        if name not in schema.names:
            raise UserError(f"rows/{split} has no column {name}, which the manifest names: {GUIDE}")
        if not holds(schema.field(name).type):
            raise UserError(f"the column {name} of rows/{split} is {schema.field(name).type}: it must be {wanted}; {GUIDE}")
