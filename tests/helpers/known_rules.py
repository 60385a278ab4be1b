"""Prepared tables of any kind of task whose target follows from a known rule, and members of trees trained on them."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa

from ensemble.arrow import open_table
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.task import Task
from ensemble.trees.predict import MODULES
from ensemble.trees.settings import TreesConfig

FILES = {"xgboost": "model.ubj", "lightgbm": "model.txt"}
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


def module(library: str) -> ModuleType:
    return importlib.import_module(MODULES[library])


def columns(split: str) -> Columns:
    """Two features that matter, the second not always there, a code whose parity matters, and one feature of noise.

    `truth` is a number of which `noisy` is seen; groups do not stand together.
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


def target_of(kind: str, found: Columns) -> np.ndarray:
    noisy = found["noisy"]
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
    """A folder of prepared data; `change` may put other columns in the place of some, and other targets as `target`."""
    kinds, tables = {"row_id": pa.int64(), "group": pa.int32(), "cluster": pa.int32()}, {}
    for split in NUM_ROWS:
        result = columns(split)
        result["target"] = target_of(kind, result)
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
    values |= {"threads": 1, **settings}
    return TreesConfig(library=library, data=str(data), out=str(out), **values)  # type: ignore[arg-type]


def model(out: Path) -> bytes:
    (file,) = (out / name for name in FILES.values() if (out / name).exists())
    return file.read_bytes()


def history_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def score(metric: str, found: dict[str, Any], prediction: np.ndarray | None = None) -> float:
    prediction = found["prediction"] if prediction is None else prediction
    return METRIC_FUNCTIONS[metric].function(found["target"], prediction, found["group"])
