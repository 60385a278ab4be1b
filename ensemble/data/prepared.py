"""Preparation of data by a recipe, and checks that members can use the manifest and the columns of the folder."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError, in_a_line, listed, shortened
from ensemble.task import KINDS, METRICS, Task, task_of

TRAIN = "train"
LARGEST_TARGET = 1e150
"""The square of a much larger number is infinite."""
LARGEST_WEIGHT = float(np.finfo(np.float32).max)
"""Weights are 32-bit floats."""
WEIGHTS = f"weights must be from 0 to {LARGEST_WEIGHT:.1g}"
GUIDE = "see ensemble/recipes/README.md"
MOST_WARNINGS = 5
"""The most features that have a warning of their own."""


def write(
    name: str,
    prepare: Callable[[Any], dict[str, Any]],
    settings: Any,
    check_manifest: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Prepare data by `prepare`, the function of the recipe `name`, and return the manifest.

    If the recipe writes the folder by `folders.new_folder`, it gets its final name only after `check` and `check_manifest`
    have passed. So data that members cannot use do not replace other data. A folder that is written in another way is
    checked afterwards.
    """
    checked: list[dict[str, Any]] = []

    def check_folder(folder: Path) -> None:
        manifest = folders.read_json(folder / folders.NAME)
        check(name, folder, manifest)
        check_manifest(manifest)
        checked.append(manifest)

    with folders.checked(settings.out, check_folder):
        manifest = prepare(settings)
    if not checked:  # the recipe wrote the folder in another way
        check_folder(Path(settings.out))
    return manifest or checked[0]  # for recipes whose function returns nothing


def write_new(
    training: dict[str, Any], prepare: Callable[[dict[str, Any], dict[str, Any]], object], settings: dict[str, Any]
) -> dict[str, Any]:
    """Prepare new raw data by `prepare` of the recipe's new_data.py, `check` them, and return their manifest.

    training : the manifest of the training data. settings : those of `prepare`, of which `out` is the folder.
    """
    prepare(training, settings)
    folder = Path(settings["out"])
    manifest = folders.read_json(folder / folders.NAME)
    check(training["recipe"], folder, manifest)
    return manifest


