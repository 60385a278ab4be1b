"""A tree member: the panel's features to a trained booster in a folder, and back to predictions.

    python scripts/train_trees.py library=xgboost data=runs/demo/prepared out=runs/demo/members/xgboost

Both libraries train on the same rows, stop early on the validation split by average precision, and leave in their folder

    model.ubj | model.txt   config.json  metrics.jsonl  importance.json  importance.png  summary.json  manifest.json

The manifest's checksums are compared before a model is read: on a damaged one both libraries abort the process.
"""

import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import config as configuration
from ensemble.data import inputs, manifest
from ensemble.data.arrow import open_table
from ensemble.errors import UserError
from ensemble.trees.config import TreesConfig

ROWS_PER_BATCH = 1 << 17
MODULES = {"xgboost": "ensemble.trees.xgb", "lightgbm": "ensemble.trees.lgbm"}
NUM_REASONS = 4
ROWS_WITH_REASONS = 1000


class TreeData:
    """One split of the panel as a tree library reads it; nothing is copied before a batch is asked for."""

    def __init__(self, folder: str | Path, split: str, about: dict[str, Any]):
        if split not in about["splits"]:
            raise UserError(f"{folder} has no split '{split}': it has {', '.join(about['splits'])}")
        self.table = open_table(Path(folder) / "rows" / split)
        self.features = [feature["name"] for feature in about["features"]]

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> np.ndarray:
        return self.table[name].to_numpy()

    def feature_table(self) -> pa.Table:
        """The features as an Arrow table of float32 columns, still memory-mapped."""
        return self.table.select(self.features)

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Features (n, F) float32 and target (n,), a batch of rows at a time."""
        for batch in self.table.select([*self.features, "hot"]).to_batches(max_chunksize=ROWS_PER_BATCH):
            columns = [batch.column(number).to_numpy() for number in range(len(self.features))]
            yield np.stack(columns, axis=1), batch.column(len(self.features)).to_numpy()


def train(config: TreesConfig) -> dict[str, Any]:
    """Grow a member and write its folder; returns the summary. Call `threads.settle` first."""
    _check(config)
    about = _about(config.data)
    manifest.verify(config.data)
    library = _library(config.library)
    began = time.monotonic()
    with manifest.new_folder(config.out, config.overwrite, "tree member") as folder:
        train_rows, validation_rows = (TreeData(config.data, split, about) for split in ("train", "validation"))
        booster, history, best_round = library.train(config, train_rows, validation_rows)
        library.save(booster, folder / library.FILE)
        importance = dict(sorted(library.importance(booster).items(), key=lambda item: -item[1]))
        manifest.write_json(folder / "importance.json", importance)
        draw_importance(importance, folder / "importance.png", config.library)
        manifest.write_json(folder / "config.json", configuration.to_dict(config))
        with open(folder / "metrics.jsonl", "w", encoding="utf-8") as lines:
            for number, values in enumerate(history, start=1):
                lines.write(json.dumps({"kind": "val", "step": number, **values}) + "\n")
        summary = {
            "kind": config.library,
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "inputs": inputs.meaning(about),
            "rows": len(train_rows),
            "trees": best_round,
            "seconds": round(time.monotonic() - began, 1),
            "validation_average_precision": history[best_round - 1]["average_precision"],
        }
        manifest.write_json(folder / "summary.json", summary)
        manifest.write_manifest(folder, {"kind": "tree member"})
    return summary


def predict(folder: str | Path, data: str | Path, split: str) -> dict[str, Any]:
    """The member's probabilities for a split, and for the forecast why: the arguments of `predictions.Predictions`.

    Raises `UserError` for a damaged member, and for data or a split that it must not predict.
    """
    about = _about(data)
    summary = manifest.read_json(Path(folder) / "summary.json")
    model = manifest.verify(folder)["fingerprint"]
    config = manifest.read_json(Path(folder) / "config.json")
    library = _library(summary["kind"])
    booster = library.load(Path(folder) / library.FILE)
    rows = TreeData(data, split, about)
    inputs.refuse_foreign(folder, summary, data, about, split)
    prediction = np.concatenate([library.predict(booster, features) for features, _ in rows.batches()])
    return {
        "row_id": rows.column("row_id"),
        "target": rows.column("hot").astype(np.float64),
        "prediction": prediction.astype(np.float64),
        "group": rows.column("week"),
        "cluster": rows.column("product"),
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        "config": {**config, "model": model},
        "reasons": _reasons(library, booster, rows, prediction) if split == "forecast" else None,
    }


def draw_importance(importance: dict[str, float], file: Path, title: str) -> None:
    """A bar for each of the twenty features that gained most, as a part of the whole gain."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    total = sum(importance.values()) or 1.0
    top = list(importance.items())[:20][::-1]
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    axes.barh([name for name, _ in top], [100 * gain / total for _, gain in top], color="#3a6ea5")
    axes.set_xlabel("share of the gain, %")
    axes.set_title(f"{title}: what the trees split on")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _reasons(library: ModuleType, booster: Any, rows: TreeData, prediction: np.ndarray) -> list[list[dict[str, Any]]]:
    """For the rows with the highest predictions, the features that raised them most, in log odds (TreeSHAP)."""
    reasons: list[list[dict[str, Any]]] = [[] for _ in prediction]
    top = np.argsort(-prediction, kind="stable")[:ROWS_WITH_REASONS]
    features = np.stack([rows.column(name)[top] for name in rows.features], axis=1)
    contributions = library.contributions(booster, features)
    strongest = np.argsort(-contributions, axis=1, kind="stable")[:, :NUM_REASONS]
    for number, row in enumerate(top):
        reasons[row] = [
            {
                "feature": rows.features[feature],
                "value": float(features[number, feature]),
                "contribution": float(contributions[number, feature]),
            }
            for feature in strongest[number]
            if contributions[number, feature] > 0
        ]
    return reasons


def _about(data: str | Path) -> dict[str, Any]:
    about = manifest.read_manifest(data)
    if "features" not in about:
        raise UserError(f"{data} has no table of features for trees: it was prepared for the recipe {about['recipe']}")
    return about


def _library(name: str) -> ModuleType:
    return importlib.import_module(MODULES[name])


def _check(config: TreesConfig) -> None:
    configuration.check(
        config,
        learning_rate=(0 < config.learning_rate <= 1, "above 0 and at most 1"),
        num_rounds=(config.num_rounds >= 1, "at least 1"),
        early_stopping_rounds=(config.early_stopping_rounds >= 1, "at least 1"),
        max_leaves=(config.max_leaves >= 2, "at least 2"),
        min_leaf_weight=(config.min_leaf_weight >= 0, "0 or more"),
        row_fraction=(0 < config.row_fraction <= 1, "above 0 and at most 1"),
        column_fraction=(0 < config.column_fraction <= 1, "above 0 and at most 1"),
        l2=(config.l2 >= 0, "0 or more"),
        seed=(config.seed >= 0, "0 or more"),
    )
