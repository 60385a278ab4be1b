"""The counts of the commands are those of slurm/results/counts.json, or less."""

import copy
import sys
from importlib import metadata
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


@pytest.mark.skipif(
    not metadata.version("torch").endswith("+cpu"), reason="counts.json is of PyTorch for CPUs: that for CUDA imports triton"
)
def test_commands_take_no_more_than_before(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A start would import pandas again, a run would write a file twice, or a step would communicate once more.

    For a change that is intended: python scripts/benchmark.py counts, and commit the file.
    """
    counted = measure.counts_of_commands(prepared, tmp_path / "work")
    assert counted["commands"].keys() == COMMITTED["commands"].keys()
    with capsys.disabled():
        for sentence in measure.slower(COMMITTED, counted):
            print(f"warning: {sentence}")
    assert measure.excesses(COMMITTED, counted) == []


def test_a_small_program_is_counted(tmp_path: Path) -> None:
    """The recorder would miss processes or files, and every comparison would succeed."""
    counted = measure.counted([sys.executable, "-c", PROGRAM.format(folder=tmp_path)], tmp_path)
    expected = {"processes": 2, "programs": 1, "written_files": 2, "files": 2, "bytes": 3, "collectives": 0, "batches": 0}
    assert {name: counted[name] for name in expected} == expected
    more = measure.counted([sys.executable, "-c", "import numpy"], tmp_path)
    assert more["modules"] > counted["modules"]
    assert "numpy" not in counted["packages"]
    assert "numpy" in more["packages"]


@pytest.mark.parametrize("what", measure.MARGINS)
def test_an_excess_is_named(what: str) -> None:
    """A count beyond its margin would pass, or one within it would fail."""
    counted = copy.deepcopy(COMMITTED)
    values = counted["commands"]["train.py, 2 ranks"]
    allowed = int(values[what] * (1 + measure.MARGINS[what]))
    values[what] = allowed
    assert measure.excesses(COMMITTED, counted) == []
    values[what] = allowed + 1
    (sentence,) = measure.excesses(COMMITTED, counted)
    assert sentence.startswith(f"train.py, 2 ranks: {what} {allowed + 1:,} instead of ")


def test_a_new_package_and_a_slower_command_are_named() -> None:
    """The message would not name the new modules, or more seconds on a busy machine would be an error."""
    counted = copy.deepcopy(COMMITTED)
    counted["commands"]["report.py"]["packages"].append("pandas")
    counted["commands"]["report.py"]["share_of_cpu"] *= 2
    assert measure.excesses(COMMITTED, counted) == ["report.py imports pandas"]
    (sentence,) = measure.slower(COMMITTED, counted)
    assert sentence.startswith("report.py takes ")
    assert measure.slower(COMMITTED, COMMITTED) == []
