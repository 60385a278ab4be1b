"""The problems reported by users of Accelerate are absent here, and the figures of the README are reproduced."""

import json
import subprocess
import sys
from typing import Any

import pytest
from benchmarks.pains import measure, missing_processes, rows, sides
from benchmarks.timing import ROOT, SCRIPTS

from ensemble.errors import UserError

COMMITTED = ROOT / "slurm" / "results" / "pains.json"
SHORT = [pytest.param("reshuffled_epoch", marks=pytest.mark.torture), "missing_processes"]
"""Complaints that take less than a minute; `make pains` reproduces all."""
COUNTS = ("wrong_rows", "rows", "code_run", "outside", "wrong_weights")


@pytest.fixture(scope="module", params=SHORT)
def reproduced(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A complaint and its figures."""
    return request.param, measure.pains((request.param,), short=True)[request.param]


def test_no_complaint_is_shared(reproduced: tuple[str, dict[str, Any]]) -> None:
    """A resumed run would use other rows or weights, a checkpoint would run code, or a launch would lose ranks."""
    here = reproduced[1]["here"]
    assert [here[count] for count in ("wrong_rows", "code_run", "outside", "wrong_weights")] == [0, 0, 0, 0], here
    assert "exit code" not in here["note"], here


def test_plain_accelerate_has_the_committed_figures(reproduced: tuple[str, dict[str, Any]]) -> None:
    """The table would list a problem that Accelerate has solved, or the reproduction no longer detect it."""
    name, now = reproduced
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))[name]
    assert now["reproduces"] == committed["reproduces"]
    assert {count: now["plain"][count] for count in COUNTS} == {count: committed["plain"][count] for count in COUNTS}


def test_every_complaint_is_in_the_committed_file() -> None:
    """A complaint that is no longer reproduced could be removed instead of reported."""
    assert [name for name in json.loads(COMMITTED.read_text(encoding="utf-8")) if name != "environment"] == [
        *measure.COMPLAINTS
    ]


def test_processes_of_plain_accelerate_load_no_libraries_of_this_project() -> None:
    """Half a CPU second of imports, which a script of a user does not have, would count as its own."""
    modules = ", ".join(f"benchmarks.pains.{name}" for name in measure.COMPLAINTS)
    code = f"import sys, benchmark, {modules}; print({{'omegaconf', 'pandas', 'polars', 'pyarrow'}} & {{*sys.modules}})"
    environment = {"PYTHONPATH": f"{SCRIPTS}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_misplaced_rows_are_counted() -> None:
    """A row at another step, with another weight, used twice or not at all would not be detected."""
    expected = [{0: 0.5, 1: 0.5}, {2: 0.5, 3: 0.5}]
    assert rows.misplaced(expected, expected) == 0
    assert rows.misplaced([{0: 0.5, 2: 0.5}, {1: 0.5, 3: 0.5}], expected) == 2
    assert rows.misplaced([{0: 1.0, 1: 0.5}, {2: 0.5, 3: 0.5}], expected) == 1
    assert rows.misplaced(expected[:1], expected) == 2
    assert rows.repeated_and_missing([{0: 0.5, 1: 0.5}, {1: 0.5}], 3) == {"repeated": [1], "missing": [2]}


def test_an_unknown_complaint_is_refused() -> None:
    """A misspelt name would end in a traceback of importlib."""
    with pytest.raises(UserError, match=r"only=\['stall'\]: 'stall' is unknown, choose from stateful_loader, "):
        measure.pains(("stall",), short=True)


def test_a_complaint_that_is_named_twice_is_reproduced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder would exist already, and the figures measured so far would be lost."""
    folders = []

    def reproduce(folder: object, short: bool) -> sides.Reproduced:
        folders.append(folder)
        side = sides.Side(wrong_rows=0, rows=1, seconds=0.0, note="")
        return {"plain": side}, side

    monkeypatch.setattr(missing_processes, "reproduce", reproduce)
    assert list(measure.pains(("missing_processes",) * 2)) == ["missing_processes"]
    assert len(folders) == 1
