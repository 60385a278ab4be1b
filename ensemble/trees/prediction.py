"""A trained tree member, asked for its predictions.

    python scripts/predict.py member=runs/demo/members/xgboost data=runs/demo/prepared out=runs/demo/predictions

Call `threads.settle` before a member is loaded.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data import inputs, manifest
from ensemble.trees.rows import TreeData, description

MODULES = {"xgboost": "ensemble.trees.xgb", "lightgbm": "ensemble.trees.lgbm"}
NUM_REASONS = 4
ROWS_WITH_REASONS = 1000


def module_of(library: str) -> ModuleType:
    """The one that speaks with the library; loads it."""
    return importlib.import_module(MODULES[library])


class LoadedMember:
    """A member in memory; the manifest's checksums are compared first, for on a damaged model both libraries abort.

    Raises `UserError` for a folder that is no sound member.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._summary = manifest.read_json(self.folder / "summary.json")
        model = manifest.verify(self.folder)["fingerprint"]
        self._config = {**manifest.read_json(self.folder / "config.json"), "model": model}
        self._library = module_of(self._summary["kind"])
        self._booster = self._library.load(self.folder / self._library.FILE)

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """Its probabilities for a split, and for the forecast why: the arguments of `predictions.Predictions`.

        Raises `UserError` for data or a split that it must not predict.
        """
        about = description(data)
        rows = TreeData(data, split, about)
        inputs.refuse_foreign(self.folder, self._summary, data, about, split)
        prediction = np.concatenate([self._library.predict(self._booster, features) for features, _ in rows.batches()])
        return {
            "row_id": rows.column("row_id"),
            "target": rows.column("hot").astype(np.float64),
            "prediction": prediction.astype(np.float64),
            "group": rows.column("week"),
            "cluster": rows.column("product"),
            "recipe": about["recipe"],
            "fingerprint": about["fingerprint"],
            "config": self._config,
            "reasons": _reasons(self._library, self._booster, rows, prediction) if split == inputs.FORECAST else None,
        }


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
