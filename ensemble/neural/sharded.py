"""Checkpoints of weights that are sharded over ranks (FSDP2): every rank writes and reads its own shards.

`distributed_type: FSDP` in the accelerate YAML makes each parameter a DTensor, of which a rank holds some rows; moments and
moving averages are sharded in the same way. A thread of each rank writes copies of them as safetensors, one file per rank,

    shard-00001-model-00001-of-00001.safetensors …

The headers of the files contain the position of each shard in the whole tensor, so any number of ranks can read them. The
names of the tensors are those of model.safetensors and state.safetensors in a checkpoint that is not sharded, and a
checkpoint of either kind can be loaded into a model of the other. (The default format of torch.distributed.checkpoint
contains a pickle.)

This module is imported only for weights or checkpoints that are sharded, since the import takes half a second.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from ensemble import folders
from ensemble.errors import UserError, alike_on_all_ranks
from ensemble.neural import checkpoint
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.checkpoint import Tensors


def use(accelerator: Accelerator) -> None:
    """Let FSDP shard on CPU ranks too, and keep weights and gradients in float32: autocast alone lowers the precision.

    Accelerate 1.15 would silently replicate the weights on CPUs. With bf16, fp16 or fp8 it would cast the inputs, outputs
    and gradients of the model to 16 bits. In bf16, categories, weeks and scores above 256 would be rounded, and so would
    sums of gradients over micro-batches. Call this before `prepare`, only if the YAML requests FSDP.
    """
    from accelerate import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin()  # reads the launcher's FSDP_* variables
        # In both objects: each new AcceleratorState copies the type from the PartialState
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    if accelerator.distributed_type == DistributedType.FSDP:
        accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy()


def reshard(model: torch.nn.Module) -> None:
    """Free the gathered weights that a forward pass without a backward pass leaves.

    Call it after predicting: the next forward pass would reuse them although the weights may have changed.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def writer_group(timeout_s: float) -> Any:
    """A process group, in addition to that of the training, in which threads of the ranks write checkpoints; collective."""
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))


def write(folder: Path, shards: Tensors, description: dict[str, Any], state: Tensors, group: Any) -> None:
    """Write `shards` of every rank, and state.json and state.safetensors of the main process, as one checkpoint.

    Collective in `group`, in any thread. `shards` are on the CPU; a tensor that every rank holds completely is written once.
    The folder gets its name when all ranks have written. An error while shards are written is raised on every rank; a later
    one, of the main process, only there.
    """
    with checkpoint.report_write_errors(folder), ExitStack() as stack:
        scratch: Any = None
        if is_main := torch.distributed.get_rank(group) == 0:
            try:
                scratch = stack.enter_context(folders.new_folder(folder, True, "checkpoint"))
            except UserError as error:
                scratch = error
        received = [scratch]
        torch.distributed.broadcast_object_list(received, group=group, group_src=0)
        with alike_on_all_ranks(), _first_failure():
            if isinstance(received[0], UserError):
                raise received[0]
            distributed_checkpoint.save(shards, storage_writer=_Writer(received[0], folder), process_group=group)
        if is_main:
            checkpoint.write_files(scratch, description, {"state": state})


def load(
    folder: Path,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    extra: Tensors,
    descriptions: Sequence[dict[str, Any]],
    restored: Sequence[int],
) -> None:
    """Fill the model, the optimizers numbered in `restored`, and the tensors `extra` from a checkpoint, sharded or not.

    Collective. `descriptions` are the optimizers' JSON. Tensors of `extra` that the checkpoint lacks do not change.
    `UserError` if the checkpoint is of another model. The caller verifies the checksums.
    """
    reader = distributed_checkpoint.HuggingFaceStorageReader(str(folder))
    saved = cast(Mapping[str, Any], reader.read_metadata().state_dict_metadata)
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        saved_shape = tuple(saved[name].size) if name in saved else "none"
        if saved_shape != tensor.shape:
            shape = tuple(tensor.shape)
            raise UserError(
                f"{folder} holds the weights of another model: {name} has shape {saved_shape} there and {shape} in "
                "this model"
            )
    tensors |= {name: tensor for name, tensor in extra.items() if name in saved}
    for number in restored:
        parameters = checkpoint.parameters_of(optimizers[number])
        for name in saved:
            if name.startswith(f"optimizer{number}."):
                parameter = parameters[int(name.split(".")[1])]
                shape, dtype = saved[name].size, saved[name].properties.dtype
                # Moments are sharded as their parameter is; a step counter is not
                is_sharded = shape == parameter.shape
                tensors[name] = torch.zeros_like(parameter, dtype=dtype) if is_sharded else torch.zeros(shape, dtype=dtype)
    with _first_failure(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # expected on one rank
        distributed_checkpoint.load(tensors, storage_reader=reader)
    for number in restored:
        checkpoint.restore_optimizer(optimizers[number], f"optimizer{number}", tensors, descriptions[number])


def gather(tensors: Tensors) -> Tensors:
    """Unsharded copies on the CPU of the main process, {} on other ranks. Collective; gathers one tensor at a time."""
    is_main = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if is_main:
            gathered[name] = full.detach().to("cpu", copy=True).contiguous()
    return gathered


class _Writer(distributed_checkpoint.HuggingFaceStorageWriter):
    """Writes a rank's file in the format of its base class, which would copy the shards again and hold Python's lock."""

    def __init__(self, scratch: Path, folder: Path):
        super().__init__(str(scratch), save_distributed=True)
        self._scratch, self._folder = scratch, folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        shards, offsets = {}, {}
        for item in plan.items:
            assert item.tensor_data
            shards[item.index.fqn] = cast(torch.Tensor, planner.resolve_data(item))
            offsets[item.index.fqn] = {"saved_offsets": item.tensor_data.chunk.offsets}
        if shards:
            file = self._scratch / f"shard-{plan.storage_data['shard_index']:05d}-model-00001-of-00001.safetensors"
            with checkpoint.report_write_errors(self._folder):
                information = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
                checkpoint.write_tensors(file, shards, information)
                folders.sync(file)
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([])
        return done


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the exception of the first rank that failed, on every rank, instead of the library's, a `BaseException`."""
    try:
        yield
    except distributed_checkpoint.CheckpointException as error:
        raise next(failure for failure, _ in error.failures.values()) from error
