"""Steps of the training loop and of the loops of other libraries on several ranks, in the same processes (measure.py)."""

import itertools
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import overhead
from benchmarks.peers.run import accelerate_loop, fabric_loop
from benchmarks.runs import measure_alternating

if TYPE_CHECKING:
    from accelerate import Accelerator

LOOPS = {"plain": overhead.plain, "fabric": fabric_loop, "accelerate": accelerate_loop}


def measure_rank(accelerator: "Accelerator", rounds: int, packages: str) -> dict[str, Any] | None:
    """Run blocks of each other loop and of ours alternately; `overhead.compared` for each model and other loop."""
    sys.path.append(packages)
    figures = {}
    with tempfile.TemporaryDirectory() as out:
        runs = (Path(out) / str(number) for number in itertools.count())
        for model, (name, loop) in itertools.product(overhead.MODELS, LOOPS.items()):
            recipe = overhead.Regression(model)
            other, ours = (partial(overhead.block, run, recipe, runs, accelerator) for run in (loop, overhead.ours))
            figures[f"{model}_{name}"] = overhead.compared(*measure_alternating(other, ours, rounds), "other")
        accelerator.wait_for_everyone()
    return figures if accelerator.is_main_process else None
