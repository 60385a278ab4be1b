"""Prepared data with flat features, written at once: for tests of members that train on any such folder."""

from pathlib import Path
from typing import Any

import numpy as np
import prepared_folders
import pyarrow as pa

from ensemble.task import Task

NUM_NUMBERS, NUM_CATEGORIES = 3, 4


def columns(num_rows: int, kind: str = "binary", seed: int = 0) -> dict[str, np.ndarray]:
    """Three numbers, of which the second is missing in some rows, a category, and a target that follows from them."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(num_rows, NUM_NUMBERS)).astype(np.float32)
    category = generator.integers(0, NUM_CATEGORIES, num_rows).astype(np.float32)
    score = 1.5 * numbers[:, 0] + (category == 2) + generator.normal(0, 0.3, num_rows)
    target = {
        "binary": score > 0.2,
        "multiclass": np.digitize(score, [-0.5, 1.0]),
        "regression": score,
        "ranking": np.digitize(score, [1.0]),
    }[kind]
    numbers[generator.random(num_rows) < 0.1, 1] = np.nan
    return {
        "row_id": np.arange(num_rows),
        "group": np.arange(num_rows) // 10 if kind == "ranking" else np.zeros(num_rows, np.int64),
        "cluster": np.arange(num_rows),
        "target": target.astype(np.float64),
        **{f"x{number}": numbers[:, number] for number in range(NUM_NUMBERS)},
        "c": category,
    }


def write(
    folder: Path,
    splits: dict[str, dict[str, np.ndarray]],
    kind: str = "binary",
    cross_validation: dict[str, Any] | None = None,
    **entries: Any,
) -> Path:
    """A folder of prepared data with the columns of each split; `entries` are added to the manifest."""
    features = [{"name": f"x{number}", "unit": ""} for number in range(NUM_NUMBERS)]
    features.append({"name": "c", "unit": "category", "categories": NUM_CATEGORIES})
    any_split = next(iter(splits.values()))
    task = Task(
        kind=kind,
        target="target",
        metric={
            "binary": "log_loss",
            "multiclass": "multiclass_log_loss",
            "regression": "root_mean_squared_error",
            "ranking": "ndcg_at_10",
        }[kind],
        group="group",
        cluster="cluster",
        weight="weight" if "weight" in any_split else "",
        classes=("low", "mid", "top") if kind == "multiclass" else (),
    )
    alike = {"features": [feature["name"] for feature in features], "target": kind}
    content: dict[str, Any] = {"recipe": "table", "features": features, "alike": alike}
    if cross_validation:
        content["cross_validation"] = cross_validation
    tables = {split: pa.table(arrays) for split, arrays in splits.items()}
    prepared_folders.write(folder, tables, task, **content | entries)
    return folder


def folded(arrays: dict[str, np.ndarray], num_folds: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns and a column `fold` for the scheme random, and the entry `cross_validation` of the manifest."""
    fold = np.random.default_rng(5).permutation(len(arrays["row_id"])) % num_folds
    return {**arrays, "fold": fold}, {"scheme": "random", "num_folds": num_folds, "embargo": 0.0, "begins": []}
