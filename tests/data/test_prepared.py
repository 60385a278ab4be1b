"""The check of prepared data: what members could not use is refused where it was written, with one sentence."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ensemble.arrow import TableWriter, open_table
from ensemble.data import prepared
from ensemble.errors import UserError
from ensemble.task import Task

SPLITS = ("train", "validation", "blend", "test", "forecast")
NUM_ROWS = 20


def write(folder: Path, split: str = "", kinds: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Prepared data of a regression; `changes` are columns of one split. Returns the manifest."""
    for number, name in enumerate(SPLITS):
        columns: dict[str, Any] = {
            "row_id": 100 * number + np.arange(NUM_ROWS),
            "group": np.arange(NUM_ROWS) // 5,
            "cluster": np.arange(NUM_ROWS),
            "target": np.full(NUM_ROWS, np.nan) if name == "forecast" else np.arange(NUM_ROWS) / 3,
            "size": np.arange(NUM_ROWS).astype(np.float32),
            "gaps": np.where(np.arange(NUM_ROWS) % 3, 1, np.nan).astype(np.float32),
        }
        if name == split:
            columns |= changes
        table = pa.table({key: pa.array(values, (kinds or {}).get(key)) for key, values in columns.items()})
        with TableWriter(folder / "rows" / name, table.schema) as writer:  # of two chunks
            writer.write(table[:7])
            writer.write(table[7:])
    task = Task(kind="regression", target="target", metric="mean_absolute_error", group="group", cluster="cluster")
    return {
        "kind": "prepared data",
        "recipe": "small",
        "config": {},
        "splits": {name: {"rows": NUM_ROWS} for name in SPLITS},
        "features": [{"name": "size", "unit": ""}, {"name": "gaps", "unit": ""}],
        "task": dataclasses.asdict(task),
    }


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_targets_have_either_precision(kind: pa.DataType, tmp_path: Path) -> None:
    """A large number would have to be cut to 7 digits."""
    prepared.check("small", tmp_path, write(tmp_path, kinds={"target": kind}))


def test_other_types_are_refused(tmp_path: Path) -> None:
    """A library would read other numbers, or end the process."""
    with pytest.raises(UserError, match="the column target of rows/train is int64: it must be float32 or float64"):
        prepared.check("small", tmp_path / "a", write(tmp_path / "a", "train", target=np.arange(NUM_ROWS)))
    with pytest.raises(UserError, match="the column size of rows/test is double: it must be float32"):
        prepared.check("small", tmp_path / "b", write(tmp_path / "b", "test", size=np.arange(NUM_ROWS) / 2))


@pytest.mark.parametrize("name", ["row_id", "group", "cluster"])
def test_ids_are_known_and_have_63_bits(name: str, tmp_path: Path) -> None:
    """Members would be trained, and their prediction end in a traceback."""
    ids = [None, *range(1, NUM_ROWS)]
    with pytest.raises(UserError, match=f"the column {name} of rows/train has 1 missing values: give each row a number"):
        prepared.check("small", tmp_path / "a", write(tmp_path / "a", "train", {name: pa.int64()}, **{name: ids}))
    with pytest.raises(
        UserError, match=f"the column {name} of rows/train is uint64: it must be whole numbers of at most 63"
    ):
        prepared.check("small", tmp_path / "b", write(tmp_path / "b", kinds={name: pa.uint64()}))


def test_a_task_with_weights_needs_their_column(tmp_path: Path) -> None:
    """Trees would end in a traceback, after the network was trained without weights."""
    manifest = write(tmp_path, "train", w=np.full(NUM_ROWS, "much"))
    manifest["task"]["weight"] = "w"
    with pytest.raises(UserError, match="the column w of rows/train is string: it must be numbers, such as float32"):
        prepared.check("small", tmp_path, manifest)
    manifest["splits"] = {"test": manifest["splits"]["test"]}
    with pytest.raises(UserError, match="rows/test has no column w, which the manifest names"):
        prepared.check("small", tmp_path, manifest)
    manifest["splits"] = {"forecast": {"rows": NUM_ROWS}}  # is not scored
    prepared.check("small", tmp_path, manifest)


