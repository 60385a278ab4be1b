"""Processes that do their work in turn, A B A B … A: what one costs beside the other, in CPU seconds and memory.

While one works the other waits, so that a drift of the machine hits both; each has one thread, and its memory to itself.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.runs import by_neighbours
from benchmarks.timing import SCRIPTS, reason
from ensemble.errors import UserError

PAGE_MB = 0.004
"""The least memory that a process can be given."""


Work = Callable[[], dict[str, float]]
"""Asks a worker for a piece of work: `cpu_s`, and `peak_mb`, its most memory so far beside what it had before the first."""


@contextmanager
def worker(words: Sequence[str], folder: Path, modules: str = "") -> Iterator[Work]:
    """A command of benchmark.py that works once for each line it is sent, and answers with a line of JSON.

    words : the command. folder : where it is started. modules : a folder that Python looks into before its own. To ask one
    that has ended raises `UserError`.
    """
    path = os.pathsep.join(part for part in (modules, os.environ.get("PYTHONPATH", "")) if part)
    alone = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "benchmark.py"), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True,
            cwd=folder, env={**os.environ, **alone},
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        to_it, from_it = process.stdin, process.stdout

        def work() -> dict[str, float]:
            with suppress(BrokenPipeError):  # then there is no answer
                to_it.write("\n")
                to_it.flush()
            if answer := from_it.readline():
                return json.loads(answer)
            code = process.wait()
            said.seek(0)
            why = reason(said.read().decode(errors="replace"))
            raise UserError(f"benchmark.py {' '.join(words)} ended with {code}: {why}")

        try:
            yield work
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)


def alone(work: Work, rounds: int) -> dict[str, float]:
    """The median CPU seconds of a piece of work, after one that does not count, and the peak memory in MB."""
    work()
    runs = [work() for _ in range(rounds)]
    return {"cpu_s": _digits(statistics.median(run["cpu_s"] for run in runs)), "peak_mb": round(runs[-1]["peak_mb"], 1)}


def compared(reference: Work, ours: Work, rounds: int, warm_up: bool) -> dict[str, Any]:
    """CPU seconds and peak memory of both, and how many times faster and leaner ours is than its neighbours in time.

    noise : how far the reference was from its own neighbours, at most, as a part of them.
    """
    if warm_up:
        reference()
        ours()
    runs = [(reference, ours)[number % 2]() for number in range(2 * rounds + 1)]
    theirs, mine = runs[::2], runs[1::2]
    ratios, noise = by_neighbours([run["cpu_s"] for run in theirs], [run["cpu_s"] for run in mine])
    return {
        "reference": {
            "cpu_s": _digits(statistics.median(run["cpu_s"] for run in theirs)),
            "peak_mb": round(theirs[-1]["peak_mb"], 1),
        },
        "ours": {
            "cpu_s": _digits(statistics.median(run["cpu_s"] for run in mine)),
            "peak_mb": round(mine[-1]["peak_mb"], 1),
        },
        "times_faster": {"median": round(1 / statistics.median(ratios), 2), "least": round(1 / max(ratios), 2)},
        "times_leaner": round(theirs[-1]["peak_mb"] / max(mine[-1]["peak_mb"], PAGE_MB), 2),
        "noise": round(max(abs(ratio - 1) for ratio in noise), 3),
    }


def _digits(seconds: float) -> float:
    return float(f"{seconds:.4g}")
