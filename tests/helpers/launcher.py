"""The real launcher, for tests: in processes of their own, without Accelerate's variables; none outlives its test."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
WITH_HELPERS = f"{ROOT}:{ROOT / 'tests' / 'helpers'}"
"""PYTHONPATH of a worker that imports helpers."""
TRAIN, PREDICT = str(ROOT / "scripts/train.py"), str(ROOT / "scripts/predict.py")
ACCELERATE = [str(Path(sys.executable).with_name("accelerate-launch"))]
"""The same as `accelerate launch`, which loads all its other commands first."""
SINGLE_CPU, MULTI_CPU, MULTI_CPU_SHARDED, MULTI_GPU = (
    ["--config_file", str(ROOT / f"accelerate_configs/{name}.yaml")]
    for name in ("single_cpu", "multi_cpu", "multi_cpu_sharded", "multi_gpu")
)
TIMEOUT_S = 240
KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
"""The environment variables that a process inherits."""


def environment(**more: str) -> dict[str, str]:
    """The environment of a process: the inherited variables `KEPT`, one thread, and `more`."""
    inherited = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**inherited, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **more}


@contextmanager
def started(
    command: Sequence[Any], folder: Path, errors: Path | None = None, **more: str
) -> Iterator[subprocess.Popen[str]]:
    """A process in `folder`. At the end of the context it is killed with all its descendants.

    Its output and its errors are in pipes. If `errors` is given, its errors are in this file, and its output is discarded.
    """
    with open(errors or os.devnull, "w") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=environment(**more),
            stdout=subprocess.DEVNULL if errors else subprocess.PIPE,
            stderr=file if errors else subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process and all its descendants; the launcher gives each rank a session of its own."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.communicate()


def run(command: Sequence[Any], folder: Path, **more: str) -> tuple[int, str]:
    """Exit code and standard error of a process in `folder`."""
    with started(command, folder, **more) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@contextmanager
def machines(
    yaml: str, num_machines: int, words: Sequence[Any], folder: Path, **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """A launcher with one rank for each of several machines, all simulated here. words : more options, and the script.

    On GPUs all ranks use the first GPU of this machine. NCCL refuses that for ranks of one host, so NCCL_HOSTID gives each
    launcher the name of another one, and the ranks communicate through sockets. The errors are in folder/errors-NUMBER.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = ["--config_file", ROOT / f"accelerate_configs/{yaml}.yaml"]
    network = ["--main_process_ip", "127.0.0.1", "--main_process_port", port, "--same_network"]
    interface = {f"{library}_SOCKET_IFNAME": "lo" for library in ("NCCL", "GLOO")}
    with ExitStack() as stack:
        launchers = []
        for number in range(num_machines):
            size = ["--num_machines", num_machines, "--num_processes", num_machines, "--machine_rank", number]
            errors = folder / f"errors-{number}"
            host = {"NCCL_HOSTID": f"machine-{number}", **interface}
            command = [*ACCELERATE, *file, *size, *network, *words]
            launchers.append(stack.enter_context(started(command, folder, errors, **host, **more)))
        yield launchers


def run_machines(yaml: str, num_machines: int, words: Sequence[Any], folder: Path, **more: str) -> str:
    """The errors of `machines`, all of which must succeed."""
    with machines(yaml, num_machines, words, folder, **more) as launchers:
        codes = [process.wait(TIMEOUT_S) for process in launchers]
    errors = "".join((folder / f"errors-{number}").read_text() for number in range(num_machines))
    assert codes == [0] * num_machines, errors
    return errors
