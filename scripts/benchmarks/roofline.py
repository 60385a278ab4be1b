"""A training step of each recipe: its use of the machine's limits, and the time of arithmetic, memory, Python and waiting.

The limits are the speeds of a product of two large matrices and of a copy of a large array, measured in the same process.
Each recipe is trained by the shared loop with generated data. On CPUs every process has one thread, and seconds are CPU
seconds, so other load hardly matters. On a GPU they are wall-clock seconds, and all trainings start together and then take
turns in being measured.

The profiler's times of PyTorch's operations divide a step into matrix products (arithmetic), all other operations (memory),
waiting for the next batch, and the remaining time, which is Python, the overhead of the profiler and, on a GPU, idle time.
"""

import fcntl
import itertools
import math
import os
import re
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks.commands import command
from benchmarks.next_item import data as next_item_data
from benchmarks.runs import Commands, num_gpus, refuse_unknown
from benchmarks.timing import called, memory_mb
from ensemble import folders
from ensemble.errors import UserError

VARIANTS = {
    "no": ("precision=no",),
    "bf16": ("precision=bf16",),
    "fp16": ("precision=fp16",),
    "bf16, not deterministic": ("precision=bf16", "deterministic=false"),
    "bf16, large batch": ("precision=bf16",),
    "bf16, compiled": ("precision=bf16", "compile=true"),
    "fp8": ("precision=fp8",),
    "fp8, large batch": ("precision=fp8",),
}
"""Settings of train.py by the name of the variant; a large batch has the size below."""
LARGE_BATCHES = {"hot_sellers": 8192, "next_item": 2048, "table": 4096, "sudoku": 2048, "emulator": 32_000}
WORDS: dict[str, tuple[str, ...]] = {
    "hot_sellers": (),
    "next_item": ("batch_size=128", "recipe.max_length=50", "recipe.width=64"),
    "table": (),
    "sudoku": ("recipe.variant=trm",),
    "emulator": ("batch_size=1000", "recipe.widths=[64,64,64]", "recipe.jacobian_weight=0.1"),
}
"""By recipe, the settings of train.py that differ from the defaults."""
WARM_UP_STEPS, PROFILED_STEPS, COUNTED_STEPS, NUM_WINDOWS = 10, 10, 3, 3
"""Steps before the measured ones, steps under the profiler, steps whose operations and bytes are counted, and the number of
periods in which the other steps are timed."""
MATRIX_PRODUCT = re.compile(
    r"mm\b|matmul|linear|conv|dot_product|attention|gemm|cutlass|nvjet|xmma|fmha|flash", re.IGNORECASE
)
"""Matches the names of matrix products among operations of PyTorch on a CPU and among kernels on a GPU."""
SIDE, NUM_VALUES = {"cpu": 2048, "cuda": 8192}, {"cpu": 2**26, "cuda": 2**28}
"""For the limits by kind of device: the side of the two matrices, and the number of values of the array that is copied."""
Clock = Callable[[], float]


@command
def roofline(
    folder: str = "runs/roofline",
    recipes: tuple[str, ...] = (),
    variants: tuple[str, ...] = ("no",),
    seconds: float = 10.0,
    before: str = "",
) -> dict[str, Any]:
    """A training step of each recipe compared with the limits of the machine, on one thread; four minutes.

    folder : the folder for the prepared data of each recipe, which are generated if they are not there
    recipes : the recipes to measure; empty for all
    variants : no (float32), bf16, fp16, fp8, or with the quotes 'bf16, not deterministic', 'bf16, compiled',
        'bf16, large batch' and 'fp8, large batch'
    seconds : seconds of training of each measurement, after the warm-up
    before : the JSON file of an earlier version of the code, whose results are added to the new file
    """
    if not 0 < seconds < math.inf:
        raise UserError(f"seconds={seconds} is impossible: it must be more than 0")
    refuse_unknown("recipes", recipes, WORDS)
    refuse_unknown("variants", variants, VARIANTS)
    earlier = {"before": folders.read_json(Path(before)).get("steps")} if before else {}
    if before and not earlier["before"]:
        raise UserError(f"before={before} has no steps: name a file that this benchmark wrote")
    data = {recipe: str(prepared(Path(folder), recipe)) for recipe in recipes or WORDS}
    trainings = list(itertools.product(data, variants))

    def measured(training: tuple[str, str]) -> dict[str, Any]:
        recipe, variant = training
        out = f"{scratch}/{trainings.index(training)}"
        try:
            figures: dict[str, Any] = called(training_step, recipe, data[recipe], variant, seconds, out, f"{scratch}/lock")
        except UserError as error:  # a precision or a compiler that this machine lacks
            figures = {"failed": str(error)}
        print(f"{recipe}, {variant}", figures, flush=True)
        return figures

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(trainings) if num_gpus() else 1) as pool:
        Path(scratch, "lock").touch()
        steps = {
            ", ".join(training): figures for training, figures in zip(trainings, pool.map(measured, trainings), strict=True)
        }
    return {"steps": steps, **earlier}


