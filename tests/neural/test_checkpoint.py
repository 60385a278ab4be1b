"""Checkpoints are written in the background, and errors there are raised in the training."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ensemble.errors import UserError
from ensemble.neural import checkpoint
from ensemble.neural.checkpoint import BackgroundWriter, CpuCopies


def test_training_continues_while_a_checkpoint_is_written() -> None:
    """Each checkpoint would stop all ranks for as long as the disk takes."""
    may_end, order = threading.Event(), []
    with BackgroundWriter() as writer:
        writer.submit(lambda: (may_end.wait(30), order.append("first"))[0])
        writer.submit(lambda: order.append("second"))
        writer.check()
        assert order == []
        may_end.set()
    assert order == ["first", "second"]


def test_the_queue_of_snapshots_is_limited() -> None:
    """On a slow disk, copies of the whole training state would fill the memory."""
    may_end, submitted = threading.Event(), []

    def submit() -> None:
        for number in range(BackgroundWriter.MAX_PENDING + 1):
            writer.submit(lambda: may_end.wait(30) and None)
            submitted.append(number)

    with BackgroundWriter() as writer:
        thread = threading.Thread(target=submit)
        thread.start()
        time.sleep(0.2)
        assert len(submitted) == BackgroundWriter.MAX_PENDING
        may_end.set()
        thread.join()


@pytest.mark.parametrize(
    "check", [BackgroundWriter.check, BackgroundWriter.wait, lambda writer: writer.submit(lambda: None)]
)
def test_an_error_in_the_background_is_raised(check: Callable[[BackgroundWriter], None]) -> None:
    """A run would continue for days without a checkpoint."""

    def fail() -> None:
        raise UserError("no room")

    with BackgroundWriter() as writer:
        writer.submit(fail)
        time.sleep(0.1)
        with pytest.raises(UserError, match="no room"):
            check(writer)


def test_an_error_of_the_last_write_is_raised() -> None:
    """A run would end as done without its last weights on disk."""

    def fail() -> None:
        raise UserError("no room")

    writer = BackgroundWriter()
    writer.submit(fail)
    with pytest.raises(UserError, match="no room"), writer:
        pass


def test_copies_use_the_memory_of_written_ones_again() -> None:
    """Each checkpoint would wait for new memory, or a checkpoint that is still being written would be overwritten."""
    copies, weight = CpuCopies(), torch.arange(6.0).reshape(2, 3)
    first = copies.copy({"weight": weight})["weight"]
    second = copies.copy({"weight": weight + 1})["weight"]  # while the first is being written
    assert torch.equal(first, weight)
    assert torch.equal(second, weight + 1)
    copies.release({"weight": first})
    third = copies.copy({"weight": weight.flip(1)})["weight"]  # not contiguous
    assert third.data_ptr() == first.data_ptr()
    assert torch.equal(third, weight.flip(1))
    copies.release({"weight": second})
    other = copies.copy({"weight": torch.zeros(4)})["weight"]  # a carried state with another number of rows
    assert torch.equal(other, torch.zeros(4))


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_other_users_may_read_weights_as_all_files(mask: int, mode: int, tmp_path: Path) -> None:
    """A colleague, or the account of a service, could use the trees of an ensemble and not its networks."""
    before = os.umask(mask)
    try:
        checkpoint.write(tmp_path / "best", {"w": torch.ones(2)}, {}, {"m": torch.ones(2)})
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "best").iterdir()}
    assert modes == dict.fromkeys(checkpoint.FILE_NAMES, mode)
