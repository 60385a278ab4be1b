"""How long training waits for a checkpoint of 10, 100 and 500 million parameters, and how much memory that takes.

A checkpoint has the weights and AdamW's two moments in float32. `synchronous` writes and syncs files with checksums before
training continues. `asynchronous`, as in the training loop, copies the state and writes it in the background. The results
have wall-clock and CPU seconds of the main thread; other load on the machine hardly changes the latter. `more_mb` is the
peak memory minus the memory before the first checkpoint.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.commands import command
from benchmarks.runs import enough, launcher
from benchmarks.timing import ROOT, called, memory_mb

MB_PER_MILLION = {"synchronous": 12, "asynchronous": 24}
"""The memory for weights and two moments in float32; asynchronous needs a copy of them."""
RESERVE_MB = 1500
"""The memory for everything else, such as PyTorch."""
WIDTH = 1000
"""Each layer has WIDTH² parameters, a million."""


@command
def checkpoints(millions: tuple[int, ...] = (10, 100, 500), rounds: int = 3) -> dict[str, Any]:
    """How long training waits for a checkpoint, written before it continues or in the background; five minutes, 13 GB.

    millions : parameters of the models, in millions; a size that does not fit into free memory is left out
    rounds : checkpoints of each kind, whose medians are reported; at least 2
    """
    enough(rounds, 2)
    return {"rounds": rounds, **{f"{size} M": _both_kinds(size, rounds) for size in millions}}


@command
def checkpoints_sharded(millions: tuple[int, ...] = (10, 100, 500), rounds: int = 3) -> dict[str, Any]:
    """Like `checkpoints`, with weights sharded over two CPU ranks (FSDP2), measured on the first; three minutes, 15 GB.

    millions, rounds : as in `checkpoints`
    """
    enough(rounds, 2)
    launch = launcher(2, configuration=str(ROOT / "accelerate_configs" / "multi_cpu_sharded.yaml"))
    return {"rounds": rounds, "ranks": 2, **{f"{size} M": _both_kinds(size, rounds, launch) for size in millions}}


def _both_kinds(size: int, rounds: int, launch: Sequence[str | Path] = ()) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for kind, mb_per_million in MB_PER_MILLION.items():
        needed_mb, free_mb = mb_per_million * size + RESERVE_MB, psutil.virtual_memory().available / 1e6
        if needed_mb > free_mb:
            sides[kind] = f"not measured: needs {needed_mb:,} MB, {free_mb:,.0f} MB were available"
        else:
            with tempfile.TemporaryDirectory() as out:
                sides[kind] = called(rank, size, rounds, kind, out, start=launch)
        print(f"{size} M, {kind}: {sides[kind]}", flush=True)
    return sides


def rank(millions: int, rounds: int, kind: str, out: str) -> dict[str, Any] | None:
    """Write checkpoints of a model with AdamW to the folder `out`; return medians, or None outside the main process."""
    from ensemble.neural import launch

    accelerator = launch.start()
    import torch

    from ensemble.neural import checkpoint
    from ensemble.neural.training_state import TrainingState

    model: Any = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(millions)))
    model, prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
    optimizer = prepared.optimizer
    for weight in model.parameters():  # the state after a step; there are no gradients, as when a training saves
        moments = {name: torch.rand_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(1.0), **moments}
    state = TrainingState(model, [optimizer], 0.0, accelerator, 600)
    if state.is_sharded:
        from ensemble.neural import sharded

        group = sharded.writer_group(600)

    def write_now(folder: Path) -> None:
        weights = {name: weight.detach() for name, weight in model.state_dict().items()}
        moments, scalars = checkpoint.flatten_optimizer(optimizer, "optimizer0")
        description = {"optimizers": [scalars]}
        if state.is_sharded:
            sharded.write(folder, {**weights, **moments}, description, {}, group)
        else:
            checkpoint.write(folder, weights, description, moments)

    before_mb = memory_mb("VmRSS")
    measured: list[dict[str, float]] = []
    with checkpoint.BackgroundWriter() as writer:
        for number in range(rounds):
            folder = Path(out) / f"step-{number}"
            accelerator.wait_for_everyone()
            began, cpu_began = time.perf_counter(), time.thread_time()
            if kind == "synchronous":
                write_now(folder)
            else:
                writer.submit(state.checkpoint_writer(folder, {}))  # as in loop.py
            times = {"main_thread_s": time.perf_counter() - began, "main_thread_cpu_s": time.thread_time() - cpu_began}
            writer.wait()
            measured.append({**times, "written_s": time.perf_counter() - began})
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                shutil.rmtree(folder)
    accelerator.wait_for_everyone()
    medians = {name: round(statistics.median(times[name] for times in measured), 3) for name in measured[0]}
    return {**medians, "more_mb": round(memory_mb() - before_mb)} if accelerator.is_main_process else None
