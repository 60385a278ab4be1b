"""The scripts as a user starts them, one thread each; and the same in forked children of one process, which is faster."""

import atexit
import functools
import os
import subprocess
import sys
from pathlib import Path

from script_server import ScriptServer

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def started(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """A script in a process of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / f"scripts/{script}.py"), *words],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        start_new_session=True,
    )


def run(script: str, *words: str) -> str:
    """What a script printed, in a process of its own."""
    done = started(script, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _server() -> ScriptServer:
    """One for all tests of this process, with what the tree libraries import."""
    running = ScriptServer(ENVIRONMENT, "pandas", "pyarrow.parquet", "scipy.sparse", "sklearn.base")
    atexit.register(running.stop)
    return running


def forked(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """A script in a forked child, for scripts that do not load torch."""
    return _server().run(script, *words, folder=Path.cwd())


def fork(script: str, *words: str) -> str:
    """What such a script printed."""
    done = forked(script, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout
