"""The complaints of Accelerate's users are absent here, and what the README says of them is what happens today."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.pains import measure, rows
from benchmarks.pains.settings import COMPLAINTS

from ensemble.errors import UserError

COMMITTED = Path(__file__).resolve().parents[3] / "slurm" / "results" / "pains.json"
SHORT = ["reshuffled_epoch", "code_on_load", "missing_processes", "uneven_accumulation"]
"""One minute of CPU time on one core; `make pains` reproduces the others too."""
COUNTS = ("wrong_rows", "rows", "code_run", "outside", "wrong_weights")


@pytest.fixture(scope="module")
def reproduced() -> dict[str, Any]:
    return measure.pains(SHORT, short=True)


@pytest.mark.parametrize("name", SHORT)
def test_no_complaint_is_shared(name: str, reproduced: dict[str, Any]) -> None:
    """A resumed run would take other rows, a checkpoint would run code, a launch would lose ranks, weights would be off."""
    here = reproduced[name]["here"]
    assert [here[count] for count in ("wrong_rows", "code_run", "outside", "wrong_weights")] == [0, 0, 0, 0], here
    assert "exit code" not in here["note"], here


@pytest.mark.parametrize("name", SHORT)
def test_plain_accelerate_does_what_the_figures_say(name: str, reproduced: dict[str, Any]) -> None:
    """The table would accuse Accelerate of what it has mended, or the reproduction would not see it any more."""
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))[name]
    now = reproduced[name]
    assert now["reproduces"] == committed["reproduces"]
    assert {count: now["plain"][count] for count in COUNTS} == {count: committed["plain"][count] for count in COUNTS}


def test_every_complaint_is_in_the_committed_file() -> None:
    """One that no longer reproduces could be dropped instead of reported."""
    assert [name for name in json.loads(COMMITTED.read_text(encoding="utf-8")) if name != "environment"] == [*COMPLAINTS]


def test_misplaced_rows_are_counted() -> None:
    """A row at another step, one of another weight, one that came twice and one that never came would pass for right."""
    expected = [{0: 0.5, 1: 0.5}, {2: 0.5, 3: 0.5}]
    assert rows.misplaced(expected, expected) == 0
    assert rows.misplaced([{0: 0.5, 2: 0.5}, {1: 0.5, 3: 0.5}], expected) == 2
    assert rows.misplaced([{0: 1.0, 1: 0.5}, {2: 0.5, 3: 0.5}], expected) == 1
    assert rows.misplaced(expected[:1], expected) == 2
    assert rows.census([{0: 0.5, 1: 0.5}, {1: 0.5}], 3) == {"repeated": [1], "missing": [2]}


def test_an_unknown_complaint_is_refused() -> None:
    """A word with a typing mistake would end in a traceback of importlib."""
    with pytest.raises(UserError, match="only=stall is no complaint: choose of stateful_loader, "):
        measure.pains(["stall"], short=True)