def check(name: str, folder: str | Path, manifest: dict[str, Any]) -> None:
    """Raise `UserError` for a manifest or column that members could not use, and print the warnings of `unknown_values`.

    name : the recipe that prepared the folder. Without the entry `task` only the manifest is checked, not the columns.
    """
    missing = [entry for entry in ("recipe", "config", "splits", "features") if entry not in manifest]
    splits = manifest.get("splits", {})
    is_mapping = isinstance(splits, dict) and all(
        isinstance(facts, dict) and isinstance(facts.get("rows", 0), int) for facts in splits.values()
    )
    if not is_mapping or ("splits" in manifest and not splits):
        raise UserError(f"the entry splits of the manifest is {splits}: write {{name: {{'rows': number}}, …}}; {GUIDE}")
    missing += [f"rows of the split {split}" for split, facts in splits.items() if "rows" not in facts]
    if missing:
        raise UserError(f"the manifest that the recipe {name} wrote lacks {', '.join(missing)}: {GUIDE}")
    if manifest["recipe"] != name:
        raise UserError(f"the recipe {name} wrote recipe={manifest['recipe']} into its manifest: write {name} there")
    if manifest.get("kind") != folders.PREPARED:
        raise UserError(f"the entry kind of the manifest is {manifest.get('kind')!r}: write '{folders.PREPARED}'; {GUIDE}")
    for entry in ("config", "alike"):
        if not isinstance(manifest.get(entry, {}), dict):
            raise UserError(f"the entry {entry} of the manifest is {shortened(str(manifest[entry]))}: write a dict; {GUIDE}")
    files = manifest.get("sources", [])
    if not isinstance(files, list) or not all(
        isinstance(file, dict) and {"name", "bytes", "sha256"} <= file.keys() for file in files
    ):
        fix = "write ensemble.folders.sources(paths), with a Path for each raw file"
        raise UserError(f"the entry sources of the manifest is {shortened(str(files))}: {fix}")
    features = manifest["features"]
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise UserError(f"the entry features of the manifest is {shortened(str(features))}: write a list of dicts; {GUIDE}")
    for feature in features:
        if missing := [entry for entry in ("name", "unit") if entry not in feature]:
            raise UserError(f"the entry {feature} of the features lacks {' and '.join(missing)}: {GUIDE}")
        for entry in ("name", "unit", "meaning"):
            if not isinstance(feature.get(entry, ""), str):
                problem = f"has a {entry} that is not a string: write a {entry}"
                raise UserError(f"the entry {feature} of the features {problem}; {GUIDE}")
        if not isinstance(feature.get("values", []), list):
            raise UserError(f"the entry {feature} of the features has values that are not a list: write a list; {GUIDE}")
        if feature.get("unit") == "category" and not feature.get("categories"):
            raise UserError(f"the feature {feature['name']} has the unit category, but no categories: give their number")
        if not isinstance(feature.get("categories", 0), int):
            raise UserError(f"categories of the feature {feature['name']} is {feature['categories']}: give their number")
    if "task" not in manifest:  # members of such a recipe are networks with files of their own
        return
    try:
        task = task_of(manifest)
    except (AttributeError, TypeError) as error:
        raise UserError(
            f"the entry task of the manifest is not a Task ({in_a_line(error)}): write dataclasses.asdict(Task(…)); {GUIDE}"
        ) from None
    for name in ("target", "group", "cluster", *(["weight"] if task.weight else [])):
        if not isinstance(column := getattr(task, name), str):
            raise UserError(f"{name} of the task is {column}: give the name of a column of rows/SPLIT; {GUIDE}")
    if task.kind not in KINDS:
        raise UserError(f"the task is of kind {task.kind}: choose one of {', '.join(KINDS)}")
    if task.metric not in METRICS[task.kind]:
        known = " or ".join(METRICS[task.kind])
        raise UserError(f"the metric {task.metric} of the task does not fit its kind, {task.kind}: give {known}")
    if not isinstance(task.is_relative, bool):
        raise UserError(f"is_relative of the task is {task.is_relative}: give True or False; {GUIDE}")
    if task.is_relative and task.kind != "binary":
        raise UserError(f"the {task.kind} task has is_relative={task.is_relative}: only a binary target can be relative")
    if task.is_relative and task.weight:
        raise UserError(f"the task has is_relative={task.is_relative} and weight={task.weight}: leave one of them out")
    classes = manifest["task"].get("classes") or []
    is_list = isinstance(classes, list | tuple) and all(isinstance(each, str) for each in classes)
    if not is_list or len(set(classes)) < len(classes):
        raise UserError(f"classes of the task is {shortened(str(classes))}: write a list of different texts; {GUIDE}")
    if task.kind == "multiclass" and len(task.classes) < 2:
        raise UserError(
            f"the multiclass task has {len(task.classes)} classes, and needs at least 2: name them, as Task(…, classes=(…))"
        )
    names = [feature["name"] for feature in manifest["features"]]
    categories = {feature["name"]: feature["categories"] for feature in manifest["features"] if feature.get("categories")}
    for name, count in Counter(names).items():
        if not re.fullmatch(r"[^\s\[\]<>,:\"{}]+", name) or count > 1:
            raise UserError(
                f"'{name}' is not a valid name of a feature: names must be distinct, and without blanks and the "
                'characters []<>,:"{}, which LightGBM or XGBoost refuse'
            )
    if task.target in names:
        raise UserError(
            f"the target {task.target} is one of the features: leave it out of them, since members would copy it"
        )
    tables = {split: open_table(Path(folder) / "rows" / split) for split in manifest["splits"]}
    for split, table in tables.items():
        if len(table) != manifest["splits"][split]["rows"] or not len(table):
            raise UserError(
                f"rows/{split} has {len(table):,} rows, and the manifest gives {manifest['splits'][split]['rows']:,}: the "
                f"two numbers must be equal, and at least 1; {GUIDE}"
            )
        ids = ["row_id", task.group, task.cluster]
        _check_columns(split, table.schema, ids, _is_id, "whole numbers of at most 63 bits, such as int64")
        for name in ids:
            if num_nulls := table[name].null_count:
                raise UserError(
                    f"the column {name} of rows/{split} has {num_nulls:,} missing values: give each row a number"
                )
        targets = "float32 or float64, or a fixed-size list of integers"
        _check_columns(split, table.schema, [task.target], _holds_targets, targets)
        _check_columns(split, table.schema, names, lambda kind: kind == pa.float32(), "float32")
        for name in names:
            if num_bad := int(pc.sum(pc.is_inf(table[name]), min_count=0).as_py()):
                raise UserError(
                    f"{num_bad:,} values of {name} in rows/{split} are infinite: missing values are NaN; {GUIDE}"
                )
        for name, num_categories in categories.items():
            _check_codes(split, table, name, num_categories)
        if task.weight and split != FORECAST:
            _check_columns(split, table.schema, [task.weight], _is_number, "numbers, such as float32")
            _check_values(split, table, task.weight, lambda values: (values >= 0) & (values <= LARGEST_WEIGHT), WEIGHTS)
        if split != FORECAST and not pa.types.is_fixed_size_list(table.schema.field(task.target).type):
            _check_targets(split, table, task)
    _check_row_ids(tables)
    for sentence in unknown_values(tables, names):
        print(f"warning: {sentence}")


