"""Checks and estimates before a training starts: batch sizes, memory, FLOPs, and the summary that `--dry-run` prints."""

import dataclasses
import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from ensemble import configuration, memory
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.guards import is_out_of_memory
from ensemble.neural.launch import is_sharded
from ensemble.neural.loader import Batch, BatchPlan, Rows, checked_batch, checked_rows
from ensemble.neural.meter import flops_per_example, peak_flops, preserved_state
from ensemble.neural.optim import peak_learning_rate
from ensemble.neural.settings import TrainConfig, check, resolve
from ensemble.predictions import OUTPUTS_OF
from ensemble.recipe import OUTPUTS, RANKING, NeuralRecipe, Size, named

Result = TypeVar("Result")


def check_neural(name: str, neural_recipe: Any, manifest: dict[str, Any]) -> None:
    """Raise `UserError` if the result of a recipe's `make` is no `NeuralRecipe` for data with this manifest."""
    methods = [member for member, value in vars(NeuralRecipe).items() if callable(value) and not member.startswith("_")]
    missing = [member for member in (*NeuralRecipe.__annotations__, *methods) if not hasattr(neural_recipe, member)]
    if missing:
        raise UserError(
            f"the result of make(…) of the recipe {name} lacks {', '.join(missing)}: see NeuralRecipe in recipe.py"
        )
    if neural_recipe.name != name:
        raise UserError(
            f"the network of the recipe {name} has name={neural_recipe.name}: change it to {name}, since scripts find the "
            "recipe by this name"
        )
    if neural_recipe.output not in OUTPUTS:
        raise UserError(f"the recipe {name} has output={neural_recipe.output}: choose one of {', '.join(OUTPUTS)}")
    if neural_recipe.output == RANKING and not named(name).get("outputs", "write"):
        raise UserError(
            f"the recipe {name} has output={RANKING}, but no function write in outputs.py, which writes rankings"
        )
    try:
        json.dumps(neural_recipe.inputs)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"`inputs` of the recipe {name} cannot be stored as JSON ({error}): use dicts, lists and int(…)"
        ) from None
    # Otherwise scripts/predict.py would refuse the data of the training as other data
    of_data = {"fingerprint": manifest["fingerprint"], "inputs": inputs.meaning(manifest)}
    for attribute, expected in of_data.items():
        if json.loads(json.dumps(getattr(neural_recipe, attribute))) != expected:
            fix = 'manifest["fingerprint"]' if attribute == "fingerprint" else "ensemble.data.inputs.meaning(manifest)"
            raise UserError(f"`{attribute}` of the recipe {name} is not that of the data: set it to {fix}")
    kind = manifest.get("task", {}).get("kind")
    if kind and neural_recipe.output not in (*OUTPUTS_OF[kind], RANKING):
        raise UserError(
            f"the recipe {name} has output={neural_recipe.output}, but the task of its data, {kind}, needs "
            f"{' or '.join(OUTPUTS_OF[kind])}: change it"
        )


def make_plan(rows: Rows, config: TrainConfig, accelerator: Accelerator) -> BatchPlan:
    """How the global batches of the training split are divided into this rank's micro-batches."""
    lengths = getattr(checked_rows(rows, "train"), "lengths", None)
    if lengths is not None and (lengths := np.asarray(lengths)).shape != (len(rows),):
        raise UserError(
            f"`lengths` of the recipe's rows has the shape {lengths.shape}: it must have one length for each of the "
            f"{len(rows)} rows"
        )
    return BatchPlan(
        num_rows=len(rows),
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        num_ranks=accelerator.num_processes,
        rank=accelerator.process_index,
        seed=config.seed,
        bucket_batches=config.bucket_batches,
        lengths=lengths,
    )


def make_model(recipe: NeuralRecipe) -> torch.nn.Module:
    model = recipe.model()
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"`model` of the recipe returns {type(model).__name__}: return a torch.nn.Module")
    for name, value in model.state_dict().items():
        if torch.nn.parameter.is_lazy(value):
            raise UserError(
                f"the parameter {name} of the model has no shape yet: give the sizes of lazy modules, or call the model once"
            )
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"the state of the model contains {name} as {type(value).__name__}: checkpoints have tensors only, so make "
                "it a buffer"
            )
    return model


