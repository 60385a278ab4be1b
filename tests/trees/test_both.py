"""Both libraries from one command: each member is the same as when it is trained alone, and a signal stops both."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import command_of
from tree_members import SCRIPT, Start, config_of, model, run, wait_for_trees, words

from ensemble import configuration, folders
from ensemble.errors import FAILED, PREEMPTED, USER_ERROR, Failure, UserError
from ensemble.trees import both, train
from ensemble.trees.distributed import LIBRARIES, SINGLE_RANK, RankInfo
from ensemble.trees.settings import SearchConfig, TreesConfig

QUICK: dict[str, Any] = {"num_rounds": 30, "early_stopping_rounds": 30, "chunk_rounds": 5, "learning_rate": 0.02}
LONG: dict[str, Any] = {**QUICK, "num_rounds": 1500, "early_stopping_rounds": 1500, "checkpoint_s": 0}


def run_both(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return run([SCRIPT, *words(library="both", threads=2, **settings), *arguments])


@pytest.fixture(scope="module")
def alone(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The model of each library that is trained by itself."""
    models = {}
    for library in LIBRARIES:
        out = tmp_path_factory.mktemp(library) / "member"
        train.train(config_of(library, prepared, out, **QUICK))
        models[library] = model(out)
    return models


def models(out: Path) -> dict[str, bytes]:
    for library in LIBRARIES:
        folders.verify(out / library)
    return {library: model(out / library) for library in LIBRARIES}


@pytest.mark.parametrize("together", ["one_after_other", "side_by_side", "auto"])
def test_each_member_is_the_same_as_alone(together: str, alone: dict[str, bytes], prepared: Path, tmp_path: Path) -> None:
    """The libraries would disturb each other, or one of the ways to train them would write other members. In a folder
    `a ${b}`, they would end with an error about a setting b."""
    out = tmp_path / "a ${b}"
    done = run_both(data=prepared, out=configuration.literal(str(out)), together=together, **QUICK)
    assert done.returncode == 0, done.stderr
    assert models(out) == alone
    assert not list(tmp_path.glob("*.checkpoint"))
    chosen = together
    if together == "auto":
        result = re.search(
            r"together=(\w+): 20 rounds of each library took ([\d.]+) s one after the other on 2 cores, ([\d.]+) s side",
            done.stderr,
        )
        assert result
        chosen = result[1]
        assert (chosen == "side_by_side") == (float(result[3]) < float(result[2])) or result[2] == result[3]
    each = "1" if chosen == "side_by_side" else "2"
    assert re.findall(r"OMP_NUM_THREADS=(\d)", done.stderr) == [each, each]
    if chosen == "side_by_side":
        assert all(line.startswith(("xgboost  | ", "lightgbm | ", "together=")) for line in done.stderr.splitlines())


