"""Worker processes of the DataLoader that are killed from outside."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ensemble.errors import UserError
from ensemble.neural.loader import CHECK_INTERVAL_S, Batch, Feed, in_order


class Stuck:
    """Five rows, of which reading the last ends when the file `sign`, which is created when it starts, is deleted."""

    def __init__(self, sign: Path):
        self.sign = sign

    def __len__(self) -> int:
        return 5

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        if 4 in rows:
            self.sign.touch()
            while self.sign.exists():
                time.sleep(0.1)
        return {"row": torch.from_numpy(rows)}


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """A feed whose worker is stuck in the last of its three batches, and whose first batch was used."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where the worker finds the class
    sign = tmp_path / "sign"
    options = {"device": torch.device("cpu"), "num_workers": 1, "prefetch_factor": 2, "timeout_s": 600.0}
    with Feed(Stuck(sign), in_order(5, 2, 1, 0), **options) as batches:
        next(batches)
        while not sign.exists():
            time.sleep(0.05)
        yield batches


def test_a_killed_worker_is_named_at_once(feed: Feed) -> None:
    """A run would wait for timeout_s, ten minutes, for a worker that the kernel killed, and end with a traceback."""
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(
        UserError, match=r"a DataLoader worker .*SIGKILL.*: with num_workers=0 its error is shown; if memory"
    ):
        list(feed)


def test_a_worker_killed_while_its_batch_is_received_is_named(feed: Feed) -> None:
    """The connection is reset before the exit code of the worker is known: the run would end with a traceback."""
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGSTOP)  # it does not answer when its second batch is received
    killing = threading.Timer(1, worker.kill)
    killing.start()
    with pytest.raises(UserError, match=r"a DataLoader worker .*SIGKILL"):
        list(feed)
    killing.join()


def test_a_suspended_job_waits_for_its_workers(feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that Slurm suspended for longer than timeout_s would end at its first batch afterwards."""
    begin, clock = time.perf_counter(), time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: begin + 10_000 * (clock() - begin))  # two hours pass in a second
    ending = threading.Timer(1.2 * CHECK_INTERVAL_S, (tmp_path / "sign").unlink)
    ending.start()
    assert [row for _, batch in feed for row in batch["row"].tolist()] == [2, 3, 4]
    ending.join()
