"""Settings that change the speed of a step: precision, deterministic kernels, communication between ranks, torch.compile."""

import datetime
import os
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    AORecipeKwargs,
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    is_torchao_available,
    parse_flag_from_env,
)
from accelerate.utils.ao import has_ao_layers

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.neural.settings import TrainConfig

MAX_TIMEOUT_S = 1_000_000_000
"""About 30 years. PyTorch adds time-outs in nanoseconds, as integers of 64 bits."""


def accelerator_options(settings: TrainConfig) -> dict[str, Any]:
    """Keyword arguments for `Accelerator`, from the settings and the environment variables of the launcher.

    Raises `UserError` for bf16 on a GPU that lacks it, for fp8 without the required GPU and library, for fp16 with FSDP on
    CPUs, and for an unknown precision in the environment.
    """
    configuration.check(settings, at_least_1="timeout_s")
    configuration.check(settings, timeout_s=(settings.timeout_s <= MAX_TIMEOUT_S, f"at most {MAX_TIMEOUT_S}"))
    has_gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    precision = settings.precision
    if precision == "auto":
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # type: ignore[assignment]
        if precision not in ("no", "fp16", "bf16", "fp8"):
            raise UserError(f"ACCELERATE_MIXED_PRECISION={precision} is impossible: it must be no, fp16, bf16 or fp8")
    if precision == "fp16" and parse_flag_from_env("ACCELERATE_USE_FSDP") and not has_gpu:
        raise UserError(
            "precision=fp16 is not supported with FSDP on CPUs, where the gradient scaler sees one shard only: use "
            "precision=bf16"
        )

    # DDP then copies the gradient, which is correct; it happens to the batched weights of the package tabm
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    handlers: list[Any] = [
        DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        # One microsecond more: Accelerate does not pass on a time-out equal to its default of 600 s, and Gloo's is 1800 s
        InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=settings.timeout_s, microseconds=1)),
    ]
    if precision == "bf16" and has_gpu and torch.cuda.get_device_capability() < (8, 0):
        # Accelerate and PyTorch accept it, and emulate it without tensor cores
        major, minor = torch.cuda.get_device_capability()
        raise UserError(
            f"precision=bf16 needs a GPU of compute capability 8.0 or more (Ampere), and {torch.cuda.get_device_name()} has "
            f"{major}.{minor}: use precision=fp16"
        )
    if precision == "fp8":
        # On an older GPU Accelerate uses fp16, with only a line in its log, and on a CPU it tries fp8. It supports fp8 by
        # TransformerEngine too, but this would replace the parameters that the unwrapped optimizers hold
        if not (has_gpu and torch.cuda.get_device_capability() >= (8, 9) and is_torchao_available()):
            raise UserError(
                "precision=fp8 needs a GPU of compute capability 8.9 or more (Ada, Hopper) and the package torchao "
                f"(pip install torchao), but this machine has {torch.cuda.get_device_name() if has_gpu else 'no GPU'}"
                f"{' and no torchao' if not is_torchao_available() else ''}: use precision=bf16"
            )
        # Otherwise torchao 0.18 replaces the parameters, and the unwrapped optimizers update the old ones
        handlers.append(AORecipeKwargs(enable_fsdp_float8_all_gather=False))
    return {"mixed_precision": precision, "kwargs_handlers": handlers}


def refuse_fp8_without_effect(model: torch.nn.Module) -> None:
    """`UserError` for a model, prepared with precision=fp8, of which Accelerate replaced no layer.

    It replaces `torch.nn.Linear` whose numbers of inputs and outputs are multiples of 16, except the first and the last one.
    """
    if not has_ao_layers(model):
        raise UserError(
            "precision=fp8 has no effect on this model: except its first and last one, it has no linear layer whose numbers "
            "of inputs and outputs are multiples of 16: use precision=bf16"
        )


def use_fp16_on_cpu(accelerator: Accelerator) -> None:
    """Enable fp16 on a CPU, where Accelerate 1.15 silently uses float32 without a gradient scaler."""
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")


def use_deterministic_kernels(device: torch.device) -> None:
    """On a GPU, let every operation give the same bits in every run; one without such a kernel raises `RuntimeError`.

    On a CPU, all operations are deterministic for a given number of threads.
    """
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def explained_nondeterminism() -> Iterator[None]:
    """Raise a `UserError` instead of PyTorch's error about an operation that has no deterministic kernel."""
    try:
        yield
    except RuntimeError as error:
        operation, separator, _ = str(error).partition(" does not have a deterministic implementation")
        if not separator:
            raise
        raise UserError(
            f"{operation} has no deterministic kernel on GPUs: replace this operation of the recipe, or set "
            "deterministic=false, after which equal runs may differ in their last bits"
        ) from error


def disable_buffer_sync(model: torch.nn.Module) -> None:
    """Do not broadcast the buffers before each forward pass of DDP: all ranks have the same from the start.

    Accelerate 1.15 has only the old name of this option, for which torch 2.13 warns.
    """
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.forward_sync_buffers = False


def compile_model(model: torch.nn.Module, device: torch.device) -> None:
    """Compile in place the blocks of each ModuleList whose modules have the same class; the whole model if there is none.

    Blocks that differ only in their weights share compiled code, so the compile time does not grow with the depth. The names
    in `state_dict` do not change, and a copy of the model is not compiled. Sizes are symbolic: a short last batch uses the
    same code, except a batch of 1 or one for which other kernels are faster. `UserError` if `device` has no compiler.
    """
    try:  # before the first step, where the error would be a long traceback
        torch.compile(lambda x: x.sin())(torch.ones(8, device=device))
    except Exception as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        fix = "install g++ and Python's headers, or set compile=false"
        raise UserError(f"compile=true does not work on this machine ({reason}): {fix}") from None
    repeated = [
        block
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len({type(block) for block in module}) == 1
        for block in module
    ]
    for block in repeated or [model]:
        # As block.compile(), which silently does nothing for torch.nn's own classes (torch 2.13)
        block._compiled_call_impl = torch.compile(types.MethodType(_call, block), dynamic=True)


def _call(module: torch.nn.Module, *inputs: Any, **named: Any) -> Any:
    """Call the module from a function outside of torch, since torch.compile does not compile functions inside of it."""
    return module._call_impl(*inputs, **named)
