"""What can be told of a training before it begins: how its batches are cut, what a micro-batch costs, what it would do."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ensemble import configuration, memory
from ensemble.errors import UserError
from ensemble.neural import dry_run
from ensemble.neural.loader import Batch, BatchPlan, Rows
from ensemble.neural.meter import flops_per_example, peak_flops
from ensemble.neural.optim import peak_learning_rate
from ensemble.neural.settings import TrainConfig, check, settle
from ensemble.recipe import NeuralRecipe, Size

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_plan(rows: Rows, config: TrainConfig, accelerator: "Accelerator") -> BatchPlan:
    """How this rank cuts the global batches of a split."""
    return BatchPlan.make(
        len(rows),
        config.batch_size,
        config.micro_batch_size,
        accelerator.num_processes,
        accelerator.process_index,
        config.seed,
        lengths=getattr(rows, "lengths", None),
        bucket_batches=config.bucket_batches,
    )


def refuse_too_large(recipe: NeuralRecipe, config: TrainConfig, plan: BatchPlan, accelerator: "Accelerator") -> None:
    """Raise `UserError` if a training cannot fit into the machine's memory: the system would kill it without a word.

    On other devices than CPUs only the weights are judged, which begin their life in the machine's memory.
    """
    left = memory.available()
    if left is None or not hasattr(recipe, "size"):
        return
    size: Size = recipe.size(plan.micro_batch_size)
    parts = {f"{size.num_parameters:,} parameters": 4 * size.num_parameters}
    if accelerator.device.type == "cpu" and "fsdp" not in str(accelerator.distributed_type).lower():
        copies = 4 + bool(config.ema_decay)  # weights, gradients, two moments, and the average
        parts = {name: copies * num_bytes for name, num_bytes in parts.items()}
        parts[f"a batch of {plan.micro_batch_size}"] = size.batch_bytes
    needed = sum(parts.values())
    if needed > left:
        named = " and ".join(f"{num_bytes / 1e9:,.1f} GB for {name}" for name, num_bytes in parts.items())
        raise UserError(
            f"the training needs at least {needed / 1e9:,.1f} GB of memory ({named}), and {left / 1e9:,.1f} GB are left: "
            f"choose less of {', '.join(size.settings)}, or a smaller batch_size or micro_batch_size"
        )


def largest_batch(rows: Rows, plan: BatchPlan, accelerator: "Accelerator") -> Batch:
    """A micro-batch that takes as much memory as any."""
    lengths = getattr(rows, "lengths", None)
    order = np.arange(min(len(rows), plan.micro_batch_size)) if lengths is None else np.argsort(lengths, kind="stable")
    batch = rows.gather(order[-plan.micro_batch_size :])
    return {name: tensor.to(accelerator.device) for name, tensor in batch.items()}


def forward_pass(
    recipe: NeuralRecipe, model: torch.nn.Module, plan: BatchPlan, accelerator: "Accelerator"
) -> Callable[[], torch.Tensor]:
    """What takes a micro-batch as large as any through the model, and returns its loss."""
    batch = largest_batch(recipe.rows("train"), plan, accelerator)

    def forward() -> torch.Tensor:
        with accelerator.autocast():
            return recipe.step(model, batch, None)[0]

    return forward


def flops(
    recipe: NeuralRecipe, model: torch.nn.Module, plan: BatchPlan, accelerator: "Accelerator"
) -> tuple[float, float | None]:
    """FLOPs of an example and the most that a device does a second, where that is known."""
    peak = peak_flops(accelerator.device, accelerator.mixed_precision)
    if not peak:
        return 0.0, None
    model.to(accelerator.device)
    forward = forward_pass(recipe, model, plan, accelerator)
    return flops_per_example(model, forward, plan.micro_batch_size), peak


def describe(recipe: NeuralRecipe, config: TrainConfig, accelerator: "Accelerator") -> str:
    """What `train` would do: settings, parameters, memory, batch algebra; it writes nothing."""
    config = settle(recipe, config)
    check(config)
    plan = make_plan(recipe.rows("train"), config, accelerator)
    refuse_too_large(recipe, config, plan, accelerator)
    num_steps = math.ceil(config.max_epochs * plan.steps_per_epoch)
    model = recipe.model().to(accelerator.device)
    optimizers = recipe.optimizers(model, peak_learning_rate(config), config.weight_decay)
    forward = forward_pass(recipe, model, plan, accelerator)
    settings = configuration.to_dict(config)
    return dry_run.describe(settings, plan, num_steps, model, optimizers, accelerator.mixed_precision, forward)
