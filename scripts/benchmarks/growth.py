"""Growth of CPU seconds and peak memory with the size of a job, over at least six doublings (ranks: two).

reviews    : preparing generated reviews with text (hot_sellers)
rows       : preparing a table, and growing 20 trees on 50 features out of core (memory=low)
parameters : a training step of a network whose width grows
ranks      : a training step of all ranks together, for the same global batch

An exponent is the slope of a least-squares line through log cost against log size: 1 if the cost doubles with the size.
Costs that do not depend on the size, such as imports, lower it. CPU seconds are used since other load changes them little.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import trees
from benchmarks.commands import command
from benchmarks.data import prepare_market
from benchmarks.runs import Commands, enough, launcher, refuse_unknown, shown
from benchmarks.timing import called, memory_mb

Costs = dict[str, Any]
"""`size`, `cpu_s` and `peak_mb` of one measurement."""
NUM_NUMERIC, NUM_TEXT = 20, 4
"""Numbers of numeric and of text columns in the table that is prepared."""
NUM_LAYERS, BATCH_SIZE, NUM_STEPS = 4, 256, 10
"""Layers of the network, its global batch, and the number of measured steps, which follow a warm-up of two."""


@command
def growth(
    axes: tuple[str, ...] = (),
    reviews: tuple[int, ...] = (500_000, 2_000_000, 8_000_000, 32_000_000),
    rows: tuple[int, ...] = (10_000, 40_000, 160_000, 640_000, 2_560_000, 10_240_000),
    widths: tuple[int, ...] = (256, 362, 512, 724, 1024, 1448, 2048),
    ranks: tuple[int, ...] = (1, 2, 4),
) -> dict[str, Any]:
    """Growth of CPU seconds and memory with reviews, table rows, parameters and ranks, with fitted exponents; an hour.

    axes : the kinds of size that grow, of reviews, rows, parameters and ranks; empty for all
    reviews : numbers of reviews with text, ten products for each thousand; 32 million need 20 GB of disk
    rows : numbers of rows of a table; 10 million need 12 GB of memory
    widths : widths of a network, the square of which is proportional to the number of parameters
    ranks : numbers of ranks that share a batch
    """
    sizes_of = {"reviews": reviews, "rows": rows, "parameters": widths, "ranks": ranks}
    refuse_unknown("axes", axes, AXES, "axis ")
    for axis in axes or AXES:
        enough(len(sizes_of[axis]), 2, f"number of sizes of {axis}", "an exponent")
        enough(min(sizes_of[axis]), 1, f"size of {axis}", "a measurement")
    results: dict[str, Any] = {}
    for axis in axes or AXES:
        points: dict[str, list[Costs]] = {}
        for size in sizes_of[axis]:
            with tempfile.TemporaryDirectory() as scratch:
                for work, costs in AXES[axis](size, Path(scratch)).items():
                    points.setdefault(work, []).append(shown(f"{axis}, {work}", {"size": size, **costs}))
        results[axis] = {work: fitted(each) for work, each in points.items()}
    return results


def fitted(points: Sequence[Costs]) -> dict[str, Any]:
    """The list of values of each cost, and the exponent of its growth."""
    columns: dict[str, Any] = {name: [point[name] for point in points] for name in ("size", "cpu_s", "peak_mb")}
    for name in ("cpu_s", "peak_mb"):
        slope = np.polyfit(np.log(columns["size"]), np.log(columns[name]), 1)[0]
        columns[f"{name}_exponent"] = round(float(slope), 2)
    return columns


def _measure_rows(size: int, scratch: Path) -> dict[str, Costs]:
    file, data = scratch / "table.parquet", scratch / "data"
    _write_table(file, size)
    costs = {"prepare": Commands("table").prepare(scratch / "prepared", f"source=[{file}]", "target=y")}
    trees.write_data(data, size)
    return costs | {
        f"{library}, low": called(trees.process, str(data), library, "ours", "low", 20) for library in trees.LIBRARIES
    }


def _write_table(file: Path, num_rows: int) -> None:
    """Write a table of numbers, of texts with at most 1,000 different values, and of a target that depends on numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    names = [*(f"x{number}" for number in range(NUM_NUMERIC)), *(f"t{number}" for number in range(NUM_TEXT)), "y"]
    words = np.array([f"word {number}" for number in range(1000)])
    writer = None
    for start in range(0, num_rows, trees.ROWS_AT_ONCE):
        rows = min(trees.ROWS_AT_ONCE, num_rows - start)
        numbers = generator.standard_normal((NUM_NUMERIC, rows), dtype=np.float32)
        texts = [words[generator.zipf(1.5, rows) % len(words)] for _ in range(NUM_TEXT)]
        y = numbers[:4].sum(0) + generator.standard_normal(rows)
        batch = pa.table([*numbers, *texts, y], names=names)
        writer = writer or pq.ParquetWriter(file, batch.schema)
        writer.write_table(batch)
    assert writer
    writer.close()


def step(width: int) -> Costs | None:
    """Train a network on the ranks that were launched, with the steps and updates of the training loop.

    The main process returns the number of parameters, the CPU seconds of a step summed over all ranks, and the largest peak
    memory of a rank in MB, without that of its imports.
    """
    from ensemble.neural import launch

    accelerator = launch.start()
    import torch

    from ensemble.neural.training_state import TrainingState

    torch.manual_seed(0)
    before_mb = memory_mb()
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(NUM_LAYERS)]
    model = torch.nn.Sequential(*(module for layer in layers for module in (layer, torch.nn.GELU())))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))
    state = TrainingState(model, [optimizer.optimizer], 0.0, accelerator, 600)
    inputs = torch.randn(BATCH_SIZE // accelerator.num_processes, width)

    def one_step() -> None:
        state.backward(state.model(inputs).square().mean())
        state.gradient_norm()
        state.update(1.0, 1.0)
        state.end_step()

    for _ in range(2):
        one_step()
    accelerator.wait_for_everyone()
    began = time.process_time()
    for _ in range(NUM_STEPS):
        one_step()
    cpu_s = (time.process_time() - began) / NUM_STEPS
    costs = accelerator.gather(torch.tensor([[cpu_s, memory_mb() - before_mb]], dtype=torch.float64))
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return None
    figures = {"cpu_s": round(float(costs[:, 0].sum()), 5), "peak_mb": round(float(costs[:, 1].max()), 1)}
    return {"parameters": num_parameters, **figures}


def _measure_parameters(width: int, scratch: Path) -> dict[str, Costs]:
    costs = called(step, width, start=launcher(1))
    return {"step": {"size": costs["parameters"], **costs}}


AXES: dict[str, Callable[[int, Path], dict[str, Costs]]] = {
    "reviews": lambda size, scratch: {"prepare": prepare_market(size, size // 100)},
    "rows": _measure_rows,
    "parameters": _measure_parameters,
    "ranks": lambda ranks, scratch: {"step": called(step, 724, start=launcher(ranks))},
}
"""For each kind of size, the function that measures a job, given its size and a folder for files. Returns costs by work."""
