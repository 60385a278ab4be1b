"""A trained neural member: its run folder to predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble import config as configuration
from ensemble.data import inputs, manifest
from ensemble.errors import UserError
from ensemble.neural import checkpoint, loop, recipes
from ensemble.neural.config import config_class

if TYPE_CHECKING:
    from accelerate import Accelerator


def predict(folder: str | Path, accelerator: "Accelerator", data: str | Path, split: str) -> dict[str, Any]:
    """The best checkpoint's predictions for a split, on every rank: the arguments of `predictions.Predictions`.

    Raises `UserError` for a damaged checkpoint, and for data or a split that it must not predict.
    """
    best = Path(folder) / "best"
    if not best.is_dir():
        raise UserError(f"{best} does not exist: name the folder of a run of scripts/train.py that was validated once")
    model_fingerprint = manifest.verify(best)["fingerprint"]
    state = manifest.read_json(best / "state.json")
    settings: Any = configuration.from_dict(config_class(state["recipe"]), state["config"])
    recipe = recipes.load(state["recipe"]).make(settings.recipe, str(data))
    inputs.refuse_foreign(folder, state, data, manifest.read_manifest(data), split)
    model = recipe.model()
    checkpoint.load_weights(best, model)
    found = loop.predict(
        recipe, model.to(accelerator.device), split, settings.micro_batch_size or settings.batch_size, accelerator
    )
    return {
        **recipe.describe(split),
        "target": found["target"].astype(np.float64),
        "prediction": found["prediction"].astype(np.float64),
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "config": {**state["config"], "model": model_fingerprint},
    }
