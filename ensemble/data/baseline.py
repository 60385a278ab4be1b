"""The baseline that every member must beat: rank products by their momentum, and no model at all."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.data import manifest
from ensemble.data.arrow import open_table
from ensemble.errors import UserError

NAME = "momentum"
SCORE = "growth_4w"
RECIPE = "hot_sellers"


def predict(data: str | Path, split: str) -> dict[str, Any]:
    """The score growth_4w (this month's reviews by last month's) of a split: the arguments of `predictions.Predictions`."""
    about = manifest.read_manifest(data)
    if about["recipe"] != RECIPE:
        raise UserError(
            f"{NAME} ranks products, and {data} was prepared for the recipe {about['recipe']}: leave this baseline out, the "
            "base rate stands beside the members without it"
        )
    if split not in about["splits"]:
        raise UserError(f"{data} has no split '{split}': it has {', '.join(about['splits'])}")
    table = open_table(Path(data) / "rows" / split)
    return {
        "row_id": table["row_id"].to_numpy(),
        "target": table["hot"].to_numpy().astype(np.float64),
        "prediction": table[SCORE].to_numpy().astype(np.float64),
        "group": table["week"].to_numpy(),
        "cluster": table["product"].to_numpy(),
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        "config": {"kind": "baseline", "score": SCORE},
    }