def test_on_one_core_there_is_no_trial(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trial would take seconds although its result is known."""
    assert both.choose_together(TreesConfig(library="both", data=str(tmp_path / "none")), 1)[0] == "one_after_other"
    assert "there is one core" in capfd.readouterr().err


def test_without_a_validation_split_there_is_no_trial(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both libraries on a table with folds would end in a traceback."""
    monkeypatch.setattr(both.rows, "tree_manifest", lambda data: {"splits": {"train": {"rows": 100}}, "features": []})
    assert both.choose_together(TreesConfig(library="both", data="data"), 2)[0] == "one_after_other"
    assert "together=one_after_other: without a validation split there is no trial" in capfd.readouterr().err


def test_if_memory_is_short_for_both_they_are_trained_one_after_the_other(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two trainings, each of which fits into the memory, would be killed side by side."""
    monkeypatch.setattr("ensemble.trees.memory.available", lambda: 150_000_000)
    assert both.choose_together(TreesConfig(library="both", data=str(prepared)), 2)[0] == "one_after_other"
    assert "together=one_after_other: not enough memory for both at once" in capfd.readouterr().err


def test_a_trial_that_cannot_start_is_explained(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /dev/shm, the training would end in a traceback, without advice."""

    def without_shared_memory(*arguments: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(both, "ProcessPoolExecutor", without_shared_memory)
    with pytest.raises(Failure, match=r"No such file or directory\): write together=one_after_other$"):
        both.choose_together(TreesConfig(library="both", data=str(prepared)), 2)


def test_cores_are_halved() -> None:
    """Cores would stay idle, or be used twice; of an odd number, the slower library would not get one more."""
    for num_cores in range(2, 9):
        shares = both.halves(num_cores, "lightgbm")
        assert sum(shares.values()) == num_cores
        assert 0 <= shares["lightgbm"] - shares["xgboost"] <= 1
    assert set(both.halves(1, "xgboost").values()) == {1}


@pytest.mark.parametrize(
    ("rank_info", "search", "sentence"),
    [
        (RankInfo(1, 2, "", 0), SearchConfig(), "not on 2 ranks"),
        (SINGLE_RANK, SearchConfig(trials=3), "does not search settings"),
    ],
)
def test_ranks_and_searches_are_refused(rank_info: RankInfo, search: SearchConfig, sentence: str, tmp_path: Path) -> None:
    """Ranks would wait for each other in different libraries, or a search would be written instead of a member."""
    config = TreesConfig(library="both", data="data", out=str(tmp_path / "members"), search=search)
    with pytest.raises(UserError, match=sentence):
        both.train(config, [], rank_info)
    assert not list(tmp_path.iterdir())


def test_an_error_is_printed_and_ends_both(prepared: Path, tmp_path: Path) -> None:
    """The error would be lost among other lines, or the exit code would not show that the user can correct it."""
    (tmp_path / "members/xgboost").mkdir(parents=True)
    (tmp_path / "members/xgboost/notes.txt").write_text("mine")
    done = run_both(data=prepared, out=tmp_path / "members", together="side_by_side")
    assert done.returncode == USER_ERROR
    assert "xgboost  | error: " in done.stderr
    assert "ended with exit code 2, see its lines above" in done.stderr.splitlines()[-1]
    assert (tmp_path / "members/xgboost/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        (USER_ERROR, "ended with exit code 2, see its lines above: correct what its error names, and start again"),
        (FAILED, "ended with exit code 1, see its lines above: continue with --resume auto"),
    ],
)
@pytest.mark.parametrize("of_other", [FAILED, PREEMPTED, 0])
def test_the_advice_fits_the_exit_code(code: int, ending: str, of_other: int, tmp_path: Path) -> None:
    """After an error in the data, the advice would be to continue with the same data."""
    ready = tmp_path / "ready"
    wait = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({of_other})); open({str(ready)!r}, 'w')"
    fail = f"import os, sys, time\nwhile not os.path.exists({str(ready)!r}): time.sleep(0.05)\nsys.exit({code})"
    with both.Children() as children:
        lines = {"xgboost": fail, "lightgbm": f"{wait}; signal.pause()"}
        children.start({library: [sys.executable, "-c", line] for library, line in lines.items()}, prefixed=False)
        result, sentence = children.wait()
    head, _, tail = ending.partition(", see its lines above")
    also = ", and lightgbm was stopped and has saved its trees" if of_other == PREEMPTED else ""
    again = ", with --resume auto if the data stay the same" if code == USER_ERROR else ""
    assert (result, sentence) == (code, f"xgboost {head}, see its lines above{also}{tail}{again}")


# Signals and kills


@pytest.fixture
def start_both(prepared: Path, start: Start) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the script and waits for checkpoints; the script and its processes are killed at the end of the test."""
    children: list[psutil.Process] = []

    def start_both(out: Path, together: str = "side_by_side") -> subprocess.Popen[str]:
        line = words(library="both", data=prepared, out=out, together=together, threads=2, **LONG)
        process = start([SCRIPT, *line])
        for library in LIBRARIES if together == "side_by_side" else LIBRARIES[:1]:
            wait_for_trees([process], out / library, 1)
        children.extend(psutil.Process(process.pid).children())
        return process

    yield start_both
    for child in children:
        if child.is_running():
            child.kill()


def children_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    return {
        library: child
        for child in psutil.Process(process.pid).children()
        for library in LIBRARIES
        if f"library={library}" in command_of(child)
    }


def test_when_one_is_killed_the_other_saves_and_stops(start_both: Any, tmp_path: Path) -> None:
    """The other one would train for hours although one member is missing, or no message would name the killed process."""
    process = start_both(tmp_path / "members")
    children = children_of(process)
    assert len({os.getpgid(child.pid) for child in children.values()} | {os.getpgid(process.pid)}) == 3
    children["lightgbm"].kill()
    _, errors = process.communicate(timeout=240)
    assert process.returncode == FAILED
    cause = "as the kernel does when memory is short"
    saved = "and xgboost was stopped and has saved its trees: continue with --resume auto"
    sentence = f"lightgbm was ended by SIGKILL, {cause}, {saved}"
    assert errors.splitlines()[-1] == f"failed: {sentence}"
    assert (tmp_path / "members.checkpoint/status").read_text() == f"lost\n{sentence}\n"
    assert (tmp_path / "members/xgboost.checkpoint/status").read_text() == "preempted\n"
    assert not any(child.is_running() for child in children.values())


def test_a_signal_stops_both_and_both_resume(start_both: Any, prepared: Path, tmp_path: Path) -> None:
    """A job that is preempted would lose the trees of a library."""
    out = tmp_path / "members"
    process = start_both(out)
    process.send_signal(signal.SIGUSR1)
    printed, errors = process.communicate(timeout=240)
    assert process.returncode == PREEMPTED, errors
    assert "status preempted" in printed
    assert (tmp_path / "members.checkpoint/status").read_text() == "preempted\n"
    for library in LIBRARIES:
        assert Path(f"{out}/{library}.checkpoint/status").read_text() == "preempted\n"
    # Only a resumed training compares its settings with those of a checkpoint
    done = run_both("--resume", "auto", data=prepared, out=out, together="side_by_side", **{**LONG, "num_rounds": 1400})
    assert (done.returncode, "num_rounds=1500" in done.stderr) == (USER_ERROR, True), "--resume was not passed on"


def test_no_process_outlives_a_killed_parent(start_both: Any, tmp_path: Path) -> None:
    """The trainings would continue in the background, and write to the same folders as a second start."""
    process = start_both(tmp_path / "members", "one_after_other")  # side by side, the pipe would break
    children = children_of(process)
    assert children
    process.kill()
    process.wait()
    psutil.wait_procs(list(children.values()), timeout=60)
    assert not any(child.is_running() for child in children.values())


@pytest.mark.parametrize("together", ["auto", "one_after_other"])
@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("metric=rmse", "error: metric=rmse does not score a binary task: choose average_precision"),
        (
            "monotone={reviews_4: 1}",
            "error: monotone names the feature reviews_4, which does not exist: did you mean reviews_4w?",
        ),
        ("max_leaves=1", "error: max_leaves=1 is impossible"),
    ],
)
def test_a_wrong_setting_has_one_error_message(
    word: str, sentence: str, together: str, prepared: Path, tmp_path: Path
) -> None:
    """The message would be about a trial that ended or about the lines above, and not about the setting."""
    done = run_both(word, data=prepared, out=tmp_path / "members", together=together)
    assert done.returncode == USER_ERROR, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_has_one_error_message(prepared: Path, tmp_path: Path) -> None:
    """The user would get a traceback, or the error only after the trial of both ways to train."""
    (tmp_path / "file").write_text("mine")
    done = run_both(data=prepared, out=tmp_path / "file/members")
    assert done.returncode == USER_ERROR, done.stderr
    assert "Traceback" not in done.stderr
    assert "rounds of each library took" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith(": name another out=")


def test_a_signal_while_a_process_starts_reaches_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process would train to its end, or until the whole job is killed, although it was asked to save and stop."""
    start = subprocess.Popen

    def start_and_signal(*arguments: Any, **options: Any) -> Any:
        process = start(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    with both.Children() as children:
        children.start({"xgboost": [sys.executable, "-c", "import time; time.sleep(20)"]}, prefixed=False)
        assert children.wait() == (0, "")
        assert children.processes["xgboost"].returncode == -signal.SIGTERM
        assert children.preempted()


def test_lines_in_the_encoding_of_an_editor_are_passed_on() -> None:
    """Editors set PYTHONIOENCODING: a path with an umlaut would end the thread that shows the error of a library."""
    command = [sys.executable, "-c", "print('gr\\xf6\\xdfe')"]
    body = f"children.start({{'xgboost': {command}}}, prefixed=True); children.wait()"
    statement = f"from ensemble.trees import both\nwith both.Children() as children: {body}"
    environment = {**os.environ, "PYTHONIOENCODING": "latin1"}
    done = subprocess.run([sys.executable, "-c", statement], env=environment, capture_output=True, check=False)
    assert (done.stdout.decode("latin1"), done.stderr) == ("xgboost  | größe\n", b"")


def test_an_error_in_a_trial_is_passed_on(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that only the training can detect, such as a wrong weight, would be lost with the process of the trial."""
    monkeypatch.setattr(both, "objective_of", lambda config, rows: None)
    config = TreesConfig(library="both", data=str(prepared), out=str(tmp_path / "members"), threads=2, metric="rmse")
    with pytest.raises(UserError, match="metric=rmse does not score a binary task"):
        both.train(config, ["scripts/train_trees.py"], SINGLE_RANK)
