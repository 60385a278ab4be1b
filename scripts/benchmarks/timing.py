"""How a whole command is measured, and what every figure is told with.

A command runs as a process, with the operating system's own account of its time and peak memory. What is compared is run
in turn, A B A B, and the ratio is taken pair by pair, so that a noisy neighbour hits both.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ensemble.errors import UserError
from ensemble.neural.environment import machine

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
AS_FOUND: list[str | Path] = ["env", "-u", "OMP_NUM_THREADS", "-u", "OMP_WAIT_POLICY"]
"""The words before a command that is to find an environment which says nothing of threads."""


def environment() -> dict[str, Any]:
    """Hardware, versions, date and command: what a figure is worthless without."""
    return {**machine(), "command": " ".join(["python", "scripts/benchmark.py", *sys.argv[1:]])}


def timed(command: Sequence[str | Path], quiet: bool = True) -> dict[str, float]:
    """Run a command: wall and CPU seconds, and the peak memory in MB of its largest process. `UserError` when it fails."""
    output = subprocess.DEVNULL if quiet else None
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=output, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    with process.stderr as stream:
        try:
            errors = stream.read().decode(errors="replace")
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C and SIGTERM reach this process only
            os.killpg(process.pid, signal.SIGTERM)
            stream.read()  # until the last of its processes is gone
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"{' '.join(map(str, command))} ended with {process.returncode}: {reason(errors)}")
    return {
        "wall_s": round(time.perf_counter() - began, 3),
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        "peak_mb": round(used.ru_maxrss / 1e3, 1),
    }


def reason(errors: str) -> str:
    """Why a process failed, by what it wrote to its standard error."""
    said = re.findall(r"^(?:error|failed): (.+)$", errors, flags=re.MULTILINE)  # a launcher's traceback may follow
    return said[-1] if said else errors.strip()[-500:]