@command
def gpu(recipes: tuple[str, ...] = (), variants: tuple[str, ...] = tuple(VARIANTS), seconds: float = 3.0) -> dict[str, Any]:
    """A training step of each recipe on an NVIDIA GPU, by precision and size of the batch, and with torch.compile; minutes.

    recipes, variants, seconds : as in `roofline`
    """
    if not num_gpus():
        raise UserError("torch finds no GPU on this machine: run `make bench-gpu` where nvidia-smi lists one")
    return roofline(recipes=recipes, variants=variants, seconds=seconds)


def prepared(folder: Path, recipe: str) -> Path:
    """The prepared data of a recipe in `folder`, generated if they are not there."""
    data = folder / recipe
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            if recipe == "next_item":
                generator = np.random.default_rng(0)
                next_item_data.write(Path(scratch), next_item_data.beauty_lengths(5000, generator), 3000, generator)
            elif recipe == "table":
                _prepare_table(Path(scratch))
            else:
                Commands(recipe).prepare(Path(scratch) / "prepared", *GENERATED[recipe])
            (Path(scratch) / "prepared").rename(data)
    return data


def _prepare_table(folder: Path) -> None:
    """Prepare a generated table: 20,000 rows of 20 numbers and a class that depends on some of them."""
    values = np.random.default_rng(0).standard_normal((20_000, 20)).round(3)
    columns = {f"x{number}": column for number, column in enumerate(values.T)}
    is_positive = values[:, 0] * values[:, 1] + values[:, 2] > 0
    csv.write_csv(pa.table({**columns, "y": pa.array(is_positive).cast("string")}), folder / "table.csv")
    Commands("table").prepare(folder / "prepared", f"source=[{folder}/table.csv]", "target=y")


GENERATED = {
    "hot_sellers": ("market.num_products=800", "market.num_reviews=40000"),
    "sudoku": ("side=9", "clues=36", "num_train=2000", "num_validation=100", "num_test=100"),
    "emulator": (),
}
"""By recipe, the settings of prepare_data.py that generate its data."""


def config_of(recipe: str, data: str, out: str, *words: str) -> Any:
    """The settings of a training that does not end by itself and writes no log."""
    from ensemble import configuration
    from ensemble.neural.settings import config_class

    always = (f"data={data}", f"out={out}", "max_epochs=10000", "trackers=[]")
    return configuration.load(config_class(recipe), None, [*WORDS[recipe], *always, *words])


def set_up(recipe: str, config: Any, accelerator: Any, stack: ExitStack) -> Any:
    """A new `Training` of the shared loop, which `stack` closes."""
    from ensemble.neural import setup
    from ensemble.recipe import named

    trained = named(recipe).require("training", "make", "has no network")(config.recipe, config.data)
    return setup.set_up(trained, config, accelerator, stack, "", False, False)


