"""Two processes that work alternately, A B A B … A, to measure CPU seconds and memory of one relative to the other.

While one works the other waits, so that other load on the machine affects both. Each has one thread and its own memory.
"""

import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.runs import columns, measure_alternating, paired_ratios
from benchmarks.timing import call, memory_mb, reason
from ensemble.errors import UserError

PAGE_MB = 0.004096
"""The size of a page of memory in MB, the smallest amount that is compared."""

Work = Callable[[], dict[str, float]]
"""Makes a worker do its work once. Returns `cpu_s`, and `peak_mb`, its peak memory minus that before the first call."""


@contextmanager
def worker(make: Callable[..., Callable[[], object]], *arguments: Any, folder: Path, modules: str = "") -> Iterator[Work]:
    """A process that calls `make`, and then the function that `make` returned, once for each line of its input.

    folder : the working directory of the process
    modules : a folder that Python searches for modules before its own folders
    Calling a worker that has ended raises `UserError`.
    """
    path = os.pathsep.join(part for part in (modules, os.environ.get("PYTHONPATH", "")) if part)
    one_thread = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    command = [sys.executable, *call(answer, make.__module__, make.__name__, arguments)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True, cwd=folder, env={**os.environ, **one_thread},
        ) as process,
    ):  # fmt: skip
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def work() -> dict[str, float]:
            with suppress(BrokenPipeError):  # then there is no answer
                requests.write("\n")
                requests.flush()
            if line := answers.readline():
                return json.loads(line)
            code = process.wait()
            errors.seek(0)
            why = reason(errors.read().decode(errors="replace"))
            raise UserError(f"{make.__name__}{arguments} ended with {code}: {why}")

        try:
            yield work
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(BrokenPipeError):  # of a worker that was killed; `Popen` would raise it instead of the error
                requests.close()


def answer(module: str, make: str, arguments: Sequence[Any]) -> None:
    """The function that runs in the process of `worker`. Work that returns a float has measured its CPU seconds itself."""
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not be read as answers
    work = getattr(importlib.import_module(module), make)(*arguments)
    with suppress(OSError):  # in some sandboxes
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak of the memory
    base_mb = memory_mb("VmRSS")
    for _ in sys.stdin:
        began = time.process_time()
        result = work()
        cpu_s = result if isinstance(result, float) else time.process_time() - began
        print(json.dumps({"cpu_s": cpu_s, "peak_mb": memory_mb() - base_mb}), file=answers, flush=True)


def alone(work: Work, rounds: int) -> dict[str, float]:
    """The median CPU seconds and the peak memory in MB of a worker, after one call as a warm-up."""
    work()
    return _costs(columns([work() for _ in range(rounds)]))


def compared(reference: Work, ours: Work, rounds: int, warm_up: bool) -> dict[str, Any]:
    """CPU seconds and peak memory of both, and how many times as much of each the reference needs as ours.

    The seconds of each call are compared by `PairedRatios`, with its largest noise.
    """
    if warm_up:
        reference()
        ours()
    theirs, our_runs = map(columns, measure_alternating(reference, ours, rounds))
    paired = paired_ratios(theirs["cpu_s"], our_runs["cpu_s"])
    return {
        "reference": _costs(theirs),
        "ours": _costs(our_runs),
        "times_faster": paired.times_faster,
        "times_leaner": round(theirs["peak_mb"][-1] / max(our_runs["peak_mb"][-1], PAGE_MB), 2),
        "noise": paired.largest_noise,
    }


def _costs(runs: dict[str, list[float]]) -> dict[str, float]:
    cpu_s = statistics.median(runs["cpu_s"])
    return {"cpu_s": float(f"{cpu_s:.4g}"), "peak_mb": round(runs["peak_mb"][-1], 1)}
