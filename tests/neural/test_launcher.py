"""The launcher of the project's own launches: an error of the user ends without a traceback of the launcher."""

import logging
import sys
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from accelerate.commands import launch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ensemble.errors import USER_ERROR
from ensemble.neural import launcher


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
    (tmp_path / "hardware.yaml").write_text("distributed_type: 'NO'\nnum_processes: 1\nuse_cpu: true\n")
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
