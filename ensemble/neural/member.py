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


class LoadedMember:
    """The best checkpoint of a run in memory; the shape of its model follows from what `data` are like, not from their rows.

    Raises `UserError` for a damaged checkpoint, and for data that mean something else.
    """

    def __init__(self, folder: str | Path, accelerator: "Accelerator", data: str | Path):
        best = Path(folder) / "best"
        if not best.is_dir():
            raise UserError(f"{best} does not exist: name the folder of a run of scripts/train.py that was validated once")
        self.folder, self.accelerator = Path(folder), accelerator
        model = manifest.verify(best)["fingerprint"]
        self._state = manifest.read_json(best / "state.json")
        self._config = {**self._state["config"], "model": model}
        settings: Any = configuration.from_dict(config_class(self._state["recipe"]), self._state["config"])
        self._recipe_config = settings.recipe
        # Of data that mean something else the weights have another shape
        inputs.refuse_foreign(folder, self._state, data, manifest.read_manifest(data), inputs.FORECAST)
        self._batch_size = settings.micro_batch_size or settings.batch_size
        self._model = self._recipe(data).model()
        checkpoint.load_weights(best, self._model)
        self._model.to(accelerator.device)

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """What it says of a split, on every rank: the arguments of `predictions.Predictions`, or of `rankings.Rankings` if
        its recipe ranks items.

        Raises `UserError` for data or a split that it must not predict.
        """
        inputs.refuse_foreign(self.folder, self._state, data, manifest.read_manifest(data), split)
        recipe = self._recipe(data)
        found = loop.predict(recipe, self._model, split, self._batch_size, self.accelerator)
        rows = recipe.describe(split)
        about = {"recipe": recipe.name, "fingerprint": recipe.fingerprint, "config": self._config}
        if "items" in found:
            del found["prediction"]
            return {"row_id": rows["row_id"], "user": rows["cluster"], **found, **about}
        columns = {name: found[name].astype(np.float64) for name in ("target", "prediction")}
        return {**rows, **columns, **about}

    def _recipe(self, data: str | Path) -> Any:
        return recipes.load(self._state["recipe"]).make(self._recipe_config, str(data))
