"""Marks of `benchmark.py startup`: a rank of train.py records when it reached each part, and ends after its first step.

Python imports this at the start of every process, as its folder is in PYTHONPATH. A rank appends lines to
STARTUP_FOLDER/RANK.jsonl: the part that ended, seconds since 1970, and CPU seconds of the process.
"""

import json
import os
import time
from typing import Any

from benchmarks.watching import watch

FOLDER = os.environ["STARTUP_FOLDER"]


def mark(part: str) -> None:
    with open(os.path.join(FOLDER, f"{os.environ.get('RANK', '0')}.jsonl"), "a", encoding="utf-8") as stream:
        print(json.dumps({"part": part, "time_s": time.time(), "cpu_s": time.process_time()}), file=stream)


def marked(module: Any, name: str, before: str, after: str) -> None:
    function = getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if before:
            mark(before)
        result = function(*arguments, **options)
        mark(after)
        if name == "update":
            end()
        return result

    setattr(module, name, call)


def end() -> None:
    """End this rank, once all ranks are here."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)


def of_launch(module: Any) -> None:
    marked(module, "start", "interpreter and settings", "torch, accelerate, rendezvous")


def of_loop(module: Any) -> None:
    marked(module, "set_up", "recipe and data", "model, optimizer, first pass, logs")
    marked(module, "step", "", "first batch, forward and backward pass")
    marked(module, "update", "", "first update")


if os.path.isdir(FOLDER):
    watch({"ensemble.neural.launch": of_launch, "ensemble.neural.loop": of_loop})
