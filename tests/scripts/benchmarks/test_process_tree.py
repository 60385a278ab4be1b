"""Memory and CPU seconds of a command with all processes that it starts."""

import sys

import psutil
import pytest
from benchmarks.process_tree import watched
from benchmarks.timing import memory_mb


def test_memory_is_of_all_processes_together() -> None:
    """AutoGluon trains in several processes, but the memory of only one would be reported."""
    hold = "import subprocess, sys, time; kept = b'x' * 80_000_000; "
    here = b"x" * 500_000_000  # which a process that it starts also has for a moment
    family = f"{hold} child = subprocess.Popen([sys.executable, '-c', {hold + 'time.sleep(2)'!r}]); child.wait()"
    assert 160 < watched([sys.executable, "-c", family])["peak_mb"] < 400
    assert len(here)


def test_a_megabyte_is_a_million_bytes() -> None:
    """The memory of one process would be 2 % less than that of a process tree, in kilobytes of 1,024 bytes."""
    assert memory_mb("VmSize") == pytest.approx(psutil.Process().memory_info().vms / 1e6, rel=0.005)


def test_cpu_seconds_count_processes_that_nobody_waits_for() -> None:
    """No process waits for the workers of ray: half of the CPU time of AutoGluon would be missing."""
    burn = "import time; began = time.process_time()\nwhile time.process_time() < began + 1: pass\ntime.sleep(9)"
    family = (
        "import subprocess, sys, time; from pathlib import Path\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn!r}])\n"
        "used = lambda: sum(map(int, Path(f'/proc/{child.pid}/stat').read_text().split()[13:15]))\n"
        "while used() < 100: time.sleep(0.1)\n"
        "time.sleep(0.6); child.kill(); import os; os._exit(0)"
    )
    assert watched([sys.executable, "-c", family])["cpu_s"] >= 0.95
