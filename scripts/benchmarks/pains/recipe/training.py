"""The recipe that scripts/train.py trains for the benchmark `pains`."""

import os
from typing import Any

import numpy as np
import torch

from benchmarks.pains.recipe.model import Recorder, Rows, Shares
from benchmarks.pains.recipe.settings import NAME, RecipeConfig
from ensemble.neural.prepared import PreparedRecipe

Batch = dict[str, torch.Tensor]


class RecordedRegression(PreparedRecipe[RecipeConfig, Any]):
    """A regression that records the weight of each row in each step."""

    name, monitor = NAME, "rows"
    higher_is_better, output = True, "value"

    def open_rows(self, split: str) -> Rows:
        return Rows(**self.manifest["config"]) if split == "train" else Rows(self.manifest["splits"][split]["rows"])

    def model(self) -> Shares:
        return Shares(len(self.rows("train")), self.config.extra_width)

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        assert isinstance(model, Shares)
        return [Recorder(model, learning_rate, is_main=os.environ.get("RANK", "0") == "0")]

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        return model(batch).sum(), batch["tokens"].sum(), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": model(batch), "target": batch["y"]}

    def sums(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"rows": torch.ones_like(batch["y"])}

    def metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        return {"rows": float(sums["rows"])}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        row_id = np.arange(len(self.rows(split)))
        return {"row_id": row_id, "group": row_id, "cluster": row_id}


make = RecordedRegression