def unknown_values(tables: dict[str, pa.Table], features: list[str]) -> list[str]:
    """Warnings about missing values of features that are never missing in train.

    A category that does not occur in train is stored as a missing value.
    """
    others = {split: table for split, table in tables.items() if split != TRAIN}
    warnings = {}
    for name in features if TRAIN in tables else ():
        counts = {split: _num_missing(table[name]) for split, table in others.items()}
        if any(counts.values()) and not _num_missing(tables[TRAIN][name]):
            where = ", ".join(
                f"{count:,} of {others[split].num_rows:,} rows of {split}" for split, count in counts.items() if count
            )
            warnings[name] = f"the feature {name} is empty or unknown in {where}, and never in train"
    further = list(warnings)[MOST_WARNINGS:]
    summary = [f"the same is true of {listed(further)}"] if further else []
    return [f"{warning}: see ensemble/trees/unknown.py" for warning in [*list(warnings.values())[:MOST_WARNINGS], *summary]]


def _num_missing(column: pa.ChunkedArray) -> int:
    """The number of nulls and NaN, without a copy of the column."""
    return int(pc.sum(column.is_null(nan_is_null=True), min_count=0).as_py())


def _is_id(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) and kind != pa.uint64()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _holds_targets(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind):
        return pa.types.is_integer(kind.value_type)
    return kind in (pa.float32(), pa.float64())


def _check_row_ids(tables: dict[str, pa.Table]) -> None:
    if _are_distinct([table["row_id"] for table in tables.values()]):
        return
    ids = np.concatenate([table["row_id"].to_numpy() for table in tables.values()])
    ids.sort()
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        row_id = repeated[0]
        splits = [split for split, table in tables.items() if (table["row_id"].to_numpy() == row_id).any()]
        raise UserError(
            f"the row_id {row_id} occurs more than once, in {' and '.join(f'rows/{split}' for split in splits)}: each row "
            f"of all splits must have a row_id of its own; {GUIDE}"
        )


def _are_distinct(columns: list[pa.ChunkedArray]) -> bool:
    """Whether integers are distinct, computed with a byte for each number of their range instead of a sorted copy.

    Also False, without a check, if the range is at least 8 times the number of values.
    """
    chunks = [chunk.to_numpy() for column in columns for chunk in column.chunks if len(chunk)]
    num_values = sum(map(len, chunks))
    least = min((int(values.min()) for values in chunks), default=0)
    greatest = max((int(values.max()) for values in chunks), default=0)
    if greatest - least >= 8 * num_values:
        return False
    is_used = np.zeros(greatest - least + 1, bool)
    for values in chunks:
        is_used[values.astype(np.int64) - least] = True
    return int(np.count_nonzero(is_used)) == num_values


def _check_codes(split: str, table: pa.Table, name: str, num_categories: int) -> None:
    for chunk in table[name].chunks:
        codes = chunk.to_numpy(zero_copy_only=False)
        is_valid = np.isnan(codes) | (codes % 1 == 0) & (codes >= 0) & (codes < num_categories)
        if not is_valid.all():
            raise UserError(
                f"the feature {name} has the value {codes[~is_valid][0]:g} in rows/{split}: a category must be a whole "
                f"number from 0 to {num_categories - 1}, or NaN if it is missing; {GUIDE}"
            )


def _check_targets(split: str, table: pa.Table, task: Task) -> None:
    """Raise `UserError` for targets that do not fit the kind of the task."""
    num_classes = len(task.classes)
    checks: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
        "binary": (lambda values: (values == 0) | (values == 1), "of 0 or 1"),
        "multiclass": (
            lambda values: (values >= 0) & (values < num_classes) & (values == np.floor(values)),
            f"that is a whole number from 0 to {num_classes - 1}",
        ),
        "ranking": (lambda values: (values >= 0) & (values <= LARGEST_TARGET), "of at least 0"),
        "regression": (
            lambda values: np.abs(values) <= LARGEST_TARGET,
            f"with an absolute value of at most {LARGEST_TARGET:g}",
        ),
    }
    is_valid, rule = checks[task.kind]
    _check_values(split, table, task.target, is_valid, f"rows of all splits but {FORECAST} need a target {rule}")


def _check_values(split: str, table: pa.Table, name: str, is_valid: Callable[[np.ndarray], np.ndarray], rule: str) -> None:
    """Raise `UserError` for values of a column that are not valid. is_valid : of float64 values, (n,) -> (n,) bool"""
    # By chunks, so that no copy of the column is made
    chunks = (chunk.to_numpy(zero_copy_only=False).astype(np.float64) for chunk in table[name].chunks)
    is_bad = ~np.concatenate([is_valid(values) for values in chunks])
    if is_bad.any():
        num_bad, first = np.count_nonzero(is_bad), int(is_bad.argmax())
        raise UserError(
            f"{name} is missing or invalid in {num_bad:,} of the {len(table):,} rows of rows/{split}, the first is "
            f"{table[name].to_numpy()[first]:g} with row_id {table['row_id'][first]}: {rule}; {GUIDE}"
        )


def _check_columns(split: str, schema: pa.Schema, names: list[str], is_allowed: Any, allowed: str) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            raise UserError(f"rows/{split} has no column {name}, which the manifest names: {GUIDE}")
        if not is_allowed(schema.field(name).type):
            raise UserError(f"the column {name} of rows/{split} is {schema.field(name).type}: it must be {allowed}; {GUIDE}")
