"""Fits in real processes: after the operating system killed them, they continue to the bits of an uninterrupted fit."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fits import bits, people

from ensemble import predictions
from ensemble.commands import fit as command
from ensemble.pipeline import run

ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    "target=y", "id=who", "drop=[day]", "num_folds=3", "time_limit=0", "num_draws=3", "threads=1",
    "members=[lightgbm,xgboost]",
)  # fmt: skip
SMALL = """
from ensemble.recipes.table import plan
plan.COMMON.update(num_rounds=40, early_stopping_rounds=40)
"""
"""Statements for fewer trees."""
PREPARING = "from ensemble.recipes.table import prepare; send_at(prepare, 'write_rows', 2, signal.SIGKILL)"
STOPPED = "from ensemble.trees import boosting; send_at(boosting.Progress, 'update', 15, signal.SIGTERM)"
KILLED = "from ensemble.trees import boosting; send_at(boosting.Progress, 'update', 25, signal.SIGKILL)"
COMBINING = "from ensemble.predictor import fit as combiner; send_at(combiner, 'fit', 1, signal.SIGTERM)"


@pytest.fixture
def start(table: Path, fit_after: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the command, which may send a signal to itself, and returns its output and exit code."""

    def start(out: str, *words: str, statement: str = "") -> Any:
        return fit_after(SMALL + statement, f"source=[{table}]", f"out={out}", *WORDS, *words)

    return start


def test_killed_and_stopped_it_ends_with_the_same_bits(start: Callable[..., Any], tmp_path: Path) -> None:
    """A requeued job would start from the beginning, stop for ever, or end with another ensemble."""
    resume = ("--resume", "auto")
    done = start("out", *resume, statement=PREPARING)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert any(path.name.startswith(".prepared.writing-") for path in (tmp_path / "out").iterdir())
    done = start("out", *resume, statement=STOPPED)
    assert done.returncode == 75, done.stderr
    assert "stopped while lightgbm was trained: continue with --resume auto" in done.stderr
    assert (tmp_path / "out/members/lightgbm.checkpoint/status").read_text() == "preempted\n"
    done = start("out", *resume, statement=KILLED)  # after more trees than those of the checkpoint
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "continuing after 20 trees" in done.stderr
    done = start("out", *resume, statement=COMBINING)
    assert done.returncode == 143, done.stderr
    done = start("out", *resume)
    assert done.returncode == 0, done.stderr
    assert "lightgbm is complete already" in done.stderr
    board = done.stdout.splitlines()
    assert "out of fold" in board[-5]
    whole = start("whole")
    assert whole.returncode == 0, whole.stderr
    expected, result = bits(tmp_path / "whole"), bits(tmp_path / "out")
    assert expected.keys() == result.keys()
    names = [name for name in result if result[name] != expected[name]]
    assert all(name.startswith("predictions/") for name in names)  # which name the member's folder
    for name in names:
        files = [predictions.read(tmp_path / out / name).prediction for out in ("whole", "out")]
        assert files[0].tobytes() == files[1].tobytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ensemble", "fit.json", "leaderboard.json", "members", "predictions", "prepared", "report.html",
    ]  # fmt: skip


def test_after_ctrl_c_the_command_names_the_way_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user would start again from the beginning."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", interrupted)
    monkeypatch.setattr(sys, "argv", ["fit.py", "source=[people.csv]", "target=y", f"out={tmp_path}/out"])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert capsys.readouterr().err == "stopped: continue with --resume auto\n"


@pytest.mark.parametrize("kind", ["regression"])
def test_the_command_as_a_user_starts_it(kind: str, tmp_path: Path) -> None:
    """The real interpreter would end in another way than a forked child, or depend on the working directory."""
    people(kind).write_csv(tmp_path / "people.csv")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/fit.py"), "source=[people.csv]", "out=runs/people", *WORDS, "time_limit=60"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "root mean squared error on rows predicted out of fold, with its 95 % interval" in done.stdout
    assert "of 60 s] lightgbm: at most" in done.stderr
    page = (tmp_path / "runs/people/report.html").read_text(encoding="utf-8")
    assert "<title>y: how well it is predicted" in page
    assert "Traceback" not in done.stderr
