"""What `--dry-run` prints: the settings, the model's size, the memory that a rank needs, and how batches are cut."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ensemble.neural.loader import BatchPlan
from ensemble.neural.meter import undisturbed


def describe(
    settings: dict[str, Any],
    plan: BatchPlan,
    num_steps: int,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    precision: str,
    forward: Callable[[], torch.Tensor] | None = None,
) -> str:
    """The text, of several lines.

    `settings` is the resolved config as a dict, `optimizers` are plain ones, not wrapped by Accelerate. `forward` takes one
    micro-batch through `model` and returns the loss: with it, activations are measured.
    """
    from omegaconf import OmegaConf

    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    memory: dict[str, int | None] = {
        "weights": sum(tensor.nbytes for tensor in [*parameters, *model.buffers()]),
        "gradients": sum(parameter.nbytes for parameter in trained),
    }
    for number, optimizer in enumerate(optimizers, 1):
        name = f"{type(optimizer).__name__}{f' {number}' if len(optimizers) > 1 else ''}"
        memory[name] = optimizer_state_bytes(optimizer)
    if settings["ema_decay"]:
        memory["averaged weights"] = memory["weights"]
    if forward is not None:
        memory["activations"] = activation_bytes(model, forward)
    memory["together"] = sum(size or 0 for size in memory.values())
    rates = sorted({group["lr"] for optimizer in optimizers for group in optimizer.param_groups}, reverse=True)
    scaling = settings["learning_rate_scaling"]
    scaled = f", {scaling} scaling from a batch of {settings['base_batch_size']:,}" if scaling != "none" else ""
    lines = [
        "settings",
        *(f"  {line}" for line in OmegaConf.to_yaml(OmegaConf.create(settings)).splitlines()),
        "model",
        f"  {sum(parameter.numel() for parameter in parameters):,} parameters, "
        f"{sum(parameter.numel() for parameter in trained):,} of them trained, precision {precision}",
        f"memory of a rank, at least{'' if forward else ', activations aside'}",
        *(f"  {name:<16} {'unknown' if size is None else f'{size / 1e6:,.1f} MB':>14}" for name, size in memory.items()),
        "batches",
        f"  examples of a step: {plan.algebra}",
        f"  {plan.num_rows:,} rows, {plan.steps_per_epoch:,} steps an epoch, {num_steps:,} steps in all, "
        f"{settings['warmup_steps']:,} of them warm-up",
        f"  peak learning rate {' and '.join(f'{rate:g}' for rate in rates)}{scaled}, then {settings['schedule']}",
    ]
    return "\n".join(lines)


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int | None:
    """What an optimizer remembers after a step; None where that cannot be known before.

    A twin takes the step on the meta device, where tensors have shapes and no memory.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__ |= optimizer.__dict__ | {"state": defaultdict(dict), "param_groups": []}
    for group in optimizer.param_groups:
        metas = [torch.empty_like(parameter, device="meta") for parameter in group["params"]]
        for meta in metas:
            meta.grad = torch.empty_like(meta)
        kernels = dict.fromkeys({"fused", "foreach", "capturable"} & group.keys(), False)  # meta has none of them
        twin.param_groups.append(group | kernels | {"params": metas})
    try:
        twin.step()
    except Exception:  # one that talks to other ranks, needs a closure, or reads values
        return None
    return sum(value.nbytes for state in twin.state.values() for value in state.values() if isinstance(value, torch.Tensor))


def activation_bytes(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """What a forward pass keeps for its backward pass, the batch's own tensors included, weights not.

    What a kernel takes beside, and what gradient checkpointing recomputes, comes on top.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with undisturbed(model), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _loss = forward()  # held, so that no memory is given out twice
    return sum(kept.values())
