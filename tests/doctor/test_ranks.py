"""Checks by PyTorch in processes of their own."""

import os

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
