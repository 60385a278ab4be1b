"""The scripts as a user starts them, one thread each; and the same in forked children of one process, which is faster."""

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import launcher
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
    """Run a script in a process of its own, and return what it printed."""
    done = started(script, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


TREES = ("pandas", "pyarrow.parquet", "scipy.sparse", "sklearn.base")
NETWORKS = ("torch", "torch._dynamo", "accelerate")
"""The libraries that scripts of tree members and of networks import, in addition to those of every script."""
RANKS = (*NETWORKS, "torch.distributed.run", "torch.distributed.fsdp", "accelerate.commands.launch")
"""The libraries that `accelerate launch` and its ranks import."""


@functools.cache
def _server(libraries: tuple[str, ...]) -> ScriptServer:
    """The server that has imported `libraries`, shared by all tests of this process."""
    without_gpus = {"CUDA_VISIBLE_DEVICES": ""} if libraries == RANKS else {}
    running = ScriptServer(ENVIRONMENT | without_gpus, *libraries)
    atexit.register(running.stop)
    return running


def forked(
    script: str, *words: str, folder: Path | None = None, libraries: tuple[str, ...] = TREES
) -> "subprocess.CompletedProcess[str]":
    """A script in a forked child of a process that has imported `libraries`, by default in this working directory."""
    return _server(libraries).run(script, *words, folder=folder or Path.cwd())


def fork(script: str, *words: str, libraries: tuple[str, ...] = TREES) -> str:
    """Run a script as `forked` does, and return what it printed."""
    done = forked(script, *words, libraries=libraries)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launched(*words: Any, folder: Path, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of `accelerate launch` on CPUs; forked_launch.py says what is forked."""
    # A forked rank cannot read use_cpu in the YAML, since it finds that in the command line of its parent process
    on_cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    variables = json.dumps(launcher.environment(**on_cpu, **environment))
    done = forked("../tests/helpers/forked_launch", variables, *map(str, words), folder=folder, libraries=RANKS)
    return done.returncode, done.stderr
