"""Recorder of `benchmark.py counts`: Python imports it at the start of every process, as its folder is in PYTHONPATH.

Each process writes two files to COUNTS_FOLDER: PID.started when it starts, and PID.json when it ends, with the imported
modules and the numbers of files opened for writing below COUNTS_ROOT, programs started other than Python, collective calls,
and batches gathered.
"""

import atexit
import functools
import json
import os
import sys
from typing import Any

from benchmarks.watching import watch

FOLDER, ROOT = os.environ["COUNTS_FOLDER"], os.environ["COUNTS_ROOT"]
COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter",
)  # fmt: skip
"""The functions of torch.distributed that communicate tensors. The functions that communicate Python objects call them."""
counts = {"collectives": 0, "batches": 0, "programs": 0}
written: set[str] = set()


def counted(function: Any, kind: str) -> Any:
    """The function, with each call counted in `counts[kind]`."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        counts[kind] += 1
        return function(*arguments, **options)

    return call


def count_collectives(module: Any) -> None:
    for name in COLLECTIVES:
        setattr(module, name, counted(getattr(module, name), "collectives"))


def count_batches(module: Any) -> None:
    module.PanelRows.gather = counted(module.PanelRows.gather, "batches")


WATCHED = {
    "torch.distributed.distributed_c10d": count_collectives,
    "ensemble.recipes.hot_sellers.training": count_batches,
}
"""By the name of a module, the function that replaces some of its functions as soon as it is imported."""


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Record files opened for writing and started programs, from the audit events of Python."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path.startswith(ROOT):
            written.add(path)
    elif event == "subprocess.Popen" and "python" not in os.path.basename(str(arguments[1][0])):
        counts["programs"] += 1


def start() -> None:
    with open(os.path.join(FOLDER, f"{os.getpid()}.started"), "w", encoding="utf-8"):
        pass


def finish() -> None:
    record = {**counts, "modules": sorted(sys.modules), "files": len(written)}
    with open(os.path.join(FOLDER, f"{os.getpid()}.json"), "w", encoding="utf-8") as stream:
        json.dump(record, stream)


if os.path.isdir(FOLDER):
    start()
    os.register_at_fork(after_in_child=start)
    watch(WATCHED)
    sys.addaudithook(audit)
    atexit.register(finish)
