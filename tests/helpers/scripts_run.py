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
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


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


TREES = ("pandas", "pyarrow.parquet", "scipy.sparse", "sklearn.base")
NETWORKS = ("torch", "torch._dynamo", "accelerate")
"""What scripts of tree members and of networks import, beside what every script does."""


@functools.cache
def _server(libraries: tuple[str, ...]) -> ScriptServer:
    """One for all tests of this process."""
    running = ScriptServer(ENVIRONMENT, *libraries)
    atexit.register(running.stop)
    return running


def forked(
    script: str, *words: str, folder: Path | None = None, libraries: tuple[str, ...] = TREES
) -> "subprocess.CompletedProcess[str]":
    """A script in a forked child of a process that has imported `libraries`, by default in this working directory."""
    return _server(libraries).run(script, *words, folder=folder or Path.cwd())


def fork(script: str, *words: str, libraries: tuple[str, ...] = TREES) -> str:
    """What such a script printed."""
    done = forked(script, *words, libraries=libraries)
    assert done.returncode == 0, done.stderr
    return done.stdout
