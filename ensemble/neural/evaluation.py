"""Predictions and metrics of a split. On any number of ranks, each row counts once, and predictions are in order."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import torch

from ensemble.errors import UserError, shortened
from ensemble.metrics.multiclass import TOLERANCE
from ensemble.neural import launch
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.loader import Batch, Feed, Rows, checked_batch, checked_rows, in_order
from ensemble.recipe import RANKING, NeuralRecipe

LOW_PRECISION = (torch.bfloat16, torch.float16)


def predict(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: Accelerator
) -> dict[str, np.ndarray]:
    """The recipe's predictions for the rows of a split, in order, on every rank: arrays of shape (num_rows, …)."""
    examples = checked_rows(recipe.rows(split), split)
    with _batches(examples, model, batch_size, accelerator) as batches:
        predictions = [_checked_values("predict", recipe.predict(model, batch), rows) for rows, batch in batches]
    if "prediction" not in predictions[0]:
        returned = ", ".join(map(str, predictions[0])) or "nothing"
        raise UserError(
            f"`predict` of the recipe returns {returned}, but no 'prediction': give one of the tensors this name"
        )
    first, *others = [{name: tuple(tensor.shape[1:]) for name, tensor in batch.items()} for batch in predictions]
    if unlike := [shapes for shapes in others if shapes != first]:
        raise UserError(
            f"`predict` of the recipe returns tensors whose shapes without the rows are {first} for one batch, but "
            f"{unlike[0]} for another: return the same tensors, of the same shapes, for each batch"
        )
    merged = {name: torch.cat([batch[name] for batch in predictions]) for name in predictions[0]}
    _check_output(recipe, merged["prediction"])
    in_float = {name: tensor.float() if tensor.dtype in LOW_PRECISION else tensor for name, tensor in merged.items()}
    # NCCL does not support CPU tensors, which a recipe may return
    gathered = {name: accelerator.gather(tensor.to(accelerator.device)) for name, tensor in in_float.items()}
    return {name: tensor[: len(examples)].cpu().numpy() for name, tensor in gathered.items()}


def score(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: Accelerator
) -> dict[str, float]:
    """The recipe's metrics of a split, those of the main process: on other ranks the last bits or random draws may differ.

    If the recipe has a method `sums`, metrics are computed from sums over rows, and no rank holds the predictions of more
    than one batch. Otherwise they are computed from the predictions of all rows; if one of these is not finite, the result
    is only `monitor`, as NaN.
    """
    if hasattr(recipe, "sums"):
        outputs = _sums(recipe, model, split, batch_size, accelerator)
    else:
        outputs = predict(recipe, model, split, batch_size, accelerator)
        if not np.isfinite(outputs["prediction"]).all():
            return {recipe.monitor: math.nan}
    return launch.from_main_process(_checked_scores(recipe.metrics(outputs)))


def _checked_scores(scores: Any) -> dict[str, float]:
    """The scores that `metrics` of a recipe returned; `UserError` unless they are a dict of numbers."""
    if not isinstance(scores, dict) or not all(isinstance(score, Real) for score in scores.values()):
        fix = "return a dict of numbers, each as by float(…)"
        raise UserError(f"`metrics` of the recipe returns {shortened(str(scores))}: {fix}")
    return {name: float(score) for name, score in scores.items()}  # JSON does not support NumPy's float32


def _sums(
    recipe: NeuralRecipe, model: torch.nn.Module, split: str, batch_size: int, accelerator: Accelerator
) -> dict[str, np.ndarray]:
    """The outputs of `recipe.sums`, summed in float64 over the rows of a split and over ranks."""
    examples = checked_rows(recipe.rows(split), split)
    rows_per_rank = -(-len(examples) // accelerator.num_processes)
    # The number of rows of this rank that are still to be counted; the rows after them only repeat the last row
    remaining = min(max(len(examples) - accelerator.process_index * rows_per_rank, 0), rows_per_rank)
    totals: Batch = {}
    with _batches(examples, model, batch_size, accelerator) as batches:
        for rows, batch in batches:
            row_values = _checked_values("sums", recipe.sums(model, batch), rows)  # type: ignore[attr-defined]
            for name, tensor in row_values.items():
                batch_sum = tensor[:remaining].double().sum(dim=0)
                totals[name] = totals[name] + batch_sum if name in totals else batch_sum
            remaining = max(0, remaining - len(rows))
    reduced = {name: accelerator.reduce(tensor.to(accelerator.device), "sum") for name, tensor in totals.items()}
    return {name: tensor.cpu().numpy() for name, tensor in reduced.items()}


def _checked_values(method: str, values: Batch, rows: np.ndarray) -> Batch:
    """Return `values`, the result of a recipe's method; `UserError` unless each tensor has one entry for each row."""
    for name, tensor in checked_batch(values, f"`{method}` of the recipe").items():
        if not tensor.dim() or len(tensor) != len(rows):
            raise UserError(
                f"`{method}` of the recipe returns '{name}' of the shape {tuple(tensor.shape)} for {len(rows)} rows: return "
                "a value for each row of the batch, and let `gather` return exactly the given rows"
            )
    return values


def _check_output(recipe: NeuralRecipe, prediction: torch.Tensor) -> None:
    """Raise `UserError` for predictions that no prediction file of the recipe's `output` can have.

    A recipe with the method `columns`, and one that writes rankings, can return other values.
    """
    if hasattr(recipe, "columns") or recipe.output == RANKING:
        return
    shape, has_classes = tuple(prediction.shape), recipe.output == "probabilities"
    if shape[1:] == (1,) or (has_classes and len(shape) != 2):
        rule = "(B, number of classes)" if has_classes else "(B,), as by prediction[:, 0]"
        raise UserError(
            f"`predict` of the recipe returns a prediction of the shape {shape}, but output={recipe.output} needs {rule}"
        )
    if not has_classes and recipe.output != "probability":
        return
    is_outside = (prediction < 0) | (prediction > 1 + TOLERANCE)  # of NaN, both are false
    if is_outside.any():
        fix = "logits.float().softmax(dim=1)" if has_classes else "torch.sigmoid(logits.float())"
        raise UserError(
            f"`predict` of the recipe returns the prediction {float(prediction[is_outside][0]):g}, but output="
            f"{recipe.output} needs values from 0 to 1: return {fix} if these are logits"
        )


@contextmanager
def _batches(
    examples: Rows, model: torch.nn.Module, batch_size: int, accelerator: Accelerator
) -> Iterator[Iterator[tuple[np.ndarray, Batch]]]:
    """This rank's batches of a split on its device, each with its row numbers, with the model in evaluation mode."""
    pieces = in_order(len(examples), batch_size, accelerator.num_processes, accelerator.process_index)
    model.eval()
    with (
        torch.no_grad(),
        accelerator.autocast(),
        Feed(examples, pieces, device=accelerator.device, num_workers=0, prefetch_factor=1) as feed,
    ):
        yield ((micro.rows, batch) for micro, batch in feed)
    if launch.is_sharded(accelerator):
        from ensemble.neural import sharded

        sharded.reshard(model)
