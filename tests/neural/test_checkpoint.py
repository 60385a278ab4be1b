"""Checkpoints are written behind the training's back, and what goes wrong there comes to light."""

import threading
import time
from collections.abc import Callable

import pytest

from ensemble.errors import UserError
from ensemble.neural.checkpoint import Writer


def test_training_goes_on_while_a_checkpoint_is_written() -> None:
    """Each checkpoint would stop all ranks for as long as the disk takes."""
    may_end, order = threading.Event(), []
    with Writer() as writer:
        writer.submit(lambda: (may_end.wait(30), order.append("first"))[0])
        writer.submit(lambda: order.append("second"))
        writer.check()
        assert order == []
        may_end.set()
    assert order == ["first", "second"]


def test_snapshots_do_not_pile_up() -> None:
    """On a slow disk, copies of the whole training state would fill the memory."""
    may_end, submitted = threading.Event(), []

    def submit() -> None:
        for number in range(Writer.LONGEST + 1):
            writer.submit(lambda: may_end.wait(30) and None)
            submitted.append(number)

    with Writer() as writer:
        thread = threading.Thread(target=submit)
        thread.start()
        time.sleep(0.2)
        assert len(submitted) == Writer.LONGEST
        may_end.set()
        thread.join()


@pytest.mark.parametrize("find", [Writer.check, Writer.wait, lambda writer: writer.submit(lambda: None)])
def test_a_failure_in_the_background_surfaces(find: Callable[[Writer], None]) -> None:
    """A run would go on for days without a checkpoint."""

    def fail() -> None:
        raise UserError("no room")

    with Writer() as writer:
        writer.submit(fail)
        time.sleep(0.1)
        with pytest.raises(UserError, match="no room"):
            find(writer)


def test_a_failure_of_the_last_write_surfaces() -> None:
    """A run would end as done, and its last weights be nowhere."""

    def fail() -> None:
        raise UserError("no room")

    writer = Writer()
    writer.submit(fail)
    with pytest.raises(UserError, match="no room"), writer:
        pass
