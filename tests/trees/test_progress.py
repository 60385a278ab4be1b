"""The progress that a training of trees prints."""

import io
import sys

import pytest

from ensemble.trees import progress
from ensemble.trees.progress import MAX_LINES, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, total: int, num_trees: int, is_shown: bool = True) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with Progress("xgboost", total, 0, is_shown) as bar:
            for number in range(num_trees):
                bar.update(f"average_precision {number / 1000:.4f}")
    return stream.getvalue()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as if each tree took a long time."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)


def test_a_fast_training_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hundred trials of a search would write two thousand lines."""
    assert printed(io.StringIO(), monkeypatch, 600, 600) == "xgboost: 600 of 600 trees  average_precision 0.5990\n"


@pytest.mark.usefixtures("slow")
def test_a_log_file_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a job would have a line for every tree."""
    lines = printed(io.StringIO(), monkeypatch, 600, 600).splitlines()
    assert len(lines) == MAX_LINES
    assert lines[0] == "xgboost: 30 of 600 trees  average_precision 0.0290"
    assert lines[-1] == "xgboost: 600 of 600 trees  average_precision 0.5990"
    assert "\r" not in "".join(lines)
    assert len(printed(io.StringIO(), monkeypatch, 7, 7).splitlines()) == 7


@pytest.mark.usefixtures("slow")
def test_the_last_tree_is_named_when_training_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log would not show the number of trees."""
    lines = printed(io.StringIO(), monkeypatch, 600, 77).splitlines()
    assert [line.split(" of")[0] for line in lines] == ["xgboost: 30", "xgboost: 60", "xgboost: 77"]


def test_a_terminal_gets_a_bar_and_other_ranks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal would get no bar, or each rank would draw one."""
    assert "5/10" in printed(Terminal(), monkeypatch, 10, 5)
    assert printed(Terminal(), monkeypatch, 10, 5, is_shown=False) == ""
    assert printed(io.StringIO(), monkeypatch, 10, 5, is_shown=False) == ""
