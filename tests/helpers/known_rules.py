"""Prepared tables of any kind of task whose target follows from a known rule, and members of trees trained on them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa
import tree_members

from ensemble.arrow import open_table
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.task import Task
from ensemble.trees.settings import TreesConfig

METRICS = {
    "binary": "average_precision",
    "multiclass": "multiclass_log_loss",
    "regression": "root_mean_squared_error",
    "ranking": "ndcg_at_10",
}
KINDS = list(METRICS)
NUM_ROWS = {"train": 1600, "validation": 800, "test": 800, "forecast": 60}
NUM_CODES = 30
GROUP_SIZE = 20
Columns = dict[str, np.ndarray]


def columns(split: str) -> Columns:
    """Two useful features, the second with missing values, a category whose parity is useful, and one feature of noise.

    `noisy` is `truth` plus noise. The rows of a group are not consecutive.
    """
    num_rows = NUM_ROWS[split]
    generator = np.random.default_rng(list(NUM_ROWS).index(split))
    first, second, noise = generator.standard_normal((3, num_rows)).round(1)
    code = generator.integers(NUM_CODES, size=num_rows).astype(float)
    truth = first + 0.7 * second + 0.8 * (code % 2)
    second[generator.random(num_rows) < 0.1] = np.nan
    code[generator.random(num_rows) < 0.05] = np.nan
    return {
        "row_id": 1000 * list(NUM_ROWS).index(split) + np.arange(num_rows),
        "group": np.arange(num_rows) % (num_rows // GROUP_SIZE),
        "cluster": np.arange(num_rows) // 3,
        "first": first,
        "second": second,
        "noise": noise,
        "code": code,
        "truth": truth,
        "noisy": truth + 0.5 * generator.standard_normal(num_rows),
        "weight": np.ones(num_rows),
    }


def target_of(kind: str, noisy: np.ndarray) -> np.ndarray:
    return {
        "binary": noisy > 1.5,
        "multiclass": np.digitize(noisy, [-0.3, 1.1]),
        "regression": noisy,
        "ranking": np.clip(np.floor(noisy + 1), 0, 4),
    }[kind]


def prepare(
    folder: Path,
    kind: str,
    change: Callable[[Columns], Columns] = lambda result: result,
    weight: str = "",
    categories: bool = True,
) -> Path:
    """A folder of prepared data; `change` may replace columns, and the column `target`."""
    kinds, tables = {"row_id": pa.int64(), "group": pa.int32(), "cluster": pa.int32()}, {}
    for split in NUM_ROWS:
        result = columns(split)
        result["target"] = target_of(kind, result["noisy"])
        result = change(result)
        if split == "forecast":
            result["target"] = np.full(len(result["row_id"]), np.nan)
        tables[split] = pa.table({name: pa.array(result[name], kinds.get(name, pa.float32())) for name in result})
    task = Task(
        kind=kind, target="target", metric=METRICS[kind], group="group", cluster="cluster", weight=weight,
        classes=("low", "middle", "high") if kind == "multiclass" else (),
    )  # fmt: skip
    features: list[dict[str, Any]] = [{"name": name} for name in ("first", "second", "noise", "code")]
    if categories:
        features[3]["categories"] = NUM_CODES
    prepared_folders.write(folder, tables, task, features)
    return folder


def read(folder: Path, split: str) -> Any:
    return open_table(folder / "rows" / split).to_pandas()


def config(library: str, data: Path, out: Path, **settings: Any) -> TreesConfig:
    values: dict[str, Any] = {"num_rounds": 40, "early_stopping_rounds": 10, "learning_rate": 0.15, "min_leaf_weight": 1.0}
    return tree_members.config_of(library, data, out, **{**values, **settings})


def history_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def score(metric: str, result: dict[str, Any], prediction: np.ndarray | None = None) -> float:
    """The score of the predictions in `result`, or of other ones."""
    prediction = result["prediction"] if prediction is None else prediction
    return METRIC_FUNCTIONS[metric].function(result["target"], prediction, result["group"])