def make_optimizers(recipe: NeuralRecipe, model: torch.nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """The recipe's optimizers of `model`, whose parameters are in the order of the model in each group."""
    optimizers = recipe.optimizers(model, peak_learning_rate(config), config.weight_decay)
    if not isinstance(optimizers, list | tuple):
        raise UserError(f"`optimizers` of the recipe returns {type(optimizers).__name__}: return a list of optimizers")
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure and closure.default is closure.empty:
            name = type(optimizer).__name__
            raise UserError(f"`optimizers` of the recipe returns {name}, whose `step` needs a closure: choose another one")
    positions = {id(parameter): position for position, parameter in enumerate(model.parameters())}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    updated = {id(weight) for group in groups for weight in group["params"]}
    if not updated or not updated <= positions.keys():
        raise UserError("`optimizers` of the recipe must update parameters of the model that it is given, and no others")
    for group in groups:  # a list made from a set has another order in each process
        order = sorted(range(len(group["params"])), key=lambda number: positions[id(group["params"][number])])
        group |= {key: [group[key][number] for number in order] for key in ("params", "param_names") if key in group}
    return optimizers


def check_memory(recipe: NeuralRecipe, config: TrainConfig, plan: BatchPlan, accelerator: Accelerator) -> None:
    """Raise `UserError` if the training cannot fit into the machine's memory: the kernel would kill it without a message.

    On a GPU or with FSDP, weights are counted once, since they are created in the machine's memory first. On a CPU without
    FSDP, gradients, two moments, the moving average and the micro-batch are counted too. For a recipe without the method
    `size`, only the order of the rows is counted.
    """
    available = memory.available()
    if available is None:
        return
    parts: dict[str, int] = {}
    num_rows = min(plan.micro_batch_size, plan.num_rows)
    settings = ["batch_size or micro_batch_size"]
    if hasattr(recipe, "size"):
        size: Size = recipe.size(num_rows)
        is_whole_on_cpu = accelerator.device.type == "cpu" and not is_sharded(accelerator)
        copies = 4 + bool(config.ema_decay) if is_whole_on_cpu else 1
        parts[f"{size.num_parameters:,} parameters"] = 4 * copies * size.num_parameters
        if is_whole_on_cpu:
            parts[f"a batch of {num_rows}"] = size.batch_bytes
        settings = [*size.settings, *settings]
    order_bytes = 8 * plan.num_rows
    needed = order_bytes + sum(parts.values())
    if needed > available:
        if order_bytes > 0.01 * needed:
            parts[f"the order of {plan.num_rows:,} rows"] = order_bytes
        listed = " and ".join(f"{num_bytes / 1e9:,.1f} GB for {name}" for name, num_bytes in parts.items())
        raise UserError(
            f"the training needs at least {needed / 1e9:,.1f} GB of memory ({listed}), but {available / 1e9:,.1f} GB are "
            f"available: reduce {', '.join(settings)}"
        )


def largest_batch(rows: Rows, plan: BatchPlan, accelerator: Accelerator) -> Batch:
    """The micro-batch that needs the most memory, on the device: that of the longest rows, if rows have lengths."""
    lengths = getattr(rows, "lengths", None)
    order = np.arange(min(len(rows), plan.micro_batch_size)) if lengths is None else np.argsort(lengths, kind="stable")
    return gathered(rows, order[-plan.micro_batch_size :], accelerator)


def gathered(rows: Rows, numbers: np.ndarray, accelerator: Accelerator) -> Batch:
    """The rows with these numbers, on the device."""
    batch = checked_batch(rows.gather(numbers), "`gather` of the rows")
    return {name: tensor.to(accelerator.device) for name, tensor in batch.items()}


def checked_step(result: Any) -> Any:
    """Return the result of `step` of a recipe; `UserError` if it is not a sum of losses, a count and a state."""
    if not isinstance(result, tuple) or len(result) != 3:
        returned = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise UserError(
            f"`step` of the recipe returns {returned}: return the sum of the losses, their number, and a state or None"
        )
    if isinstance(result[1], torch.Tensor) and result[1].dim():
        raise UserError(
            f"`step` of the recipe returns a number of losses of the shape {tuple(result[1].shape)}: return one number"
        )
    if not isinstance(result[0], torch.Tensor) or not result[0].requires_grad:
        raise UserError(
            "`step` of the recipe returns a loss from which no gradient follows: return a tensor that was computed by the "
            "model, without detach() or item()"
        )
    return result


def check_pass(named: Sequence[tuple[str, torch.nn.Parameter]], versions: Sequence[int]) -> None:
    """`UserError` for a parameter whose gradient is sparse, or that a pass changed.

    named, versions : the parameters with their names, and the `_version` of each before the pass
    """
    for (name, parameter), version in zip(named, versions, strict=True):
        if parameter._version != version:
            raise UserError(
                f"the forward pass changes the parameter {name}, so the weights would depend on the number of micro-"
                "batches, and on whether the run was resumed: change it after an optimizer's step (register_step_post_hook)"
            )
        if parameter.requires_grad and parameter.grad is not None and parameter.grad.is_sparse:
            raise UserError(
                f"the gradient of the parameter {name} is sparse, which clipping does not support: set sparse=False"
            )


def mean_instead_of_sum(recipe: NeuralRecipe, model: torch.nn.Module, plan: BatchPlan, accelerator: Accelerator) -> str:
    """A warning if `step` of the recipe seems to return a mean over rows, or a count that is no sum over rows, else "".

    The loss and the count of some rows must be the sums of those of their two halves; a mean is half of such a sum. The
    model is in evaluation mode, since dropout makes losses random. Other deviations from the sum cause a warning only if
    `plan` divides the global batches, and if the same rows have the same loss twice.
    """
    rows = recipe.rows("train")
    num_rows = min(64, plan.micro_batch_size, len(rows)) // 2 * 2
    if num_rows < 4:
        return ""
    numbers, results = np.arange(num_rows), []
    model.eval()
    with preserved_state(model), accelerator.no_sync(model), accelerator.autocast():
        batches = [gathered(rows, part, accelerator) for part in (numbers, *np.split(numbers, 2))]
        for batch in (batches[0], *batches):
            results.append([torch.as_tensor(value).item() for value in checked_step(recipe.step(model, batch, None))[:2]])
    model.train()
    for name, (whole, again, first, second) in zip(("loss", "count"), zip(*results, strict=True), strict=True):
        is_mean = abs(whole - (first + second) / 2) < 0.05 * abs(first + second)
        is_no_sum = whole == again and abs(whole - first - second) > 0.01 * abs(first + second)
        if is_mean:
            advice = (
                "return the sum of the losses of all rows, not a mean, and their number; otherwise the gradient depends on "
                "the size of the micro-batches"
            )
        elif is_no_sum and plan.micro_batch_size < plan.batch_size:
            advice = (
                f"if the {name} of a row depends on the other rows of its micro-batch, as with in-batch negatives, the "
                "gradient depends on micro_batch_size and on the number of processes"
            )
        else:
            continue
        return (
            f"warning: `step` of the recipe returns the {name} {whole:.4g} for {num_rows} rows, but {first:.4g} and "
            f"{second:.4g} for their halves: {advice}"
        )
    return ""


def forward_pass(
    recipe: NeuralRecipe, model: torch.nn.Module, batch: Batch, accelerator: Accelerator
) -> Callable[[], torch.Tensor]:
    """A function that runs a micro-batch through the model and returns the loss."""

    def forward() -> torch.Tensor:
        with accelerator.autocast():
            return checked_step(recipe.step(model, batch, None))[0]

    return forward


def flops(
    recipe: NeuralRecipe, model: torch.nn.Module, plan: BatchPlan, accelerator: Accelerator
) -> tuple[float, float | None]:
    """FLOPs per example of a micro-batch that fits into memory, and the peak FLOP/s of a device; (0, None) if unknown.

    The examples are drawn at random, since the longest ones would not be like the average. The FLOPs are unknown for a model
    that is sharded, since it may not fit into the memory of one device.
    """
    is_gpu = accelerator.device.type == "cuda" and not is_sharded(accelerator)
    peak = peak_flops(torch.cuda.get_device_name(accelerator.device), accelerator.mixed_precision) if is_gpu else None
    if not peak:
        return 0.0, None
    rows = recipe.rows("train")
    model.to(accelerator.device)

    def count(plan: BatchPlan) -> float:
        sample = _sample(plan)
        num_examples = sum(map(len, sample))
        batches = (gathered(rows, numbers, accelerator) for numbers in sample)
        passes = (forward_pass(recipe, model, batch, accelerator) for batch in batches)
        return sum(flops_per_example(model, forward, num_examples) for forward in passes)

    return _fitting_memory(plan, count), peak


def _fitting_memory(plan: BatchPlan, work: Callable[[BatchPlan], Result]) -> Result:
    """The result of `work` for `plan`, whose micro-batch is halved while memory is too small."""
    while True:
        try:
            return work(plan)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        plan = plan.halved()


def _sample(plan: BatchPlan) -> list[np.ndarray]:
    """The rows of one random micro-batch; with bucketing, of 8 from the shortest to the longest, which need other padding.

    They are micro-batches of all ranks: with bucketing, the first rank has the shortest rows of a global batch.
    """
    micro_batches = dataclasses.replace(plan, num_ranks=1, rank=0).micro_batches(0, min(64, plan.steps_per_epoch))
    lengths = plan.lengths
    if lengths is None or not plan.bucket_batches:
        return [next(micro_batches).rows]
    by_length = sorted((micro.rows for micro in micro_batches), key=lambda rows: lengths[rows].max())
    num_drawn = min(8, len(by_length))
    return [by_length[int((number + 0.5) * len(by_length) / num_drawn)] for number in range(num_drawn)]


def describe(recipe: NeuralRecipe, config: TrainConfig, accelerator: Accelerator) -> str:
    """The text of `--dry-run`: settings, number of parameters, memory and batch sizes of the training; writes nothing.

    As in a training, the micro-batch is halved while memory is too small, except with sharded weights.
    """
    config = resolve(recipe, config)
    check(config)
    rows = recipe.rows("train")
    plan = make_plan(rows, config, accelerator)
    check_memory(recipe, config, plan, accelerator)
    model = make_model(recipe).to(accelerator.device)
    optimizers = make_optimizers(recipe, model, config)
    num_shards = accelerator.num_processes if is_sharded(accelerator) else 1

    def summarise(plan: BatchPlan) -> str:
        forward = forward_pass(recipe, model, largest_batch(rows, plan, accelerator), accelerator)
        return summary(config, plan, model, optimizers, accelerator.mixed_precision, forward, num_shards)

    return summarise(plan) if is_sharded(accelerator) else _fitting_memory(plan, summarise)


def summary(
    config: TrainConfig,
    plan: BatchPlan,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    precision: str,
    forward: Callable[[], torch.Tensor],
    num_shards: int = 1,
) -> str:
    """Settings, model size, memory per rank and batch sizes, on several lines.

    `optimizers` must not be wrapped by Accelerate. `forward` runs one micro-batch through `model` and returns the loss.
    `num_shards` is the number of ranks that share the parameters, gradients, averaged weights and optimizers' state (FSDP).
    """
    from omegaconf import OmegaConf

    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    num_bytes: dict[str, int | None] = {
        "weights": nbytes(parameters) // num_shards + nbytes(model.buffers()),
        "gradients": nbytes(trainable) // num_shards,
    }
    for number, optimizer in enumerate(optimizers, 1):
        name = f"{type(optimizer).__name__}{f' {number}' if len(optimizers) > 1 else ''}"
        state_bytes = optimizer_state_bytes(optimizer)
        num_bytes[name] = state_bytes and state_bytes // num_shards
    if config.ema_decay:
        num_bytes["averaged weights"] = num_bytes["gradients"]  # of the trainable parameters, too
    num_bytes["activations"] = activation_bytes(model, forward)
    num_bytes["total"] = sum(size or 0 for size in num_bytes.values())
    num_steps = plan.num_steps(config.max_epochs)
    rates = sorted({group["lr"] for optimizer in optimizers for group in optimizer.param_groups}, reverse=True)
    scaling = config.learning_rate_scaling
    scaled = f", {scaling} scaling from a batch of {config.base_batch_size:,}" if scaling != "none" else ""
    lines = [
        "settings",
        *(f"  {line}" for line in OmegaConf.to_yaml(OmegaConf.create(configuration.to_dict(config))).splitlines()),
        "model",
        f"  {sum(parameter.numel() for parameter in parameters):,} parameters, "
        f"{sum(parameter.numel() for parameter in trainable):,} trainable, precision {precision}",
        "memory per rank, at least",
        *(f"  {name:<16} {'unknown' if size is None else f'{size / 1e6:,.1f} MB':>14}" for name, size in num_bytes.items()),
        "batches",
        f"  examples per step: {plan.description}",
        f"  {plan.num_rows:,} rows, {plan.steps_per_epoch:,} steps per epoch, "
        f"{num_steps:,} steps in total, {min(config.warmup_steps, num_steps):,} of them warm-up",
        f"  peak learning rate {' and '.join(f'{rate:g}' for rate in rates)}{scaled}, then {config.schedule}",
    ]
    return "\n".join(lines)


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int | None:
    """The size of an optimizer's state after a step; None if it cannot be determined without a real step.

    A copy of the optimizer takes the step on the meta device, where tensors have shapes but no storage.
    """
    copy = object.__new__(type(optimizer))
    copy.__dict__ |= optimizer.__dict__ | {"state": defaultdict(dict), "param_groups": []}
    for group in optimizer.param_groups:
        parameters = [torch.empty_like(parameter, device="meta") for parameter in group["params"]]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        kernels = dict.fromkeys({"fused", "foreach", "capturable"} & group.keys(), False)  # not available on meta
        copy.param_groups.append(group | kernels | {"params": parameters})
    try:
        copy.step()
    except Exception:  # an optimizer that communicates with other ranks, needs a closure, or reads values
        return None
    return sum(value.nbytes for state in copy.state.values() for value in state.values() if isinstance(value, torch.Tensor))


def activation_bytes(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """The size of the tensors that a forward pass saves for its backward pass, including the batch, without the weights.

    Workspaces of kernels, and activations that gradient checkpointing recomputes, are not counted.
    """
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with preserved_state(model), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        _loss = forward()  # kept alive, so that no address is used twice
    return sum(saved.values())
