"""Training stops while a checkpoint is written: accelerate#3746.

`seconds` are the CPU seconds of the main thread that a checkpoint adds to the time from the end of the step after which it
is saved to the end of the next step. Other load hardly changes them. Accelerate's `save_state` writes the checkpoint before
it returns. This project copies the state and writes the copy in the background. It also computes checksums and syncs the
files, which Accelerate does not. `synchronous` in the results of `benchmark.py checkpoints` gives the time of checkpoints
that this project writes before training continues.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pains import rows, sides

ISSUES = ("accelerate#3746", "pytorch/torchtune#2006")
SAVE_EVERY, LAST_STEP = 6, 24
"""Steps between checkpoints, and the last step. The steps before the first checkpoint give the duration of a usual step."""
SAVE_AT = tuple(range(SAVE_EVERY, LAST_STEP, SAVE_EVERY))
WARM_UP_STEPS = 2
NUM_ROWS = LAST_STEP * 16


def reproduce(folder: Path, short: bool) -> sides.Reproduced:
    width = 1_000 if short else 10_000  # of a square matrix, which has 1 or 100 million parameters
    record, data = folder / "plain", sides.prepared(folder, NUM_ROWS)
    settings: dict[str, Any] = {"num_rows": NUM_ROWS, "batch_size": 16, "epochs": 1, "save_at": SAVE_AT}
    plain = sides.plain("checkpoint_stall", record, 1, extra_width=width, **settings)
    settings = {"max_epochs": 1, "checkpoint_steps": SAVE_EVERY, "keep_last": 1}
    here = sides.here(data, folder / "here", ranks=1, recipe__extra_width=width, **settings)
    plain_s, here_s = stop_s(plain), stop_s(here)
    plain_side, here_side = (
        sides.Side(rows=NUM_ROWS, seconds=seconds, note=f"{seconds / 0.6:.2f} % of the time at one checkpoint a minute")
        for seconds in (plain_s, here_s)
    )
    return {"plain": plain_side}, here_side, {"reproduces": plain_s > here_s}


def stop_s(record: Path) -> float:
    """The median CPU seconds of the main thread that a checkpoint adds to the first step after it."""
    times = [line["thread_s"] for line in rows.record(record)]
    assert len(times) == LAST_STEP
    intervals = np.diff(times)  # interval n, from 0, follows step n + 1
    usual = np.median(intervals[WARM_UP_STEPS : SAVE_EVERY - 1])
    return round(float(np.median(intervals[[save - 1 for save in SAVE_AT]]) - usual), 3)
