"""Checkpoints of weights that are sharded over ranks (FSDP2): every rank writes and reads its own pieces.

`distributed_type: FSDP` in the accelerate YAML makes each parameter a DTensor, of which a rank holds some rows; moments and
moving averages are cut the same way. torch.distributed.checkpoint writes them as safetensors, one file a rank,

    shard-00001-model-00001-of-00001.safetensors …

whose headers say where in the whole tensor each piece belongs, so that any number of ranks can read them. The tensors are
named as in model.safetensors and state.safetensors of a checkpoint that is not sharded, and either kind can be loaded into
a model of the other. (The library's own format needs a pickle; this one has none.)

Importing this takes half a second: it is left to where weights are sharded.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ensemble.errors import UserError
from ensemble.neural import checkpoint
from ensemble.neural.checkpoint import Tensors

if TYPE_CHECKING:
    from accelerate import Accelerator


def use_on_cpu(accelerator: "Accelerator") -> None:
    """Shard on CPU ranks too, where the YAML says FSDP: Accelerate 1.15 would replicate there, without a word.

    To be called before `prepare`, and where the YAML says so only. `UserError` for FSDP1, whose parameters are no DTensors.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        plugin = FullyShardedDataParallelPlugin()  # reads the launcher's FSDP_* variables
        if accelerator.mixed_precision != "no":
            plugin.set_mixed_precision(accelerator.mixed_precision)
        accelerator.state.fsdp_plugin = plugin
        # In both: whenever Accelerate makes an AcceleratorState, that takes its type from the PartialState
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError("fsdp_version: 1 in the accelerate YAML is not supported: set it to 2")


def reshard(model: torch.nn.Module) -> None:
    """Give up the whole weights that a forward pass without a backward one leaves behind.

    To be called after predicting: the next forward pass would take them once more, though the weights had changed since.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def save(
    folder: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], extra: Tensors
) -> list[dict[str, Any]]:
    """Write weights, optimizers and `extra` tensors, synced; return what of the optimizers is for JSON.

    Collective: all ranks call it with the same existing folder, and all return, or raise, when the last has written.
    `extra` (the moving average) is cut as the weights are. Of a tensor that is whole on every rank one copy is kept.
    """
    tensors, rest = {**model.state_dict(), **extra}, []
    for number, optimizer in enumerate(optimizers):
        named, about = checkpoint.flatten_optimizer(optimizer, f"optimizer{number}")
        tensors |= named
        rest.append(about)
    writer = distributed_checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _first_failure():
        distributed_checkpoint.save(tensors, storage_writer=writer)
    return rest


def load(
    folder: Path,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    extra: Tensors,
    rest: Sequence[dict[str, Any]],
) -> None:
    """Fill model, optimizers and `extra` from a checkpoint, however that one and these are cut.

    Collective: all ranks call it. What the checkpoint has no `extra` tensor for stays as it is. `UserError` when it holds
    another model. Checksums are the caller's to verify.
    """
    reader = distributed_checkpoint.HuggingFaceStorageReader(str(folder))
    saved = cast(Mapping[str, Any], reader.read_metadata().state_dict_metadata)
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        found = tuple(saved[name].size) if name in saved else "none"
        if found != tensor.shape:
            shape = tuple(tensor.shape)
            raise UserError(f"{folder} holds the weights of another model: {name} has shape {shape} here and {found} there")
    tensors |= {name: tensor for name, tensor in extra.items() if name in saved}
    for number, optimizer in enumerate(optimizers):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for name in saved:
            if name.startswith(f"optimizer{number}."):
                parameter = parameters[int(name.split(".")[1])]
                shape, dtype = saved[name].size, saved[name].properties.dtype
                # Moments are cut as their parameter is; a counter of steps is whole everywhere
                is_cut = shape == parameter.shape
                tensors[name] = torch.zeros_like(parameter, dtype=dtype) if is_cut else torch.zeros(shape, dtype=dtype)
    with _first_failure(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # no surprise on one rank
        distributed_checkpoint.load(tensors, storage_reader=reader)
    for number, (optimizer, about) in enumerate(zip(optimizers, rest, strict=True)):
        checkpoint.restore_optimizer(optimizer, f"optimizer{number}", tensors, about)


def gather(tensors: Tensors) -> Tensors:
    """Whole copies on the CPU of the main process, and nothing on the others; all call. One tensor at a time is whole."""
    keep = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    whole = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            whole[name] = full.detach().to("cpu", copy=True).contiguous()
    return whole


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise on every rank what went wrong on the first that failed, in place of a list that is no `Exception`."""
    try:
        yield
    except distributed_checkpoint.CheckpointException as error:
        raise next(failure for failure, _ in error.failures.values()) from error
