"""Log files, progress bar and experiment trackers."""

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking

from ensemble.errors import UserError
from ensemble.neural.tracking import Tracker, require_installed

pytestmark = pytest.mark.usefixtures("accelerator")  # Accelerate's trackers need its state
LOSSES = {10: 0.7, 20: 0.5, 30: 0.4}


def run(folder: Path, first_step: int, last_step: int, *trackers: str) -> None:
    with closing(Tracker(folder, True, 30, first_step, first_step, trackers or ("tensorboard",), {"width": 8})) as tracker:
        for step, loss in LOSSES.items():
            if first_step < step <= last_step:
                tracker.metrics("train", step, {"loss": loss, "learning_rate": 0.1})
                tracker.metrics("val", step, {"score": 1 - loss})


def entries(folder: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_resumed_run_removes_the_steps_that_are_repeated(tmp_path: Path) -> None:
    """A step would be twice in metrics.jsonl or TensorBoard, or an incomplete line would prevent a resume."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, 0, 20)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    run(tmp_path, 10, 30)
    assert [(entry["kind"], entry["step"]) for entry in entries(tmp_path)] == [
        (kind, step) for step in LOSSES for kind in ("train", "val")
    ]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {event.step: event.value for event in board.Scalars("train/loss")} == pytest.approx(LOSSES)
    assert len(board.Scalars("val/score")) == 3
    steps = [line.split("  ")[1] for line in (tmp_path / "train.log").read_text().splitlines()]
    assert steps == ["step 10", "step 20", "step 20", "step 30"]


def test_a_kill_while_lines_are_removed_leaves_the_file_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill or a full disk would delete the metrics of hours."""
    run(tmp_path, 0, 30)
    before = entries(tmp_path)
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 10, 30)
    assert entries(tmp_path) == before


def test_a_kill_while_the_name_is_written_leaves_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs that were killed there would continue one run of Weights & Biases, the one with an empty name."""
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 0, 10)
    assert not (tmp_path / "curves.txt").exists()


def test_an_event_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A skipped step or a rollback would not be logged, or NaN would make the file invalid JSON."""
    with closing(Tracker(tmp_path, True, 30, 0, 0, ("tensorboard",), {})) as tracker:
        tracker.metrics("train", 7, {"loss": float("nan"), "learning_rate": 0.1})
        tracker.event(7, "the loss is nan: skipped")
    metrics, event = entries(tmp_path)
    assert event.pop("time_s") > 0
    assert event == {"kind": "event", "step": 7, "event": "the loss is nan: skipped"}
    assert (metrics["loss"], metrics["learning_rate"]) == (None, 0.1)
    assert (tmp_path / "train.log").read_text().endswith("  step 7  the loss is nan: skipped\n")
    assert capsys.readouterr().out == "step 7  the loss is nan: skipped\n"


def test_an_output_that_is_not_read_any_more_does_not_end_a_run(tmp_path: Path) -> None:
    """Ctrl-C ends the command in `| tee log` first: a run that evaluates then would fail, and lose the steps until then."""
    tracker = "Tracker(Path('.'), True, 4, 0, 0, (), {})"
    code = f"from pathlib import Path\nfrom ensemble.neural.tracking import Tracker\ntracker = {tracker}\n"
    code += "for step in range(1, 4):\n    tracker.metrics('val', step, {'accuracy': 0.5})\n"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-u", "-c", code], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=120
    )
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "val.log").read_text().splitlines()) == 3


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All ranks would write to the same files."""
    with closing(Tracker(tmp_path, False, 30, 0, 0, ("tensorboard",), {})) as tracker:
        tracker.metrics("train", 1, {"loss": 1.0})
        tracker.metrics("val", 1, {"score": 1.0})
        tracker.event(1, "skipped")
        tracker.advance(1)
        tracker.message("hello")
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


# The bar


BAR = """
import sys
from pathlib import Path
from accelerate import Accelerator
from ensemble.neural.tracking import Tracker, require_installed

