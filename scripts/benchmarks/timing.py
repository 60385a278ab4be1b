"""Measure commands and functions in processes of their own, and describe the environment, which is stored with figures."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ensemble.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
NO_OPENMP_SETTINGS: list[str | Path] = ["env", "-u", "OMP_NUM_THREADS", "-u", "OMP_WAIT_POLICY"]
"""The words before a command that remove OpenMP settings from its environment."""
ALL_CORES: list[str | Path] = ["env", "-u", "OMP_NUM_THREADS", "OMP_WAIT_POLICY=PASSIVE"]
"""The words before a command that let it use all cores; waiting threads do not spin, as in our own commands."""
ONE_THREAD: list[str | Path] = ["env", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE"]
"""The words before a command that run it on one thread."""
SHARE_OF_SAMPLING = 0.05
"""The largest share of the time that is spent on sampling, which takes long for large processes."""


def environment() -> dict[str, Any]:
    """Hardware, versions, date, commit and command, without which a figure is worthless."""
    # Not at the top: it imports PyArrow, which the processes of plain Accelerate in `pains` do not need
    from ensemble.neural.environment import machine

    return {**machine(), "command": " ".join(["python", "scripts/benchmark.py", *sys.argv[1:]])}


def script(name: str, *words: str | Path) -> list[str | Path]:
    """The command of a script of this project."""
    return [sys.executable, SCRIPTS / f"{name}.py", *words]


def call(function: Callable[..., Any], *arguments: Any, out: Path = Path(os.devnull)) -> list[str | Path]:
    """The words after the interpreter or a launcher that call a function, and write its result as JSON unless it is None.

    The arguments must be values that JSON can represent. `out` is the file of the result.
    """
    name = f"{function.__module__}:{function.__name__}"
    return [SCRIPTS / "benchmark.py", "call", name, json.dumps(arguments), out]


def called(function: Callable[..., Any], *arguments: Any, start: Sequence[str | Path] = ()) -> Any:
    """Call a function in a new process on one thread, and return its result.

    start : the words of a launcher, instead of Python on one thread; only one of its ranks may return a result

    The peak memory that the system reports for a new process is at least that of this one, so functions that need much
    memory should be called in this way too.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        timed([*(start or (*ONE_THREAD, sys.executable)), *call(function, *arguments, out=out)])
        return json.loads(out.read_text(encoding="utf-8")) if out.exists() else None


def cpu_seconds(function: Callable[[], object]) -> float:
    """The CPU seconds of this process during a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def memory_mb(name: str = "VmHWM") -> float:
    """Memory of this process in MB: the peak, or another line of /proc/self/status such as VmRSS."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1.024e-3  # KiB


@contextmanager
def meanwhile(sample: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Call a function in a thread after each pause, until the block ends; pauses grow if the function takes long."""
    done = threading.Event()

    def watch() -> None:
        pause = pause_s
        while not done.wait(pause):
            began = time.thread_time()
            sample()
            pause = max(pause_s, (time.thread_time() - began) / SHARE_OF_SAMPLING)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def timed(command: Sequence[str | Path]) -> dict[str, float]:
    """Run a command, and return wall and CPU seconds, and the peak memory in MB of its largest process.

    Raises `UserError` if the command fails.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stderr is not None
    with process.stderr as stream:
        try:
            errors = stream.read().decode(errors="replace")
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # Ctrl-C and SIGTERM reach this process only
            os.killpg(process.pid, signal.SIGTERM)
            stream.read()  # until the last process of the group has ended
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"{' '.join(map(str, command))} ended with {process.returncode}: {reason(errors)}")
    return {
        "wall_s": round(time.perf_counter() - began, 3),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_mb": round(usage.ru_maxrss * 1.024e-3, 1),  # from KiB
    }


def reason(errors: str) -> str:
    """The last error message in the standard error of a process that failed, or the end of the text if it has none."""
    sentences = re.findall(r"^(?:error|failed): (.+)$", errors, flags=re.MULTILINE)  # a launcher's traceback may follow
    return sentences[-1] if sentences else errors.strip()[-500:]
