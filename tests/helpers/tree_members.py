"""Tree members that tests train: their settings, rows and files, and trainings that are killed or run as processes."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher import ROOT

from ensemble import folders
from ensemble.trees import distributed, train
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

SCRIPT = str(ROOT / "scripts/train_trees.py")
TIMEOUT_S = 180
Start = Callable[..., subprocess.Popen[str]]
"""Starts Python with a list of arguments, and environment variables as named arguments."""


def config_of(library: str, data: Path, out: Path | str = "", **settings: Any) -> TreesConfig:
    return TreesConfig(library=library, data=str(data), out=str(out), **{"threads": 1, **settings})  # type: ignore[arg-type]


def words(**settings: Any) -> list[str]:
    """Settings as arguments of the script."""
    return [f"{name}={value}" for name, value in settings.items()]


def rows_of(data: Path, split: str = "train") -> TreeData:
    return TreeData(data, split, folders.read_manifest(data))


def features_of(rows: TreeData) -> np.ndarray:
    """Features (n, F), read by column instead of in batches."""
    return np.stack([rows.column(name) for name in rows.features], axis=1)


def model(out: Path) -> bytes:
    """The model file of a member with one model."""
    (file,) = out.glob("model.*")
    return file.read_bytes()


class Killed(BaseException):
    """Stands for the end of the process."""


def interrupt(config: TreesConfig, number: int = 1, resume: str = "", where: Any = Checkpoints, name: str = "write") -> None:
    """Train until a function was called `number` times, and raise `Killed` there, as if the process had been killed."""
    original, calls = getattr(where, name), itertools.count(1)

    def call(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if next(calls) == number:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, call)
        with pytest.raises(Killed):
            train.train(config, resume)


def saved_trees(out: Path) -> int:
    """The number of trees in the newest checkpoint of the member at `out`; 0 without a checkpoint."""
    return max((int(folder.name.removeprefix("trees-")) for folder in Checkpoints(out, "").all()), default=0)


def wait_for_trees(processes: Sequence[subprocess.Popen[str]], out: Path, num_trees: int) -> None:
    """Wait for a checkpoint with at least `num_trees` trees, which one of the processes writes."""
    deadline = time.monotonic() + TIMEOUT_S
    while saved_trees(out) < num_trees:
        assert all(process.poll() is None for process in processes), ends(processes)
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ends(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each process, after its end."""
    texts = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def run(line: Sequence[Any], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a list of arguments to its end, without the variables of OpenMP and Slurm of this process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, *map(str, line)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextmanager
def starting() -> Iterator[Start]:
    """A function that starts processes, each in a session of its own; they are killed at the end of the context."""
    started: list[subprocess.Popen[str]] = []

    def start(line: Sequence[Any], **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, line)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def start_ranks(start: Start, lines: Sequence[Sequence[Any]], **variables: str) -> list[subprocess.Popen[str]]:
    """Start a line on each rank. variables : environment variables of the last rank that replace the usual ones."""
    shared = {"WORLD_SIZE": str(len(lines)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(distributed.free_port())}
    last = len(lines) - 1
    return [
        start(line, **{**shared, "RANK": str(rank), **(variables if rank == last else {})})
        for rank, line in enumerate(lines)
    ]
