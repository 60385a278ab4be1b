"""Training stands still while a checkpoint is written: accelerate#3746.

Seconds are CPU seconds of the main thread by which a checkpoint makes the run longer. They do not depend on what else
runs on the machine; wall seconds are in the JSON beside them. Accelerate's `save_state` writes before it returns. This
project copies, and writes in the background; it also makes checksums and syncs the files, which Accelerate does not.
`synchronous` is what the same checkpoint of this project costs if it is written before training goes on.
"""

import itertools
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides
from benchmarks.timing import timed

THREADS = ("accelerate#3746", "pytorch/torchtune#2006")
SAVE_AT, LAST_STEP = (10, 25, 40), 55
"""Steps with a checkpoint; those before the next one show how fast steps are without."""
WARM_UP_STEPS = 3
WIDTHS = {"1 M": 1_000, "10 M": 3_162, "100 M": 10_000}
"""Parameters: width of a square matrix."""


def rank(settings: Any) -> None:
    from benchmarks.pains import plain

    if settings.variant == "written":
        written(settings)
    else:
        plain.train(settings)


def written(settings: Any) -> None:
    """Copy and write a checkpoint of this project in one thread."""
    import json
    import time

    import torch

    from benchmarks.pains.recipe.model import Shares
    from ensemble.neural import checkpoint

    model = Shares(settings.num_rows, settings.extra_width)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    found: dict[str, list[float]] = {"copy_s": [], "write_s": [], "write_wall_s": []}
    for number in range(3):
        began = time.thread_time()
        moments, about = checkpoint.flatten_optimizer(optimizer, "optimizer0")
        copies = [{name: tensor.clone() for name, tensor in of.items()} for of in (model.state_dict(), moments)]
        copied, wall = time.thread_time(), time.perf_counter()
        checkpoint.write(Path(settings.out) / f"step-{number}", copies[0], {"optimizers": [about]}, copies[1])
        found["copy_s"].append(copied - began)
        found["write_s"].append(time.thread_time() - copied)
        found["write_wall_s"].append(time.perf_counter() - wall)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    Path(settings.out, "written.json").write_text(json.dumps(medians), encoding="utf-8")


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    from ensemble import folders

    sizes = {}
    for size in ("1 M",) if short else ("10 M", "100 M"):
        width = WIDTHS[size]
        words = [
            f"extra_width={width}",
            f"num_rows={LAST_STEP * 16}",
            "batch_size=16",
            "epochs=1",
            f"save_at={list(SAVE_AT)}",
        ]
        out = folder / f"plain-{width}"
        out.mkdir()
        used = timed(sides.plain_command("checkpoint_stall", out, *words, start=sides.launcher(1)))
        plain = measured(out, SAVE_AT, used["peak_mb"])
        shutil.rmtree(out)
        data, run = sides.prepared(folder, LAST_STEP * 16), folder / f"here-{width}"
        settings: dict[str, Any] = {"recipe__extra_width": width, "max_epochs": 1, "checkpoint_steps": 15, "keep_last": 1}
        used = timed(sides.train_command(data, run, sides.launcher(1), **settings))
        here = measured(sides.record_of(run), (15, 30, 45), used["peak_mb"])
        shutil.rmtree(run)
        out = folder / f"written-{width}"
        out.mkdir()
        used = timed(sides.plain_command("checkpoint_stall", out, *words, "variant=written", start=sides.launcher(1)))
        synchronous = {**folders.read_json(out / "written.json"), "peak_mb": used["peak_mb"]}
        shutil.rmtree(out)
        sizes[size] = {"plain": plain, "here": here, "synchronous": synchronous}
    largest = list(sizes.values())[-1]
    side = {
        name: sides.Side(
            rows=LAST_STEP * 16,
            seconds=largest[name]["thread"]["longer_s"],
            note=f"{largest[name]['thread']['longer_s'] / 0.6:.2f} % of the time at one checkpoint a minute",
        )
        for name in ("plain", "here")
    }
    plain, here = largest["plain"]["thread"], largest["here"]["thread"]
    return {**side, "more": {"sizes": sizes, "reproduces": plain["longer_s"] > here["longer_s"]}}


def measured(record: Path, saves: tuple[int, ...], peak_mb: float) -> dict[str, Any]:
    """Seconds of a step, of what a checkpoint adds to the step with it, and to the run; and the peak memory.

    By the CPU time of the main thread, and by the clock.
    """
    lines = rows.record(record)
    assert len(lines) == LAST_STEP
    found: dict[str, Any] = {"peak_mb": peak_mb}
    for name in ("thread", "wall"):
        times = [line[f"{name}_s"] for line in lines]
        intervals = [after - before for before, after in itertools.pairwise(times)]  # number n lies after step n + 1
        step = statistics.median(intervals[WARM_UP_STEPS : saves[0] - 1])
        windows = [intervals[save - 1 : save - 1 + min(saves[1] - saves[0], LAST_STEP - save)] for save in saves]
        found[name] = {
            "step_s": round(step, 4),
            "stop_s": round(statistics.median(window[0] - step for window in windows), 3),
            "longer_s": round(statistics.median(sum(window) - step * len(window) for window in windows), 3),
        }
    return found
