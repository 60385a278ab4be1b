"""Steps of the training loop and of the loops of other libraries on several ranks, in the same processes (measure.py)."""

import itertools
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import overhead
from benchmarks.peers.run import accelerate_loop, fabric_loop
from benchmarks.runs import measure_alternating, paired_ratios, quartiles

if TYPE_CHECKING:
    from accelerate import Accelerator

LOOPS = {"plain": overhead.plain, "fabric": fabric_loop, "accelerate": accelerate_loop}


def measure_rank(accelerator: "Accelerator", rounds: int, packages: str) -> dict[str, Any] | None:
    """Alternate blocks of each other loop and of ours; milliseconds of a step, and quartiles of our time by the other's."""
    sys.path.append(packages)
    figures = {}
    with tempfile.TemporaryDirectory() as out:
        runs = (Path(out) / str(number) for number in itertools.count())
        for model, (name, loop) in itertools.product(overhead.MODELS, LOOPS.items()):
            recipe = overhead.Regression(model)
            other, ours = (partial(overhead.block, run, recipe, runs, accelerator) for run in (loop, overhead.ours))
            other_ms, ours_ms = measure_alternating(other, ours, rounds)
            pairs = paired_ratios(other_ms, ours_ms)
            figures[f"{model}_{name}"] = {
                "other_ms": round(statistics.median(other_ms), 4),
                "ours_ms": round(statistics.median(ours_ms), 4),
                "ratio": quartiles(pairs.ratios),
                "other_by_other": quartiles(pairs.noise),
            }
        accelerator.wait_for_everyone()
    return figures if accelerator.is_main_process else None