def training_step(recipe: str, data: str, variant: str, seconds: float, out: str, lock_file: str) -> dict[str, Any]:
    """Train by the shared loop in this process; steps are counted, timed, then profiled. Returns the figures.

    lock_file : processes that start hold a shared lock of this file, and a process that measures an exclusive one
    """
    lock = os.open(lock_file, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0"):  # it is set, and hides all GPUs
        os.environ["ACCELERATE_USE_CPU"] = "true"
    from ensemble.neural import launch

    large = (f"batch_size={LARGE_BATCHES[recipe]}",) if "large batch" in variant else ()
    config = config_of(recipe, data, out, *VARIANTS[variant], *large)
    accelerator = launch.start(config)

    import torch

    device = accelerator.device
    is_gpu = device.type == "cuda"
    clock = _synchronised if is_gpu else time.process_time
    with ExitStack() as stack:
        training = set_up(recipe, config, accelerator, stack)
        _steps(training, WARM_UP_STEPS)
        num_flops, num_bytes = (0, 0) if config.compile else _counted(training)
        fcntl.flock(lock, fcntl.LOCK_UN)
        windows = [_window(training, clock, seconds / NUM_WINDOWS, lock) for _ in range(NUM_WINDOWS)]
        step_s, waiting = (statistics.median(values) for values in zip(*windows, strict=True))
        fcntl.flock(lock, fcntl.LOCK_EX)
        products, others = _by_operation(training, is_gpu)
        plan = training.plan
    figures = {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "batch_size": plan.batch_size,
        "step_ms": step_s * 1e3,
        "fastest_ms": min(windows)[0] * 1e3,
        "slowest_ms": max(windows)[0] * 1e3,
        "rows_per_s": plan.batch_size / step_s,
        "arithmetic": products,
        "memory": others,
        "waiting": waiting,
        "python": max(0.0, 1 - products - others - waiting),
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if is_gpu else memory_mb(),
    }
    if not config.compile and accelerator.mixed_precision != "fp8":  # `limits` knows no product of matrices in fp8
        flops_limit, bytes_limit = limits(device, accelerator.mixed_precision, clock)
        figures |= {
            "gflops_a_step": num_flops / 1e9,
            "gb_a_step": num_bytes / 1e9,
            "limit_gflops_per_s": flops_limit / 1e9,
            "limit_gb_per_s": bytes_limit / 1e9,
            "share_of_flops_limit": num_flops / step_s / flops_limit,
            "share_of_bandwidth": num_bytes / step_s / bytes_limit,
        }
    return {name: value if isinstance(value, str) else float(f"{value:.4g}") for name, value in figures.items()}


def _window(training: Any, clock: Clock, seconds: float, lock: int) -> tuple[float, float]:
    """The seconds of a step, and the share of time spent waiting for data, while no other process measures."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    _steps(training, 1)
    waited_s, began_s, began, num_steps = training.feed.waited_s, time.perf_counter(), clock(), 0
    while clock() - began < seconds:
        _steps(training, 1)
        num_steps += 1
    step_s = (clock() - began) / num_steps
    waiting = (training.feed.waited_s - waited_s) / (time.perf_counter() - began_s)
    fcntl.flock(lock, fcntl.LOCK_UN)
    time.sleep(0.01)  # let another process have its turn
    return step_s, waiting


def _synchronised() -> float:
    """The wall-clock time, once the GPU has finished its work."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def _steps(training: Any, number: int) -> None:
    from ensemble.neural import loop

    for _ in range(number):
        loop.update(training, loop.step(training))


def _by_operation(training: Any, is_gpu: bool) -> tuple[float, float]:
    """The shares of matrix products, and of all other operations of PyTorch, in the time of some profiled steps."""
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
    """The floating-point operations of a step, and the bytes of all tensors that its operations read and write.

    Operations that only make a view count no bytes. The counter of floating-point operations leaves out attention on CPUs.
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
    """FLOP/s of a product of two large matrices, and bytes/s (read plus written) of a copy of a large array."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    side = SIDE[device.type]
    left, right = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    values = torch.randn(NUM_VALUES[device.type], device=device)
    copied = torch.empty_like(values)
    product_s = _shortest(lambda: left @ right, clock)
    copy_s = _shortest(lambda: copied.copy_(values), clock)
    return 2 * side**3 / product_s, 2 * values.nbytes / copy_s


def _shortest(work: Callable[[], object], clock: Clock) -> float:
    """Seconds of the fastest call of seven, after one call as a warm-up."""
    work()
    return min(timeit.repeat(work, timer=clock, number=1, repeat=7))
