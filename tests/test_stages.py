"""The stages of `make test`: each test is in one of them, all three run, and one that fails makes the command fail."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import stages
from hypothesis import settings
from stages import STAGES

ROOT = Path(__file__).resolve().parents[1]


def in_no_single_stage(items: Sequence[pytest.Item]) -> list[str]:
    """The tests that have the mark of no stage, or of more than one."""
    return [item.nodeid for item in items if sum(mark.name in STAGES for mark in item.iter_markers()) != 1]


def test_each_test_has_the_mark_of_one_stage(collected: list[pytest.Item], request: pytest.FixtureRequest) -> None:
    """`-m` would leave a test out of all stages, or run it in two."""
    assert request.node in collected
    assert in_no_single_stage(collected) == []


def test_a_missing_mark_and_a_second_one_are_found(request: pytest.FixtureRequest) -> None:
    """The test above could not fail."""
    request.node.add_marker("slurm")
    assert in_no_single_stage([request.node]) == [request.node.nodeid]
    request.node.own_markers = []
    assert in_no_single_stage([request.node]) == [request.node.nodeid]


def test_each_file_is_imported_by_one_stage() -> None:
    """The tests of a file would never run, or run twice."""
    files = sorted(stages.TESTS.rglob("test_*.py"))
    taken_by = {file: [stage for stage in STAGES if not stages.leaves_out(stage, file)] for file in files}
    assert taken_by == {file: [stages.of(file)] for file in files}
    assert {stages.of(file) for file in files} == set(STAGES)
    assert not any(stages.leaves_out(marks, file) for marks in ("", "not slurm", "hypothesis") for file in files)


def test_what_is_serial_exists() -> None:
    """A file that was renamed would run beside others, and fail now and then."""
    assert [path for path in stages.SERIAL if not (stages.TESTS / path).exists()] == []


@pytest.fixture
def make(tmp_path: Path) -> list[str]:
    """`make` with a stand-in for pytest, which notes its arguments in `calls` and fails if they hold the word in `fails`."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    for name in ("installed", "installed-dev"):
        (tmp_path / name).touch()
    stub = tmp_path / "pytest"
    stub.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in *$(cat {tmp_path}/fails)*) exit 1;; esac\n')
    stub.chmod(0o755)
    return ["make", f"VENV={tmp_path}", f"PYTEST={stub}"]


@pytest.mark.parametrize("fails", ["nothing", *STAGES])
def test_all_stages_run_and_each_may_fail(fails: str, make: list[str], tmp_path: Path) -> None:
    """A stage would hide the failures of the ones after it, or a failure pass for success."""
    (tmp_path / "fails").write_text(f"-m {fails}")
    done = subprocess.run([*make, "test"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert bool(done.returncode) == (fails != "nothing"), done.stdout
    assert (tmp_path / "calls").read_text().splitlines() == [
        "-m parallel -n 2 --dist loadfile --no-loadscope-reorder",
        "-m serial",
        "-m slurm",
    ]
    results = re.findall(r"^test (\w+) +\d+ s  (\w+)$", done.stdout, re.MULTILINE)
    assert results == [(stage, "FAILED" if stage == fails else "passed") for stage in STAGES]


def test_only_torture_draws_new_examples() -> None:
    """A test would fail once in a hundred runs of `make test`, for someone else's change."""
    assert settings.default
    assert settings.default.derandomize == (not os.environ.get("TORTURE_LONG"))
    assert settings.default.deadline is None


def test_torture_draws_new_examples(make: list[str], tmp_path: Path) -> None:
    """Generated examples would never change, and a case that they miss would always be missed."""
    (tmp_path / "fails").write_text("nothing")
    done = subprocess.run([*make, "torture"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "-m hypothesis or torture" in (tmp_path / "calls").read_text().splitlines()
    commands = [line for line in done.stdout.splitlines() if "pytest" in line]
    assert len(commands) == 2
    assert all(line.startswith("TORTURE_LONG=1 ") for line in commands)
