"""Prediction files of made-up members, and changes to them that `predictions.write` would refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ensemble import predictions
from ensemble.predictions import Predictions
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers import baselines

SPLITS = ("blend", "test", "forecast")
REASONS = [{"feature": "reviews_4w", "value": 7.0, "contribution": 0.5}]


def synthetic(data: Path, name: str, split: str, noise: float, seed: int) -> Predictions:
    """A member whose logits are those of the target plus noise; its rows are in a random order."""
    rows = baselines.predict(data, split)
    generator = np.random.default_rng([seed, SPLITS.index(split)])
    target = np.nan_to_num(rows["target"])
    logit = 2 * target - 3 + noise * generator.normal(size=len(target))
    config = {"kind": "xgboost", "folder": f"/nowhere/{name}"}
    rows |= {"prediction": 1 / (1 + np.exp(-logit)), "output": "probability", "config": config}
    order = generator.permutation(len(target))
    arrays = {key: rows[key][order] for key in predictions.COLUMNS}
    reasons = [REASONS for _ in order] if split == "forecast" and name == "clear" else None
    return Predictions(**{**rows, **arrays}, split=split, member=name, reasons=reasons)


def fit(files: Path, prepared: Path, out: Path, **settings: Any) -> dict[str, Any]:
    return predictor.fit(files, prepared, out, num_draws=20, **settings)


def change(path: Path, **changed: Any) -> None:
    """Rewrite a prediction file with other values, without the checks and the checksums of `predictions.write`."""
    table = pq.read_table(path)
    metadata = json.loads(table.schema.metadata[predictions.KEY])
    metadata.pop("checksums", None)
    for name, value in changed.items():
        if name in predictions.COLUMNS:
            kind = predictions.COLUMNS[name]
            table = table.set_column(table.column_names.index(name), name, pa.array(value, kind))
        else:
            metadata[name] = value
    pq.write_table(table.replace_schema_metadata({predictions.KEY: json.dumps(metadata).encode()}), path)
