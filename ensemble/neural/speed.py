"""What makes a step faster: precision, the channel between ranks, and torch.compile.

    accelerator = Accelerator(**speed.accelerator_options(settings))
    speed.use_fp16_on_cpu(accelerator)
    if settings.compile:
        speed.compile_model(model, accelerator.device)
    model = accelerator.prepare(model)
    speed.leave_buffers(model)

Nothing heavy is imported before a function is called: OpenMP's settings must stand in the environment by then.
"""

import datetime
import os
import types
from typing import TYPE_CHECKING, Any

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.neural.settings import TrainConfig

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


def accelerator_options(settings: TrainConfig) -> dict[str, Any]:
    """Keyword arguments for `Accelerator`, from what the settings and the launcher's environment say.

    Raises `UserError` for what Accelerate or the hardware cannot do: fp8 without its GPU and library, and fp16 where FSDP
    shards the weights over CPUs.
    """
    import torch
    from accelerate.utils import (
        AORecipeKwargs,
        DistributedDataParallelKwargs,
        InitProcessGroupKwargs,
        is_torchao_available,
        parse_flag_from_env,
    )

    configuration.check(settings, timeout_s=(settings.timeout_s >= 1, "at least 1"))
    has_gpu = torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")
    precision = settings.precision
    if precision == "auto":
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # type: ignore[assignment]
    if precision == "fp16" and parse_flag_from_env("ACCELERATE_USE_FSDP") and not has_gpu:
        raise UserError("precision=fp16 does not go with FSDP on CPUs, whose scaler sees one shard: write precision=bf16")

    handlers: list[Any] = [
        DistributedDataParallelKwargs(gradient_as_bucket_view=True),
        # The microsecond: Accelerate drops a time-out that equals its own 600 s, and Gloo would wait half an hour
        InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=settings.timeout_s, microseconds=1)),
    ]
    if precision == "fp8":
        # Otherwise Accelerate takes fp16, with a line in its log. TransformerEngine would replace the weights under the
        # optimizers, which are ours
        if not (has_gpu and torch.cuda.get_device_capability() >= (8, 9) and is_torchao_available()):
            raise UserError(
                "precision=fp8 needs a GPU of compute capability 8.9 or more (Ada, Hopper) and the package torchao "
                f"(pip install torchao), and here is {torch.cuda.get_device_name() if has_gpu else 'no GPU'}"
                f"{' and no torchao' if not is_torchao_available() else ''}: write precision=bf16"
            )
        handlers.append(AORecipeKwargs())
    return {"mixed_precision": precision, "kwargs_handlers": handlers}


def use_fp16_on_cpu(accelerator: "Accelerator") -> None:
    """Make fp16 real on a CPU: there, Accelerate 1.15 goes on in float32, without a gradient scaler and without a word."""
    import torch

    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")


def leave_buffers(model: "torch.nn.Module") -> None:
    """Keep DDP from sending the buffers before each forward pass, in prediction too: all ranks have them from the start.

    Accelerate 1.15 knows this option by its old name only, of which torch 2.13 warns.
    """
    import torch

    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.forward_sync_buffers = False


def compile_model(model: "torch.nn.Module", device: "torch.device") -> None:
    """Compile, in place, every block that a ModuleList of one class repeats; the whole model if there is none.

    Blocks that differ in weights only share their code, so the time to compile does not grow with the depth. The names in
    `state_dict` stay, and a copy of the model is not compiled. Sizes are symbolic: a ragged last batch reuses the code,
    but for a batch of 1, and one so small that other kernels are better. `UserError` where no compiler works on `device`.
    """
    import torch

    try:  # now, and not with a traceback in the first step
        torch.compile(lambda x: x.sin())(torch.ones(8, device=device))
    except Exception as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        mend = "install g++ and Python's headers, or write compile=false"
        raise UserError(f"compile=true does not work here ({reason}): {mend}") from None
    repeated = [
        block
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len({type(block) for block in module}) == 1
        for block in module
    ]
    for block in repeated or [model]:
        # As block.compile() does, which leaves torch.nn's own classes as they are, without a word (torch 2.13)
        block._compiled_call_impl = torch.compile(types.MethodType(_call, block), dynamic=True)


def _call(module: "torch.nn.Module", *inputs: Any, **named: Any) -> Any:
    """A frame outside of torch: the compiler passes over those inside."""
    return module._call_impl(*inputs, **named)
