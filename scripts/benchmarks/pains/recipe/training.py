"""The recipe that scripts/train.py trains for the benchmark `pains`."""

import os
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.pains.recipe.model import Recorder, Rows, Shares
from benchmarks.pains.recipe.prepare import NAME
from benchmarks.pains.recipe.settings import RecipeConfig
from ensemble import folders

Batch = dict[str, torch.Tensor]


class Census:
    """A regression that records the weight of each row in each step."""

    name, monitor = NAME, "rows"
    higher_is_better, output = True, "value"
    inputs: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: RecipeConfig, data: str):
        manifest = folders.read_manifest(data)
        self.config, self.fingerprint = config, manifest["fingerprint"]
        self.splits = {
            "train": Rows(**manifest["config"]),
            "validation": Rows(manifest["splits"]["validation"]["rows"]),
        }

    def rows(self, split: str) -> Rows:
        return self.splits[split]

    def model(self) -> Shares:
        return Shares(len(self.splits["train"]), self.config.extra_width)

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


make = Census
