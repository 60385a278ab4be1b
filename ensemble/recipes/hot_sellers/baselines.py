"""The baseline `momentum`. Its score is growth_4w: reviews in the last 4 weeks ÷ (reviews in the 4 weeks before + 1).

python scripts/predict.py member=momentum data=runs/demo/prepared out=runs/demo/predictions
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.task import task_of

NAME = "momentum"
SCORE = "growth_4w"
"""The feature that is the score."""


def kinds(manifest: dict[str, Any]) -> dict[str, str]:
    """The names of the baselines, each with its kind."""
    return {NAME: "baseline"}


def predict(data: str | Path, split: str, name: str = NAME) -> dict[str, Any]:
    """The scores of a split, as arguments of `predictions.Predictions`."""
    manifest = folders.read_manifest(data)
    task, table = task_of(manifest), open_table(Path(data) / "rows" / split)
    return {
        "row_id": table["row_id"].to_numpy(),
        "target": table[task.target].to_numpy().astype(np.float64),
        "prediction": table[SCORE].to_numpy().astype(np.float64),
        "group": table[task.group].to_numpy(),
        "cluster": table[task.cluster].to_numpy(),
        "recipe": manifest["recipe"],
        "fingerprint": manifest["fingerprint"],
        "output": "score",
        "config": {"kind": "baseline", "score": SCORE},
    }
