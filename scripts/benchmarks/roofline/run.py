"""One process of the benchmarks of measure.py: a training by the shared loop, whose steps are timed and then profiled.

A step is divided by the profiler's times of PyTorch's operations: matrix products (arithmetic), all other operations
(memory), waiting for the next batch, and the rest, which is Python, the overhead of the profiler and, on a GPU, idle time.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.roofline.settings import RooflineRun
from ensemble import configuration, folders, recipe
from ensemble.neural import launch
from ensemble.neural.settings import config_class

WARM_UP_STEPS, PROFILED_STEPS, COUNTED_STEPS = 10, 10, 3
MATRIX_PRODUCT = re.compile(
    r"mm\b|matmul|linear|conv|dot_product|attention|gemm|cutlass|nvjet|xmma|fmha|flash", re.IGNORECASE
)
"""Operations of PyTorch on a CPU, and kernels on a GPU."""
SIDE, NUM_VALUES = 2048, 2**26
"""Of the matrices and of the array that is copied."""

Clock = Callable[[], float]


def run(settings: RooflineRun) -> None:
    """Measure, and write the figures as JSON."""
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0"):
        os.environ["ACCELERATE_USE_CPU"] = "true"
    out = Path(settings.out)
    folder = out.with_suffix("")
    words = [*settings.words, f"out={folder}", "max_epochs=10000", "trackers=[]"]
    config: Any = configuration.load(config_class(settings.recipe), None, words)
    accelerator = launch.start(config)

    import torch

    from ensemble.neural.setup import set_up

    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    device = accelerator.device
    is_gpu = device.type == "cuda"
    clock = _synchronised if is_gpu else time.process_time
    trained = recipe.named(settings.recipe).require("training", "make", "has no network")(config.recipe, config.data)
    with ExitStack() as stack:
        training = set_up(trained, config, accelerator, stack, "", False, False)
        _steps(training, WARM_UP_STEPS)
        waited_s, began_s, began, num_steps = training.feed.waited_s, time.perf_counter(), clock(), 0
        while clock() - began < settings.seconds:
            _steps(training, 1)
            num_steps += 1
        step_s = (clock() - began) / num_steps
        waiting = (training.feed.waited_s - waited_s) / (time.perf_counter() - began_s)
        products, others = _by_operation(training, is_gpu)
        plan = training.plan
        num_flops, num_bytes = (0, 0) if config.compile else _counted(training)
    figures = {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "batch_size": plan.batch_size,
        "step_ms": step_s * 1e3,
        "rows_per_s": plan.batch_size / step_s,
        "arithmetic": products,
        "memory": others,
        "waiting": waiting,
        "python": max(0.0, 1 - products - others - waiting),
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if is_gpu else _peak_mb(),
    }
    if not config.compile:
        flops_limit, bytes_limit = limits(device, accelerator.mixed_precision, clock)
        figures |= {
            "gflops_a_step": num_flops / 1e9,
            "gb_a_step": num_bytes / 1e9,
            "limit_gflops_per_s": flops_limit / 1e9,
            "limit_gb_per_s": bytes_limit / 1e9,
            "share_of_flops_limit": num_flops / step_s / flops_limit,
            "share_of_bandwidth": num_bytes / step_s / bytes_limit,
        }
    folders.write_json(
        out, {name: value if isinstance(value, str) else float(f"{value:.4g}") for name, value in figures.items()}
    )


def _synchronised() -> float:
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def _steps(training: Any, number: int) -> None:
    from ensemble.neural import loop

    for _ in range(number):
        loop.update(training, loop.step(training))


def _by_operation(training: Any, is_gpu: bool) -> tuple[float, float]:
    """The shares of some steps, of matrix products and of all other operations of PyTorch."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]) as profiled:
        began = time.perf_counter()
        _steps(training, PROFILED_STEPS)
        profiled_s = (_synchronised() if is_gpu else time.perf_counter()) - began
    shares = {True: 0.0, False: 0.0}
    for event in profiled.key_averages():
        own_us = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        if is_gpu or event.key.startswith(("aten::", "mkldnn", "mkl")):
            shares[bool(MATRIX_PRODUCT.search(event.key))] += own_us / 1e6 / profiled_s
    return shares[True], shares[False]


def _counted(training: Any) -> tuple[float, float]:
    """Floating-point operations of a step, and bytes of all tensors that its operations read and write.

    A view reads and writes nothing. The attention kernel of CPUs is not among the counted operations.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    class Bytes(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            result = function(*arguments, **(named or {}))
            if not function.is_view:
                leaves = tree_leaves((arguments, named, result))
                self.total += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
            return result

    with Bytes() as counted:
        _steps(training, COUNTED_STEPS)
    with FlopCounterMode(display=False) as counter:
        _steps(training, COUNTED_STEPS)
    return counter.get_total_flops() / COUNTED_STEPS, counted.total / COUNTED_STEPS


def limits(device: Any, precision: str, clock: Clock) -> tuple[float, float]:
    """FLOP/s of a product of two large matrices, and bytes/s, read and written, of a copy of a large array."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    left, right = (torch.randn(SIDE, SIDE, device=device).to(kind) for _ in range(2))
    values = torch.randn(NUM_VALUES, device=device)
    copied = torch.empty_like(values)
    return 2 * SIDE**3 / _shortest(lambda: left @ right, clock), 2 * values.nbytes / _shortest(
        lambda: copied.copy_(values), clock
    )


def _shortest(work: Callable[[], object], clock: Clock, times: int = 7) -> float:
    """Seconds of the fastest call but the first."""
    work()
    seconds = []
    for _ in range(times):
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
