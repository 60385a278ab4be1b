"""The counts of the commands are those of slurm/results/counts.json, or less."""

import copy
import sys
from pathlib import Path

import pytest
from benchmarks import counts as measure

from ensemble import folders

COMMITTED = folders.read_json(measure.ROOT / "slurm/results/counts.json")
PROGRAM = """
import os, pathlib, subprocess
pathlib.Path("{folder}/one").write_text("1")
pathlib.Path("{folder}/two").write_text("22")
pathlib.Path("/dev/null").write_text("elsewhere")
subprocess.run(["true"])
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_commands_take_no_more_than_before(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start would import pandas again, a run write a file twice, or a step communicate once more, and nobody notice.

    For a change that is intended: python scripts/benchmark.py counts, and commit the file.
    """
    found = measure.of_commands(prepared, tmp_path / "work")
    assert found["commands"].keys() == COMMITTED["commands"].keys()
    with capsys.disabled():
        for sentence in measure.slower(COMMITTED, found):
            print(f"warning: {sentence}")
    assert measure.excesses(COMMITTED, found) == []


def test_a_small_program_is_counted(tmp_path: Path) -> None:
    """The recorder would miss processes or files, and every comparison succeed."""
    found = measure.counted([sys.executable, "-c", PROGRAM.format(folder=tmp_path)], tmp_path)
    expected = {"processes": 2, "programs": 1, "written_files": 2, "files": 2, "bytes": 3, "collectives": 0, "batches": 0}
    assert {name: found[name] for name in expected} == expected
    more = measure.counted([sys.executable, "-c", "import numpy"], tmp_path)
    assert more["modules"] > found["modules"]
    assert "numpy" not in found["packages"]
    assert "numpy" in more["packages"]


@pytest.mark.parametrize("what", measure.MARGINS)
def test_an_excess_is_named(what: str) -> None:
    """A count beyond its margin would pass, or one within it fail."""
    found = copy.deepcopy(COMMITTED)
    values = found["commands"]["train.py, 2 ranks"]
    allowed = int(values[what] * (1 + measure.MARGINS[what]))
    values[what] = allowed
    assert measure.excesses(COMMITTED, found) == []
    values[what] = allowed + 1
    (sentence,) = measure.excesses(COMMITTED, found)
    assert sentence.startswith(f"train.py, 2 ranks: {what} {allowed + 1:,} instead of ")


def test_a_new_package_and_a_slower_command_are_named() -> None:
    """The message would be a number of modules, and nobody know which; or seconds fail on a busy machine."""
    found = copy.deepcopy(COMMITTED)
    found["commands"]["report.py"]["packages"].append("pandas")
    found["commands"]["report.py"]["share_of_cpu"] *= 2
    assert measure.excesses(COMMITTED, found) == ["report.py imports pandas"]
    (sentence,) = measure.slower(COMMITTED, found)
    assert sentence.startswith("report.py takes ")
    assert measure.slower(COMMITTED, COMMITTED) == []
