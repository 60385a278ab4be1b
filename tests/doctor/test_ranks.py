"""Checks by PyTorch in processes of their own."""

import os
import sys

import psutil
import pytest
from processes import command_of

from ensemble.doctor import network, ranks


def test_an_all_reduce_without_its_peer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that hangs would stop the doctor, or continue after its end."""
    monkeypatch.setattr(ranks, "ALL_REDUCE_LIMIT_S", 2)
    answer, failure = ranks.run_all_reduce("gloo", [(0, 0)], 2, "127.0.0.1", network.free_port(), dict(os.environ))
    assert (answer, failure) == (None, "no answer within the time limit")
    assert not [child for child in psutil.Process().children() if "all-reduce" in command_of(child)]


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        ("os.write(2, b'caf\\xe9 failed'); os._exit(1)", "caf\ufffd failed"),
        ("os._exit(3)", "the process ended with exit code 3"),
        (
            "os.write(2, b'a warning'); os.kill(os.getpid(), 15)",
            "the process was ended by SIGTERM; its last line: a warning",
        ),
    ],
)
def test_a_process_that_fails_does_not_end_the_doctor(monkeypatch: pytest.MonkeyPatch, end: str, failure: str) -> None:
    """A message that is not UTF-8 would end it with a traceback, or a warning would be reported as the cause of a crash."""
    monkeypatch.setattr(ranks, "COMMAND", [sys.executable, "-c", f"import os; {end}"])
    assert ranks.run_torch_info() == {"failed": failure}