@pytest.mark.parametrize(
    ("entry", "value", "sentence"),
    [
        ("features", None, "the entry features of the manifest is None: write a list of dicts"),
        ("features", ["size"], r"the entry features of the manifest is \['size'\]: write a list of dicts"),
        ("features", [{"name": 1, "unit": ""}], "has a name that is not a string: write a name"),
        ("features", [{"name": "size"}], r"the entry {'name': 'size'} of the features lacks unit"),
        (
            "features",
            [{"name": "size in cm", "unit": ""}],
            r"'size in cm' is not a valid name of a feature: names must be distinct, and w",
        ),
        (
            "features",
            [{"name": "size", "unit": ""}] * 2,
            "'size' is not a valid name of a feature: names must be distinct, and without b",
        ),
        (
            "features",
            [{"name": "gaps", "unit": "category", "categories": ["a", "b"]}],
            r"categories of the feature gaps is \['a', 'b'\]: give their number",
        ),
        ("features", [{"name": "target", "unit": ""}], "the target target is one of the features: leave it out"),
        (
            "task",
            {"kind": "regression", "target": "target", "metric": "roc_auc", "group": "group", "cluster": "cluster"},
            "the metric roc_auc of the task does not fit its kind, regression: give root_mean_squared_error or",
        ),
        (
            "task",
            {"kind": "regression", "target": "target", "metric": "roc_auc", "group": None, "cluster": "cluster"},
            "group of the task is None: give the name of a column of rows/SPLIT",
        ),
        (
            "task",
            {
                "kind": "regression",
                "target": "target",
                "metric": "root_mean_squared_error",
                "group": "group",
                "cluster": "cluster",
                "weight": ["w"],
            },
            r"weight of the task is \['w'\]: give the name of a column of rows/SPLIT",
        ),
        (
            "task",
            {"kind": "binary", "target": "target", "metric": "log_loss", "group": "g", "cluster": "c", "is_relative": "no"},
            "is_relative of the task is no: give True or False",
        ),
        ("task", {"kind": "regression"}, "the entry task of the manifest is not a Task .*'target', 'metric'.*: write datac"),
        ("task", "regression", "the entry task of the manifest is not a Task"),
        ("splits", {"train": {"rows": "20"}}, "the entry splits of the manifest is {'train': {'rows': '20'}}: write {name"),
        (
            "splits",
            ["train", "test"],
            r"the entry splits of the manifest is \['train', 'test'\]: write {name: {'rows': number}",
        ),
        ("splits", {}, "the entry splits of the manifest is {}: write {name: {'rows': number}"),
        ("splits", {"train": 20}, "the entry splits of the manifest is {'train': 20}: write {name: {'rows': number}"),
        ("splits", {"train": {"rows": 12345}}, "rows/train has 20 rows, and the manifest gives 12,345: the two numbers"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, entry: str, value: Any, sentence: str) -> None:
    """The author of a recipe would get a KeyError in the report, after all trainings, or a score that is too good."""
    with pytest.raises(UserError, match=sentence):
        prepared.check("small", tmp_path, {**write(tmp_path), entry: value})


def numbers(first: float) -> np.ndarray:
    return np.append(first, np.ones(NUM_ROWS - 1))


@pytest.mark.parametrize(
    ("split", "changes", "sentence"),
    [
        ("train", {"row_id": numbers(1).astype(int)}, "the row_id 1 occurs more than once, in rows/train:"),
        ("blend", {"row_id": np.arange(NUM_ROWS)}, "the row_id 0 occurs more than once, in rows/train and rows/blend:"),
        ("train", {"target": numbers(np.nan)}, "target is missing or invalid in 1 of the 20 rows of rows/train"),
        ("blend", {"target": numbers(np.nan)}, "rows of rows/blend, the first is nan with row_id 200"),
        ("test", {"target": numbers(-np.inf)}, "rows of rows/test, the first is -inf with row_id 300"),
        ("test", {"target": numbers(np.inf)[::-1]}, "the first is inf with row_id 319:"),
        ("blend", {"row_id": 10**15 * (np.arange(NUM_ROWS) // 2 + 1)}, "the row_id 1000000000000000 occurs more than once"),
        ("test", {"size": numbers(-np.inf).astype(np.float32)}, "1 values of size in rows/test are infinite: missing"),
        ("train", {"target": numbers(1e200)}, "the first is 1e+200 with row_id 0: rows of all splits but forecast need"),
    ],
)  # fmt: skip
def test_rows_that_no_member_can_use_are_refused(split: str, changes: Any, sentence: str, tmp_path: Path) -> None:
    """The member would be trained for an hour before the ensemble refuses it."""
    manifest = write(tmp_path, split, **changes)
    with pytest.raises(UserError, match=re.escape(sentence)):
        prepared.check("small", tmp_path, manifest)


def test_a_forecast_without_rows_is_refused(tmp_path: Path) -> None:
    """All members would be trained, and then fail at the forecast with a traceback."""
    manifest = write(tmp_path)
    table = open_table(tmp_path / "rows/train")
    with TableWriter(tmp_path / "rows/none", table.schema) as writer:
        writer.write(table[:0])
    shutil.rmtree(tmp_path / "rows/forecast")
    (tmp_path / "rows/none").rename(tmp_path / "rows/forecast")
    manifest["splits"]["forecast"]["rows"] = 0
    with pytest.raises(
        UserError, match=r"rows/forecast has 0 rows, and the manifest gives 0: the two numbers must be equal, and at least 1"
    ):
        prepared.check("small", tmp_path, manifest)


@pytest.mark.parametrize(
    ("kind", "metric", "invalid", "rule"),
    [
        ("binary", "log_loss", (2, -1, 0.5), "need a target of 0 or 1"),
        ("multiclass", "multiclass_log_loss", (3, -1, 0.5), "need a target that is a whole number from 0 to 2"),
        ("ranking", "ndcg_at_10", (-1, np.inf), "need a target of at least 0"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_refused(
    kind: str, metric: str, invalid: tuple[float, ...], rule: str, tmp_path: Path
) -> None:
    """A network would learn from a binary target of 2, and its loss would fall below 0."""
    task = Task(kind=kind, target="target", metric=metric, group="group", cluster="cluster", classes=("a", "b", "c"))
    for number, value in enumerate((1.0, *invalid)):
        folder = tmp_path / str(number)
        manifest = {**write(folder, "train", target=numbers(value)), "task": dataclasses.asdict(task)}
        manifest["splits"] = {"train": manifest["splits"]["train"]}
        if value == 1:
            prepared.check("small", folder, manifest)
            continue
        with pytest.raises(
            UserError, match=f"the first is {value:g} with row_id 0: rows of all splits but forecast {rule};"
        ):
            prepared.check("small", folder, manifest)


def test_only_a_binary_target_is_relative(tmp_path: Path) -> None:
    """The author of a recipe would expect levelled groups, and get none."""
    manifest = write(tmp_path)
    manifest["task"]["is_relative"] = True
    with pytest.raises(UserError, match="the regression task has is_relative=True: only a binary target can be relative"):
        prepared.check("small", tmp_path, manifest)
    manifest["task"] |= {"kind": "binary", "metric": "log_loss", "weight": "w"}
    with pytest.raises(UserError, match="the task has is_relative=True and weight=w: leave one of them out"):
        prepared.check("small", tmp_path, manifest)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_invalid_weights_are_refused(weight: float, tmp_path: Path) -> None:
    """A network would learn the opposite from a row with a negative weight, and nothing from any row with NaN."""
    manifest = write(tmp_path, "train", w=numbers(weight))
    manifest["task"]["weight"] = "w"
    manifest["splits"] = {"train": manifest["splits"]["train"]}
    with pytest.raises(UserError, match=f"the first is {weight:g} with row_id 0: weights must be from 0 to 3e\\+38;"):
        prepared.check("small", tmp_path, manifest)


@pytest.mark.parametrize("ids", [500 - np.arange(NUM_ROWS), 10**15 * np.arange(1, NUM_ROWS + 1), -1 - np.arange(NUM_ROWS)])
def test_ids_may_have_any_order_and_any_size(ids: np.ndarray, tmp_path: Path) -> None:
    """Hashes as ids would be refused, or need memory for all numbers between them."""
    prepared.check("small", tmp_path, write(tmp_path, "test", row_id=ids))


def test_values_that_train_never_had_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No message would say that a forecast depends on values that no tree has seen."""
    prepared.check("small", tmp_path / "a", write(tmp_path / "a"))
    assert capsys.readouterr().out == ""
    prepared.check("small", tmp_path / "b", write(tmp_path / "b", "test", size=numbers(np.nan).astype(np.float32)))
    warning = "warning: the feature size is empty or unknown in 1 of 20 rows of test, and never in train:"
    out = capsys.readouterr().out
    assert (out.startswith(warning), out.count("warning: ")) == (True, 1)


def test_only_some_features_have_a_warning_of_their_own() -> None:
    """A table of a thousand columns would print a thousand warnings, and nobody would see the others."""
    names = [f"f{number}" for number in range(12)]
    tables = {"train": pa.table({name: [1.0] for name in names}), "test": pa.table({name: [np.nan] for name in names})}
    warnings = prepared.unknown_values(tables, names)
    assert len(warnings) == 6
    assert warnings[-1] == "the same is true of f5, f6, f7, f8, f9 and 2 more: see ensemble/trees/unknown.py"
