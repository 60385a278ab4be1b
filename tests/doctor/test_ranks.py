"""Checks by PyTorch in processes of their own."""

import os
import sys

import psutil
import pytest
import torch
from processes import command_of

from ensemble.doctor import network, ranks
from ensemble.errors import Failure


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


def test_a_wrong_sum_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONOPTIMIZE=1, in which assertions are left out, a GPU that computes wrong sums would pass."""
    for name, result in {"init_process_group": None, "get_world_size": 2, "get_rank": 0, "all_reduce": None}.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    with pytest.raises(Failure, match="the sum over the ranks is wrong"):
        ranks.all_reduce("gloo", 0)