Accelerator(cpu=True)
tracker = Tracker(Path(sys.argv[1]), True, 60, 10, 10, ("tensorboard",), {})
tracker.advance(60)
tracker.metrics("train", 11, {"loss": 0.25, "learning_rate": 0.1, "samples_per_s": 1234.5, "data_wait": 0.031, "mfu": 0.412})
tracker.advance(40)
tracker.close()
"""


def shown(folder: Path, in_terminal: bool) -> str:
    """The standard error of a run, which is a terminal of 140 columns or a pipe."""
    reader, writer = os.openpty() if in_terminal else os.pipe()
    if in_terminal:
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    subprocess.run([sys.executable, "-c", BAR, str(folder)], stderr=writer, check=True, timeout=120)
    os.set_blocking(reader, False)
    text = os.read(reader, 1_000_000).decode() if in_terminal else ""
    os.close(writer)
    text = text or os.read(reader, 1_000_000).decode()
    os.close(reader)
    return text


def test_the_bar_shows_the_progress(tmp_path: Path) -> None:
    """A user would not see the loss, the speed, a slow loader, or the time to an end that max_seconds brings nearer."""
    last = shown(tmp_path, True).rstrip().splitlines()[-1]
    assert last.startswith("train  30%|")
    assert "| 12/40 steps [00:" in last
    assert "<00:" in last, "the remaining time"
    assert last.endswith(", loss 0.25, 1,234 samples/s, waits 3.1%, MFU 41.2%]")


def test_a_log_file_gets_no_bar(tmp_path: Path) -> None:
    """The log of a job would have megabytes of progress bars."""
    assert shown(tmp_path, False) == ""


# Weights & Biases, trackio


class Recorder:
    """A mock of one of Accelerate's trackers."""

    name = "mock"

    started: list[tuple[str, dict[str, Any]]]
    problem: Exception | None = None

    def __init__(self, project: str, **options: Any):
        self.started.append((project, options))

    def start(self) -> None:
        if self.problem:
            raise self.problem

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged = (values, step)

    def finish(self) -> None:
        assert self.logged == ({"val/score": 0.6}, 30)


@pytest.fixture(params=["WandBTracker", "TrackioTracker"])
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setattr(tracking, request.param, Recorder)
    monkeypatch.setattr(Recorder, "started", [], raising=False)
    monkeypatch.setattr(Recorder, "problem", None)
    Recorder.key = {"WandBTracker": "wandb", "TrackioTracker": "trackio"}[request.param]  # type: ignore[attr-defined]
    return Recorder


def test_a_resumed_run_continues_the_same_run_of_the_tracker(recorder: Any, tmp_path: Path) -> None:
    """Each resume would create another run with a part of the curves."""
    for folder, first_step in (("a", 0), ("a", 20), ("b", 0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        run(tmp_path / folder, first_step, 30, recorder.key)
    first, resumed, other = (options for _, options in recorder.started)
    assert first == resumed
    assert first["resume"] == "allow"
    assert first["config"] == {"width": 8}
    identity = "id" if recorder.key == "wandb" else "name"
    assert first[identity] != other[identity]


def test_a_tracker_that_cannot_start_is_a_user_error(recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an account would get a traceback."""
    monkeypatch.setattr(recorder, "problem", RuntimeError("no API key,\nlog in"))
    with pytest.raises(UserError, match=rf"^trackers={recorder.key} cannot start \(no API key, log in\): fix that, or"):
        run(tmp_path, 0, 30, recorder.key)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would end in a traceback, or continue without the tracker."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(
        UserError,
        match=r"^trackers=wandb needs the package wandb, .* pip install 'accelerate-ensemble\[tracking\]', or leave it out$",
    ):
        require_installed(["tensorboard", "wandb"])
    require_installed(["tensorboard"])


def wandb_runs(folder: Path) -> list[str]:
    return [file.stem for file in folder.rglob("*.wandb")]


def trackio_steps(folder: Path) -> list[str]:
    import sqlite3

    (file,) = folder.rglob("*.db")
    with closing(sqlite3.connect(file)) as base:
        return [name for (name,) in base.execute("select run_name from metrics")]


@pytest.mark.parametrize(("name", "runs"), [("wandb", wandb_runs), ("trackio", trackio_steps)])
def test_the_real_packages_continue_the_same_run_offline(
    name: str, runs: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    """A new version of the tracker's package, or of Accelerate, would have other arguments."""
    pytest.importorskip(name)
    code = (
        "import runpy, sys, pathlib\n"
        "from accelerate import Accelerator\n"
        "Accelerator(cpu=True)\n"
        f"runpy.run_path({__file__!r})['run'](pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
    )
    offline = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    for first, last in ((0, 20), (20, 30)):
        command = [sys.executable, "-c", code, str(tmp_path), str(first), str(last), name]
        subprocess.run(command, env=os.environ | offline, check=True, capture_output=True, timeout=120)
    names = runs(tmp_path)
    assert len(names) == (2 if name == "wandb" else 6)
    assert len(set(names)) == 1
