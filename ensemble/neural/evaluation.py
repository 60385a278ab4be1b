"""Predictions and scores of a split: each row once and in order, on any number of ranks, without padding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from ensemble.neural import launch
from ensemble.neural.loader import Batch, Feed, in_order
from ensemble.recipe import NeuralRecipe

if TYPE_CHECKING:
    from accelerate import Accelerator

LOW_PRECISION = (torch.bfloat16, torch.float16)


class NotFinite(ValueError):
    """Predictions are NaN or infinite."""


def predict(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> dict[str, np.ndarray]:
    """The recipe's predictions for each row of a split, once and in order, on every rank: arrays of shape (num_rows, …)."""
    num_rows = len(recipe.rows(split))
    found: list[Batch] = []
    with _batches(recipe, model, split, batch_size, accelerator) as batches:
        for batch in batches:
            outputs = recipe.predict(model, batch).items()
            found.append({name: tensor.float() if tensor.dtype in LOW_PRECISION else tensor for name, tensor in outputs})
    merged = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
    return {name: accelerator.gather(tensor)[:num_rows].cpu().numpy() for name, tensor in merged.items()}


def score(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> dict[str, float]:
    """The recipe's metrics of a split, the same on every rank.

    They are computed from the predictions of all rows or, of a recipe with a method `sums`, from sums over rows, so that no
    rank holds more than a batch. Raises `NotFinite` for predictions that are NaN or infinite.
    """
    if hasattr(recipe, "sums"):
        return recipe.metrics(_sums(recipe, model, split, batch_size, accelerator))
    found = predict(recipe, model, split, batch_size, accelerator)
    if not np.isfinite(found["prediction"]).all():
        raise NotFinite
    return recipe.metrics(found)


def _sums(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> dict[str, np.ndarray]:
    """Sums in float64 over the rows of a split and all ranks of what `recipe.sums` returns."""
    num_rows = len(recipe.rows(split))
    share = -(-num_rows // accelerator.num_processes)
    left = min(max(num_rows - accelerator.process_index * share, 0), share)  # further rows of this rank repeat the last one
    totals: Batch = {}
    with _batches(recipe, model, split, batch_size, accelerator) as batches:
        for batch in batches:
            of_rows: Batch = recipe.sums(model, batch)  # type: ignore[attr-defined]
            for name, tensor in of_rows.items():
                added = tensor[:left].double().sum(dim=0)
                totals[name] = totals[name] + added if name in totals else added
            left = max(0, left - len(tensor))
    return {name: accelerator.reduce(tensor, "sum").cpu().numpy() for name, tensor in totals.items()}


@contextmanager
def _batches(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: "Accelerator"
) -> Iterator[Iterator[Batch]]:
    """This rank's batches of a split on its device, with the model in evaluation mode."""
    rows = recipe.rows(split)
    pieces = in_order(len(rows), batch_size, accelerator.num_processes, accelerator.process_index)
    model.eval()
    with (
        torch.no_grad(),
        accelerator.autocast(),
        Feed(rows, pieces, device=accelerator.device, num_workers=0, prefetch_factor=1) as feed,
    ):
        yield (batch for _, batch in feed)
    if launch.is_sharded(accelerator):
        from ensemble.neural import sharded

        sharded.reshard(model)  # without a backward pass, the next forward would see these weights again
