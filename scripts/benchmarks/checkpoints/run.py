"""A process of the benchmark of checkpoints: one model with AdamW, saved several times."""

import json
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoints.settings import CheckpointsRun

WIDTH = 1000
"""Each layer has WIDTH² parameters, a million."""


def run(settings: CheckpointsRun) -> None:
    """Save `rounds` checkpoints, and write the medians to figures.json in `settings.out`."""
    import psutil
    import torch
    from accelerate import Accelerator

    from ensemble.neural import checkpoint
    from ensemble.neural.training_state import TrainingState

    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(settings.millions)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for weight in model.parameters():  # as after a step, whose gradients are deleted before a checkpoint
        moments = {name: torch.rand_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(1.0), **moments}
    state = TrainingState(model, [optimizer], 0.0, Accelerator(cpu=True))
    out = Path(settings.out)
    before_mb = psutil.Process().memory_info().rss / 1e6
    found: list[dict[str, float]] = []
    with checkpoint.BackgroundWriter() as writer:
        for number in range(settings.rounds):
            folder = out / f"step-{number}"
            began, cpu_began = time.perf_counter(), time.thread_time()
            if settings.kind == "synchronous":
                moments, about = checkpoint.flatten_optimizer(optimizer, "optimizer0")
                checkpoint.write(folder, model.state_dict(), {"optimizers": [about]}, moments)
            else:  # as in loop.save
                weights, (tensors, description) = state.weights(), state.snapshot()
                writer.submit(_write(checkpoint.write, folder, weights, description, tensors))
                del weights, tensors
            times = {"main_thread_s": time.perf_counter() - began, "main_thread_cpu_s": time.thread_time() - cpu_began}
            writer.wait()
            found.append({**times, "written_s": time.perf_counter() - began})
            shutil.rmtree(folder)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    figures: dict[str, Any] = {name: round(statistics.median(of[name] for of in found), 3) for name in found[0]}
    figures |= {"first_main_thread_s": round(found[0]["main_thread_s"], 3)}
    figures |= {"training_mb": round(before_mb), "more_mb": round(peak_mb - before_mb)}
    (out / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _write(write: Any, *arguments: Any) -> Any:
    """The job without names that would keep its copies alive in the caller."""
    return lambda: write(*arguments)
