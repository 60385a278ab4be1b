"""Training stops while a checkpoint is written: accelerate#3746.

`seconds` are the CPU seconds of the main thread that a checkpoint adds to the time from the end of the step after which it
is saved to the end of the next step. Other load hardly changes them; the JSON also has wall-clock seconds. Accelerate's
`save_state` writes the checkpoint before it returns. This project copies the state and writes the copy in the background. It
also computes checksums and syncs the files, which Accelerate does not. `synchronous` in the results of `benchmark.py
checkpoints` gives the time of checkpoints that this project writes before training continues.
"""

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.pains import rows, sides
from benchmarks.runs import launcher
from benchmarks.timing import timed

THREADS = ("accelerate#3746", "pytorch/torchtune#2006")
SAVE_EVERY, LAST_STEP = 6, 24
"""Steps between checkpoints, and the last step. The steps before the first checkpoint give the duration of a usual step."""
SAVE_AT = tuple(range(SAVE_EVERY, LAST_STEP, SAVE_EVERY))
WARM_UP_STEPS = 2
NUM_ROWS = LAST_STEP * 16
WIDTHS = {"1 M": 1_000, "10 M": 3_162, "100 M": 10_000}
"""The width of the model's additional square matrix (`extra_width`) for each number of parameters."""


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    sizes = {size: _one_size(folder, WIDTHS[size]) for size in (("1 M",) if short else ("10 M", "100 M"))}
    stops = {side: list(sizes.values())[-1][side]["thread"]["stop_s"] for side in ("plain", "here")}
    plain, here = (
        sides.Side(rows=NUM_ROWS, seconds=stop_s, note=f"{stop_s / 0.6:.2f} % of the time at one checkpoint a minute")
        for stop_s in stops.values()
    )
    return {"plain": plain}, here, {"sizes": sizes, "reproduces": stops["plain"] > stops["here"]}


def _one_size(folder: Path, width: int) -> dict[str, Any]:
    """The costs of a checkpoint of plain Accelerate and of this project, for a model with a matrix of this width."""
    start, data = launcher(1), sides.prepared(folder, NUM_ROWS)
    plain_settings = {"extra_width": width, "num_rows": NUM_ROWS, "batch_size": 16, "epochs": 1, "save_at": SAVE_AT}
    train_settings = {"recipe__extra_width": width, "max_epochs": 1, "checkpoint_steps": SAVE_EVERY, "keep_last": 1}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out, run = Path(scratch) / "plain", Path(scratch) / "here"
        plain = timed(sides.plain_command("checkpoint_stall", out, start, **plain_settings))
        here = timed(sides.train_command(data, run, start, **train_settings))
        return {"plain": measured(out, plain["peak_mb"]), "here": measured(sides.record_of(run), here["peak_mb"])}


def measured(record: Path, peak_mb: float) -> dict[str, Any]:
    """The costs in the record of a training, with its peak memory `peak_mb`.

    step_s : duration of a step without a checkpoint. stop_s : what a checkpoint adds to the first step after it. longer_s :
    what a checkpoint adds to all steps up to the next one. All are medians, in CPU seconds of the main thread (`thread`) and
    in wall-clock seconds (`wall`).
    """
    lines = rows.record(record)
    assert len(lines) == LAST_STEP
    figures: dict[str, Any] = {"peak_mb": peak_mb}
    for name in ("thread", "wall"):
        times = [line[f"{name}_s"] for line in lines]
        intervals = [after - before for before, after in itertools.pairwise(times)]  # interval n, from 0, follows step n + 1
        step = statistics.median(intervals[WARM_UP_STEPS : SAVE_EVERY - 1])
        windows = [intervals[save - 1 : save - 1 + SAVE_EVERY - (save == SAVE_AT[-1])] for save in SAVE_AT]
        figures[name] = {
            "step_s": round(step, 4),
            "stop_s": round(statistics.median(window[0] - step for window in windows), 3),
            "longer_s": round(statistics.median(sum(window) - step * len(window) for window in windows), 3),
        }
    return figures
