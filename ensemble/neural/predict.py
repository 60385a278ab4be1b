"""A trained neural member: its run folder to predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ensemble import configuration, folders, recipe
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural import checkpoint, evaluation
from ensemble.neural.settings import config_class

if TYPE_CHECKING:
    from accelerate import Accelerator


class NeuralMember:
    """The best checkpoint of a run in memory; the shape of its model follows from what `data` are like, not from their rows.

    `options` are those settings of scripts/predict.py that a recipe's `predicting` takes. Raises `UserError` for a damaged
    checkpoint, and for data that mean something else.
    """

    def __init__(
        self, folder: str | Path, accelerator: "Accelerator", data: str | Path, options: dict[str, Any] | None = None
    ):
        best = Path(folder) / "best"
        if not best.is_dir():
            raise UserError(f"{best} does not exist: name the folder of a run of scripts/train.py that was validated once")
        self.folder, self.accelerator = Path(folder), accelerator
        model = folders.verify(best)["fingerprint"]
        self._state = folders.read_json(best / "state.json")
        self._config = {**self._state["config"], "model": model}
        settings: Any = configuration.from_dict(config_class(self._state["recipe"]), self._state["config"])
        self._recipe_config = settings.recipe
        # Of data that mean something else the weights have another shape
        inputs.refuse_foreign(folder, self._state, data, folders.read_manifest(data), inputs.FORECAST)
        self._batch_size = settings.micro_batch_size or settings.batch_size
        self._options = options or {}
        self.model = self.recipe_of(data).model()
        checkpoint.load_weights(best, self.model)
        self.model.to(accelerator.device)

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """What it says of a split, on every rank: the arguments of `predictions.Predictions`, or of `rankings.Rankings` if
        its recipe ranks items.

        Raises `UserError` for data or a split that it must not predict.
        """
        manifest = folders.read_manifest(data)
        inputs.refuse_foreign(self.folder, self._state, data, manifest, split)
        its = self.recipe_of(data)
        found = evaluation.predict(its, self.model, split, self._batch_size, self.accelerator)
        about = {"recipe": manifest["recipe"], "fingerprint": its.fingerprint, "config": {**self._config, **self._options}}
        if hasattr(its, "columns"):
            return {**its.columns(split, found), "output": its.output, **about}
        rows = its.describe(split)
        if its.output == recipe.RANKING:
            del found["prediction"]
            return {"row_id": rows["row_id"], "user": rows["cluster"], **found, **about}
        names = ["target", "prediction", *(["weight"] if "weight" in found and split != inputs.FORECAST else [])]
        columns: dict[str, Any] = {name: found[name].astype(np.float64) for name in names}
        if its.output == "probabilities":
            columns["classes"] = tuple(manifest["task"]["classes"])
        if split == inputs.FORECAST and hasattr(its, "reasons"):
            columns["reasons"] = its.reasons(self.model, columns["prediction"])
        return {**rows, **columns, "output": its.output, **about}

    def recipe_of(self, data: str | Path) -> Any:
        """Its `NeuralRecipe` on a folder of prepared data."""
        make = recipe.of(self._state).require("training", "make", "has no neural network")
        its = make(self._recipe_config, str(data))
        if self._options:
            if not hasattr(its, "predicting"):
                given = ", ".join(f"{name}={value}" for name, value in self._options.items())
                raise UserError(f"{given}: a member of the recipe {its.name} has no such choices; leave them out")
            its.predicting(**self._options)
        return its
