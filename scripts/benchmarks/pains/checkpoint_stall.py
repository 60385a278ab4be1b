"""Training stands still while a checkpoint is written: accelerate#3746.

Seconds are wall seconds by which a checkpoint makes the run longer: the step that contains it, and what it slows the steps
after it.
Accelerate's `save_state` writes before it returns; this project copies and writes in the background, and syncs the files to
the disk, which Accelerate does not.
"""

import itertools
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

    plain.train(settings)


def reproduce(folder: Path, short: bool) -> dict[str, Any]:
    sizes = {}
    for size in ("1 M",) if short else ("10 M", "100 M"):
        width = WIDTHS[size]
        out = folder / f"plain-{width}"
        out.mkdir()
        words = [
            f"extra_width={width}",
            f"num_rows={LAST_STEP * 16}",
            "batch_size=16",
            "epochs=1",
            f"save_at={list(SAVE_AT)}",
        ]
        used = timed(sides.plain_command("checkpoint_stall", out, *words, start=sides.launcher(1)))
        plain = measured(out, SAVE_AT, used["peak_mb"])
        data, run = sides.prepared(folder, LAST_STEP * 16), folder / f"here-{width}"
        settings: dict[str, Any] = {"recipe__extra_width": width, "max_epochs": 1, "checkpoint_steps": 15, "keep_last": 1}
        used = timed(sides.train_command(data, run, sides.launcher(1), **settings))
        sizes[size] = {"plain": plain, "here": measured(sides.record_of(run), (15, 30, 45), used["peak_mb"])}
    largest = list(sizes.values())[-1]
    side = {
        name: sides.Side(rows=LAST_STEP * 16, seconds=of["longer_s"], note=f"the step with it {of['stop_s']:.2f} s longer")
        for name, of in largest.items()
    }
    return {**side, "more": {"sizes": sizes, "reproduces": largest["plain"]["stop_s"] > 2 * largest["plain"]["step_s"]}}


def measured(record: Path, saves: tuple[int, ...], peak_mb: float) -> dict[str, float]:
    """Wall seconds of a step, of what a checkpoint adds to the step with it, and to the run; and the peak memory."""
    times = [line["wall_s"] for line in rows.record(record)]
    assert len(times) == LAST_STEP
    intervals = [after - before for before, after in itertools.pairwise(times)]  # number n lies after step n + 1
    window = saves[1] - saves[0]
    step = statistics.median(intervals[WARM_UP_STEPS : saves[0] - 1])
    stops = [intervals[save - 1] - step for save in saves]
    longer = [sum(intervals[save - 1 : save - 1 + min(window, LAST_STEP - save)]) for save in saves]
    longer = [total - step * min(window, LAST_STEP - save) for total, save in zip(longer, saves, strict=True)]
    return {
        "step_s": round(step, 4),
        "stop_s": round(statistics.median(stops), 3),
        "longer_s": round(statistics.median(longer), 3),
        "peak_mb": peak_mb,
    }
