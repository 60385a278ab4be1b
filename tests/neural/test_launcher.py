"""The launcher of the project's own launches: an error of the user ends without a traceback of the launcher."""

import logging

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

    def fail() -> None:
        failure = ProcessFailure(local_rank=0, pid=99997, exitcode=exit_code, error_file="none")
        raise ChildFailedError("train.py", {0: failure})

    monkeypatch.setattr(launch, "main", fail)
    monkeypatch.setattr(logging, "disable", lambda level: None)
    with pytest.raises(expected) as error:
        launcher.main()
    assert exit_code != USER_ERROR or error.value.code == USER_ERROR
