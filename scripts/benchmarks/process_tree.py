"""Seconds, CPU seconds and peak memory of a command together with all processes that it starts."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.timing import ALL_CORES, meanwhile, timed

PAUSE_S = 0.2
"""Seconds between two samples."""


def proportional_mb(process: psutil.Process) -> float:
    """The proportional set size in MB: each shared page is divided among the processes that share it.

    It is 0 for a process that has just been forked, and private memory where the system reports no proportional set size.
    """
    try:
        if process.cmdline() == psutil.Process().cmdline():  # still a copy of this process
            return 0.0
        memory = process.memory_full_info()
    except psutil.Error:  # it has just ended
        return 0.0
    return getattr(memory, "pss", memory.uss) / 1e6


def private_mb(process: psutil.Process) -> float:
    """Memory of a process in MB without shared pages and pages of mapped files, which the kernel can drop."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0.0
    return (memory.rss - memory.shared) / 1e6


def watched(
    command: Sequence[str | Path], memory_mb: Callable[[psutil.Process], float] = proportional_mb
) -> dict[str, float]:
    """Run a command on all cores, and return the same costs as `timed`, but for the whole process tree, which is sampled.

    peak_mb : the largest sum of `memory_mb` over all processes
    cpu_s : also of processes that no other process waits for, such as the workers of ray, up to their last sample
    """
    peak = [0.0]
    cpu_s: dict[psutil.Process, float] = {}
    already_running = set(psutil.Process().children(recursive=True))

    def sample() -> None:
        processes = set(psutil.Process().children(recursive=True)) - already_running
        peak[0] = max(peak[0], sum(map(memory_mb, processes)))
        for process in processes:
            with suppress(psutil.Error):  # it has just ended
                times = process.cpu_times()
                cpu_s[process] = times.user + times.system

    with meanwhile(sample, PAUSE_S):
        usage = timed([*ALL_CORES, *command])
    # The peak of `timed` includes pages of this process; its CPU seconds lack processes that no other process waited for
    return {**usage, "cpu_s": round(max(usage["cpu_s"], sum(cpu_s.values())), 3), "peak_mb": round(peak[0], 1)}
