"""Training stops while a checkpoint is written: accelerate#3746.

`seconds` are the CPU seconds of the main thread that a checkpoint adds to its step. They do not depend on other load; the
JSON also has wall seconds. Accelerate's `save_state` writes before it returns. This project copies the state and writes it
in the background; it also computes checksums and syncs the files, which Accelerate does not. `synchronous` is the cost of
the same checkpoint of this project if it is written before training continues.
"""

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides
from benchmarks.timing import timed

THREADS = ("accelerate#3746", "pytorch/torchtune#2006")
SAVE_EVERY, LAST_STEP = 6, 24
"""Steps between checkpoints; the steps before the first one show the duration of a step without."""
SAVE_AT = tuple(range(SAVE_EVERY, LAST_STEP, SAVE_EVERY))
WARM_UP_STEPS = 2
NUM_ROWS = LAST_STEP * 16
WIDTHS = {"1 M": 1_000, "10 M": 3_162, "100 M": 10_000}
"""The width of the square matrix for each number of parameters."""


def rank(settings: Any) -> None:
    """Train, or for the variant `written` copy and write a checkpoint of this project in one thread."""
    import json
    import time

    import torch

    from benchmarks.pains import plain
    from benchmarks.pains.recipe.model import Shares
    from ensemble.neural import checkpoint

    if settings.variant != "written":
        plain.train(settings)
        return
    model = Shares(settings.num_rows, settings.extra_width)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    seconds: dict[str, list[float]] = {"copy_s": [], "write_s": [], "write_wall_s": []}
    for number in range(3):
        began = time.thread_time()
        moments, description = checkpoint.flatten_optimizer(optimizer, "optimizer0")
        copies = [{name: tensor.clone() for name, tensor in state.items()} for state in (model.state_dict(), moments)]
        copied, wall = time.thread_time(), time.perf_counter()
        checkpoint.write(Path(settings.out) / f"step-{number}", copies[0], {"optimizers": [description]}, copies[1])
        seconds["copy_s"].append(copied - began)
        seconds["write_s"].append(time.thread_time() - copied)
        seconds["write_wall_s"].append(time.perf_counter() - wall)
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    Path(settings.out, "written.json").write_text(json.dumps(medians), encoding="utf-8")


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    sizes = {size: _one_size(folder, WIDTHS[size]) for size in (("1 M",) if short else ("10 M", "100 M"))}
    stops = {side: list(sizes.values())[-1][side]["thread"]["stop_s"] for side in ("plain", "here")}
    plain, here = (
        sides.Side(rows=NUM_ROWS, seconds=stop_s, note=f"{stop_s / 0.6:.2f} % of the time at one checkpoint a minute")
        for stop_s in stops.values()
    )
    return {"plain": plain}, here, {"sizes": sizes, "reproduces": stops["plain"] > stops["here"]}


def _one_size(folder: Path, width: int) -> dict[str, Any]:
    """The costs of a checkpoint with plain Accelerate, with this project, and with this project if written at once."""
    from ensemble import folders

    start, words = sides.launcher(1), [f"extra_width={width}", f"num_rows={NUM_ROWS}", "batch_size=16", "epochs=1"]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        usage = timed(sides.plain_command("checkpoint_stall", out, *words, f"save_at={list(SAVE_AT)}", start=start))
        plain = measured(out, usage["peak_mb"])
    data = sides.prepared(folder, NUM_ROWS)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run = Path(name) / "run"
        usage = timed(
            sides.train_command(
                data, run, start, recipe__extra_width=width, max_epochs=1, checkpoint_steps=SAVE_EVERY, keep_last=1
            )
        )
        here = measured(sides.record_of(run), usage["peak_mb"])
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        usage = timed(sides.plain_command("checkpoint_stall", out, *words, "variant=written", start=start))
        synchronous = {**folders.read_json(out / "written.json"), "peak_mb": usage["peak_mb"]}
    return {"plain": plain, "here": here, "synchronous": synchronous}


def measured(record: Path, peak_mb: float) -> dict[str, Any]:
    """`step_s`: a step; `stop_s`: what a checkpoint adds to its step; `longer_s`: what it adds to the run; peak memory.

    In CPU seconds of the main thread (`thread`), and in wall seconds (`wall`).
    """
    lines = rows.record(record)
    assert len(lines) == LAST_STEP
    figures: dict[str, Any] = {"peak_mb": peak_mb}
    for name in ("thread", "wall"):
        times = [line[f"{name}_s"] for line in lines]
        intervals = [after - before for before, after in itertools.pairwise(times)]  # interval n follows step n + 1
        step = statistics.median(intervals[WARM_UP_STEPS : SAVE_EVERY - 1])
        windows = [intervals[save - 1 : save - 1 + SAVE_EVERY - (save == SAVE_AT[-1])] for save in SAVE_AT]
        figures[name] = {
            "step_s": round(step, 4),
            "stop_s": round(statistics.median(window[0] - step for window in windows), 3),
            "longer_s": round(statistics.median(sum(window) - step * len(window) for window in windows), 3),
        }
    return figures
