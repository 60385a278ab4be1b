"""What the loop asks of a recipe, and all that it knows of one."""

from typing import Any, Protocol

import numpy as np
import torch

from ensemble.neural.carry import State
from ensemble.neural.loader import Batch, Rows


class Recipe(Protocol):
    """What the loop asks of a recipe: data, a model, optimizers, and what a batch costs."""

    name: str
    fingerprint: str
    """Of the prepared data."""
    inputs: dict[str, Any]
    """What the model's inputs mean, as JSON: data to predict on must have the same."""
    monitor: str
    """The validation metric, higher is better, that chooses `best` and stops early."""

    def rows(self, split: str) -> Rows: ...

    def model(self) -> torch.nn.Module: ...

    def optimizers(
        self, model: torch.nn.Module, learning_rate: float, weight_decay: float
    ) -> list[torch.optim.Optimizer]: ...

    def step(self, model: torch.nn.Module, batch: Batch, state: State) -> tuple[torch.Tensor, torch.Tensor, State]:
        """The *sum* of the losses, the number of things summed, and the state carried to the next batch (first None).

        The state's tensors have the batch as first dimension: row k goes on from row k of the global batch before. They are
        not to be changed in place. A rank that stands idle gets None also in the middle of a run.
        """

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        """What `metrics` needs of each example: tensors whose first dimension is the batch."""

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]: ...

    def describe(self, split: str) -> dict[str, np.ndarray]:
        """row_id, group and cluster of a split's rows, for the prediction file."""
