"""A rank of the benchmark of checkpoints: one model with AdamW, saved several times."""

import json
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.checkpoints.settings import CheckpointsRun

WIDTH = 1000
"""Each layer has WIDTH² parameters, a million."""


def run(settings: CheckpointsRun) -> None:
    """Save `rounds` checkpoints, and write the medians of the main process to figures.json in `settings.out`."""
    from ensemble.neural import launch

    accelerator = launch.start()
    import psutil
    import torch

    from ensemble.neural import checkpoint
    from ensemble.neural.training_state import TrainingState

    model: Any = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(settings.millions)))
    model, prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
    optimizer = prepared.optimizer
    for weight in model.parameters():  # as after a step, whose gradients are deleted before a checkpoint
        moments = {name: torch.rand_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(1.0), **moments}
    state = TrainingState(model, [optimizer], 0.0, accelerator, 600)
    if state.is_sharded:
        from ensemble.neural import sharded

        group = sharded.writers(600)

    def write_now(folder: Path) -> None:
        weights = {name: weight.detach() for name, weight in model.state_dict().items()}
        moments, about = checkpoint.flatten_optimizer(optimizer, "optimizer0")
        description = {"optimizers": [about]}
        if state.is_sharded:
            sharded.write(folder, {**weights, **moments}, description, {}, group)
        else:
            checkpoint.write(folder, weights, description, moments)

    def write_later(folder: Path) -> Callable[[], None]:  # as loop.save
        if state.is_sharded:
            return state.sharded_write(folder, {})
        weights, (tensors, description) = state.weights(), state.snapshot()
        return partial(checkpoint.write, folder, weights, description, tensors)

    out = Path(settings.out)
    before_mb = psutil.Process().memory_info().rss / 1e6
    found: list[dict[str, float]] = []
    with checkpoint.BackgroundWriter() as writer:
        for number in range(settings.rounds):
            folder = out / f"step-{number}"
            accelerator.wait_for_everyone()
            began, cpu_began = time.perf_counter(), time.thread_time()
            if settings.kind == "synchronous":
                write_now(folder)
            else:
                writer.submit(write_later(folder))
            times = {"main_thread_s": time.perf_counter() - began, "main_thread_cpu_s": time.thread_time() - cpu_began}
            writer.wait()
            found.append({**times, "written_s": time.perf_counter() - began})
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                shutil.rmtree(folder)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    figures: dict[str, Any] = {name: round(statistics.median(of[name] for of in found), 3) for name in found[0]}
    figures |= {"first_main_thread_s": round(found[0]["main_thread_s"], 3)}
    figures |= {"training_mb": round(before_mb), "more_mb": round(peak_mb - before_mb)}
    if accelerator.is_main_process:
        (out / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
    accelerator.wait_for_everyone()
