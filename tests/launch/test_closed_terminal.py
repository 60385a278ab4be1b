"""A closed terminal, such as a lost connection: trainings save their state, and nohup keeps them running."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import launcher
import psutil
import pytest

TIMEOUT_S = 120
FORKED = [sys.executable, "-m", "ensemble.commands.train_on_cpu", "--num_processes", "2"]
ENDLESS = "max_epochs=4000 batch_size=64 patience=1000000 recipe.width=8 recipe.num_layers=1 recipe.num_reviews=0".split()
TREES = [sys.executable, str(launcher.ROOT / "scripts/train_trees.py"), "num_rounds=20000", "early_stopping_rounds=20000"]


@contextlib.contextmanager
def in_a_terminal(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process whose input, output and errors are a terminal that it controls, and the other side of that terminal."""

    def prepare() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it, and a process inherits this

    other_side, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 100))  # a terminal without columns shows no progress
    process = subprocess.Popen(
        command, cwd=folder, env=launcher.environment(), stdin=terminal, stdout=terminal, stderr=terminal,
        start_new_session=True, preexec_fn=prepare,
    )  # fmt: skip
    os.close(terminal)
    os.set_blocking(other_side, False)
    try:
        yield process, other_side
    finally:
        launcher.kill(process)


def wait_until_printed(text: bytes, other_side: int) -> None:
    """Read what the process prints until `text` is in it."""
    printed, deadline = b"", time.monotonic() + TIMEOUT_S
    while text not in printed:
        assert time.monotonic() < deadline, printed.decode()
        with contextlib.suppress(BlockingIOError):
            printed += os.read(other_side, 1 << 16)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ([*launcher.ACCELERATE, *launcher.SINGLE_CPU, launcher.TRAIN, *ENDLESS], "out"),
        ([*FORKED, *ENDLESS], "out"),
        ([*TREES, "library=xgboost"], "out.checkpoint"),
    ],
    ids=["accelerate launch", "forked ranks", "trees"],
)
def test_a_training_saves_when_its_terminal_is_closed(
    command: list[str], state: str, prepared: Path, tmp_path: Path
) -> None:
    """A lost connection would cost everything since the last checkpoint."""
    with in_a_terminal([*command, f"data={prepared}", "out=out"], tmp_path) as (process, other_side):
        wait_until_printed(b" trees/s" if state == "out.checkpoint" else b"step ", other_side)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        os.close(other_side)
        _, alive = psutil.wait_procs(family, TIMEOUT_S)
    assert not alive
    assert (tmp_path / state / "status").read_text() == "preempted\n"


def test_nohup_keeps_a_training_running(prepared: Path, tmp_path: Path) -> None:
    """nohup exists for this: the training goes on after the user has left."""
    command = [sys.executable, launcher.TRAIN, *ENDLESS, f"data={prepared}", "out=out"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; a process inherits it
    try:
        with launcher.started(command, tmp_path) as process:
            metrics = tmp_path / "out/metrics.jsonl"
            deadline = time.monotonic() + TIMEOUT_S
            while not metrics.exists() or not metrics.read_text():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGHUP)
            num_lines = metrics.read_text().count("\n")
            while metrics.read_text().count("\n") < num_lines + 3:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)
