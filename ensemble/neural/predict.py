"""Predictions of a trained neural member, loaded from the folder of its run."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import configuration, folders, recipe
from ensemble.arrow import read_columns
from ensemble.data import inputs
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.neural import checkpoint, evaluation, guards, launch
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.settings import config_class, fitting_batch_size


class NeuralMember:
    """The best weights of a run, loaded. `data` must have the same inputs as the training data, and must be these
    data unless `split` is forecast.

    If a refit has trained weights on blend too (refit.py), they predict the splits after blend.
    accelerator : None for the model alone, on the CPU. options : the settings of scripts/predict.py that the recipe's
    `predicting` accepts. split : the split to predict. of_recipe : the required recipe of the member; empty for any.
    Raises `UserError` for damaged files, for data with other inputs, and for a recipe of the user's own that was not named
    with --recipe.
    """

    def __init__(
        self,
        folder: str | Path,
        accelerator: Accelerator | None,
        data: str | Path,
        options: dict[str, Any] | None = None,
        split: str = inputs.FORECAST,
        of_recipe: str = "",
    ):
        weights = folders.weights_of(Path(folder))
        if not weights:
            raise UserError(
                f"{Path(folder) / 'best'} does not exist: give the folder of a run of scripts/train.py with at least one "
                "evaluation"
            )
        self.folder, self.accelerator = Path(folder), accelerator
        self._state = folders.read_json(weights[0] / "state.json")
        name = self._state["recipe"]
        if of_recipe not in ("", name):
            raise UserError(f"{folder} is a network of the recipe {name}, not of {of_recipe}: name another member")
        self._config = {**self._state["config"], "model": folders.joint_fingerprint(weights)}
        settings: Any = configuration.from_dict(config_class(name), self._state["config"])
        self._recipe_config = settings.recipe
        # Before the weights are loaded, which have another shape if the inputs are others
        inputs.refuse_foreign(folder, self._state, data, folders.read_manifest(data), split)
        self._batch_size = fitting_batch_size(self._state, settings)
        self._options = options or {}
        self._models = []
        for path in weights:
            model = self.recipe_of(data).model()
            checkpoint.load_weights(path, model)
            self._models.append(model if accelerator is None else model.to(accelerator.device))
        self.model = self.model_of(split)
        """The model that predicts `split`."""

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """The predictions of a split, on every rank, as the arguments of `predictions.Predictions`, or of
        `rankings.Rankings` if the recipe ranks items.

        Raises `UserError` for data or a split that the member must not predict.
        """
        manifest = folders.read_manifest(data)
        inputs.refuse_foreign(self.folder, self._state, data, manifest, split)
        neural_recipe, model = self.recipe_of(data), self.model_of(split)
        assert self.accelerator is not None
        arrays = self._predictions(neural_recipe, model, split)
        config = {**self._config, **self._options}
        origin = {"recipe": manifest["recipe"], "fingerprint": neural_recipe.fingerprint, "config": config}
        if hasattr(neural_recipe, "columns"):
            return {**neural_recipe.columns(split, arrays), "output": neural_recipe.output, **origin}
        rows = neural_recipe.describe(split)
        if neural_recipe.output == recipe.RANKING:
            del arrays["prediction"]
            return {"row_id": rows["row_id"], "user": rows["cluster"], **arrays, **origin}
        has_weight = bool(manifest.get("task", {}).get("weight")) and split != inputs.FORECAST
        needed = {"weight": f"the task has weight={manifest['task']['weight']}"} if has_weight else {}
        needed["target"] = "prediction files have targets"
        for name, reason in needed.items():
            if name not in arrays:
                raise UserError(
                    f"predict(…) of the recipe {neural_recipe.name} returns no {name}, but {reason}: return this column as "
                    f"'{name}' too"
                )
        inputs.checked_columns(rows, f"describe(…) of the recipe {neural_recipe.name}", inputs.IDS)
        columns: dict[str, Any] = {name: arrays[name].astype(np.float64) for name in ("prediction", *needed)}
        for name in needed if "task" in manifest and split in manifest["splits"] else ():
            column = manifest["task"][name]
            stored = read_columns(Path(data) / "rows" / split, {"row_id", column})
            if np.array_equal(stored["row_id"], rows["row_id"]) and arrays[name].shape == stored[column].shape:
                _refuse_other(neural_recipe.name, split, name, column, arrays[name], stored)
                columns[name] = stored[column].astype(np.float64)
        if neural_recipe.output == "probabilities":
            columns["classes"] = tuple(manifest["task"]["classes"])
        if split == inputs.FORECAST and hasattr(neural_recipe, "reasons"):
            columns["reasons"] = neural_recipe.reasons(model, columns["prediction"])
        if split == OUT_OF_FOLD and hasattr(neural_recipe, "importance"):
            columns["importance"] = neural_recipe.importance(model)
        return {**rows, **columns, "output": neural_recipe.output, **origin}

    def _predictions(self, neural_recipe: Any, model: Any, split: str) -> dict[str, np.ndarray]:
        """The predictions of a split, in batches of the size used in training, which is halved while memory is too small."""
        assert self.accelerator is not None
        while True:
            try:
                return evaluation.predict(neural_recipe, model, split, self._batch_size, self.accelerator)
            except Exception as error:
                # With sharded weights the ranks would wait for each other
                if self._batch_size == 1 or not guards.is_out_of_memory(error) or launch.is_sharded(self.accelerator):
                    raise
            self._batch_size //= 2

    def model_of(self, split: str) -> Any:
        """The model that predicts a split: the refitted one if there is one, unless the refit trained it on this split."""
        return self._models[0 if split in inputs.LEARNED else -1]

    def recipe_of(self, data: str | Path) -> Any:
        """The member's `NeuralRecipe` on a folder of prepared data."""
        make = recipe.of(self._state).require("training", "make", "has no neural network")
        neural_recipe = make(self._recipe_config, str(data))
        if self._options:
            if not hasattr(neural_recipe, "predicting"):
                options = ", ".join(f"{name}={value}" for name, value in self._options.items() if value)
                name = neural_recipe.name
                raise UserError(f"{options}: members of the recipe {name} have no such settings; leave them out")
            neural_recipe.predicting(**self._options)
        return neural_recipe


def _refuse_other(
    name: str, split: str, returned_name: str, column: str, returned: np.ndarray, stored: dict[str, np.ndarray]
) -> None:
    """Raise `UserError` unless `predict` of the recipe `name` returned the values of a column of rows/SPLIT, perhaps in
    float32; the targets of a forecast are unknown.

    stored : this column and row_id
    """
    differs = stored[column].astype(np.float32) != returned.astype(np.float32)
    if split != inputs.FORECAST and differs.any():
        first = int(differs.argmax())
        raise UserError(
            f"predict(…) of the recipe {name} returns the {returned_name} {returned[first]:g} for the row_id "
            f"{stored['row_id'][first]} of rows/{split}, but its column {column} has {stored[column][first]:g}: return the "
            "values of this column, and let `gather` return the rows in the given order"
        )
