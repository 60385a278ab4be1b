"""The launcher of the project's own launches: an error of the user ends without a traceback of the launcher."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from accelerate.commands import launch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ensemble.errors import INTERRUPTED, USER_ERROR
from ensemble.neural import launcher

ONE_PROCESS = "distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n"
TRAINING = """
import sys, time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(75)
"""


@pytest.mark.parametrize(("exit_code", "expected"), [(USER_ERROR, SystemExit), (1, ChildFailedError)])
def test_only_other_failures_end_in_a_traceback(
    exit_code: int, expected: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the user would end with a traceback of the launcher, or a crash without one."""

    def fail(args: Any) -> None:
        failure = ProcessFailure(local_rank=0, pid=99997, exitcode=exit_code, error_file="none")
        raise ChildFailedError("train.py", {0: failure})

    monkeypatch.setattr(launch, "launch_command", fail)
    monkeypatch.setattr(sys, "argv", ["launcher", "train.py"])
    monkeypatch.setattr(logging, "disable", lambda level: None)
    with pytest.raises(expected) as error:
        launcher.main()
    assert exit_code != USER_ERROR or error.value.code == USER_ERROR


@pytest.mark.parametrize("quiet", [["--quiet"], []], ids=["quiet", "not quiet"])
@pytest.mark.parametrize("exit_code", [USER_ERROR, 1])
def test_a_single_process_that_fails(
    exit_code: int, quiet: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in the command of a training on one rank would end with 1, as if the training had failed."""
    (tmp_path / "hardware.yaml").write_text(ONE_PROCESS)
    (tmp_path / "train.py").write_text(f"import sys; sys.exit({exit_code})")
    words = [*quiet, "--config_file", str(tmp_path / "hardware.yaml"), str(tmp_path / "train.py")]
    monkeypatch.setattr(sys, "argv", ["launcher", *words])
    monkeypatch.setattr(logging, "disable", lambda level: None)
    with pytest.raises((SystemExit, CalledProcessError)) as error:
        launcher.main()
    if exit_code == USER_ERROR or quiet:
        assert isinstance(error.value, SystemExit)
        assert error.value.code == exit_code
    else:
        assert isinstance(error.value, CalledProcessError)


def test_ctrl_c_ends_a_single_process_without_a_traceback(tmp_path: Path) -> None:
    """A training that was stopped and has saved its state would seem to have crashed."""
    (tmp_path / "hardware.yaml").write_text(ONE_PROCESS)
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "ensemble.neural.launcher", "--config_file", "hardware.yaml", "train.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background of a shell ignores it
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in errors
