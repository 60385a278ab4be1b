"""A search for settings: reproducible, shared by tasks, kept through kills, and true about what it found."""

import csv
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ensemble import configuration, folders
from ensemble.errors import PREEMPTED, UserError
from ensemble.trees import search, train
from ensemble.trees.distributed import RankInfo
from ensemble.trees.settings import SearchConfig, TreesConfig
from ensemble.trees.trials import JOURNAL, NUM_RANDOM, Pruned, Range, Trial, Trials

ROOT = Path(__file__).resolve().parents[2]
NUM_TRIALS = NUM_RANDOM + 3
QUICK: dict[str, Any] = {"num_rounds": 12, "early_stopping_rounds": 6, "chunk_rounds": 4, "threads": 1, "learning_rate": 0.1}


def settings(data: Path, out: Path, library: str = "xgboost", **of_search: Any) -> TreesConfig:
    budget = SearchConfig(**{"trials": NUM_TRIALS, **of_search})
    return TreesConfig(library=library, data=str(data), out=str(out), search=budget, **QUICK)  # type: ignore[arg-type]


def tried(out: Path) -> list[dict[str, str]]:
    """The table of a search's trials, without the seconds."""
    with open(out / "trials.csv", encoding="utf-8", newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "search"
    search.search(settings(prepared, out))
    return out


@pytest.fixture
def start(prepared: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the script in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(out: Path, *words: str) -> subprocess.Popen[str]:
        line = [sys.executable, str(ROOT / "scripts/train_trees.py"), f"data={prepared}", f"out={out}"]
        line += [*(f"{name}={value}" for name, value in QUICK.items()), f"search.trials={NUM_TRIALS}", *words]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def num_told(out: Path) -> int:
    """Trials of which the journal has a score."""
    journal = out / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum('"state":1' in line or '"state":2' in line for line in lines)


def num_begun(out: Path) -> int:
    return (out / JOURNAL).read_text().count('"op_code":4')


def entries(out: Path) -> list[dict[str, Any]]:
    """The whole lines of the journal, to which others may be writing."""
    return [json.loads(line) for line in (out / JOURNAL).read_text().split("\n")[:-1]]


def is_at_work(out: Path, name: str) -> bool:
    """Whether the task of that name has begun a trial and not ended it."""
    noted = [(entry["trial_id"], entry["user_attr"]) for entry in entries(out) if entry["op_code"] == 8]
    begun = {trial for trial, its in noted if its.get("owner", {}).get("name") == name}
    ended = {entry["trial_id"] for entry in entries(out) if entry["op_code"] == 6 and entry["state"] != 0}
    return bool((begun & {trial for trial, its in noted if "place" in its}) - ended)


def stop_at_work(process: subprocess.Popen[str], out: Path, name: str) -> None:
    """SIGSTOP the task while it has a trial."""
    while True:
        os.killpg(process.pid, signal.SIGSTOP)
        if is_at_work(out, name):
            break
        os.killpg(process.pid, signal.SIGCONT)
        assert process.poll() is None
        time.sleep(0.005)


def kill_at_work(process: subprocess.Popen[str], out: Path, name: str) -> None:
    stop_at_work(process, out, name)
    os.killpg(process.pid, signal.SIGKILL)


def wait_until(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


# What it finds


def test_the_seed_decides_what_is_tried(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """Nobody could repeat a search, or a seed would mean nothing."""
    search.search(settings(prepared, tmp_path / "again"))
    assert tried(tmp_path / "again") == tried(whole)
    assert (tmp_path / "again/best.yaml").read_bytes() == (whole / "best.yaml").read_bytes()
    search.search(settings(prepared, tmp_path / "other", seed=1, trials=3))
    assert tried(tmp_path / "other")[0] == tried(whole)[0], "the settings given come first whatever the seed"
    assert all(its != those for its, those in zip(tried(tmp_path / "other")[1:], tried(whole)[1:], strict=False))


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_the_best_trains_to_the_score_that_it_had(library: str, prepared: Path, tmp_path: Path) -> None:
    """A trial would have other bins, trees or settings than the training that its YAML asks for."""
    summary = search.search(settings(prepared, tmp_path / "search", library, trials=4))
    words = [f"data={prepared}", f"out={tmp_path / 'member'}", "threads=1"]
    best = configuration.load(TreesConfig, tmp_path / "search/best.yaml", words)
    assert best.library == library
    assert train.train(best)["validation_average_precision"] == summary["best"]
    assert summary["best"] >= summary["given"]
    # The third was trained on bins that two others had used
    row = tried(tmp_path / "search")[3]
    its = {name: int(row[name]) if name == "max_leaves" else float(row[name]) for name in search.RANGES}
    third = configuration.load(
        TreesConfig, tmp_path / "search/best.yaml",
        [f"data={prepared}", f"out={tmp_path / 'third'}", "threads=1", *(f"{name}={value}" for name, value in its.items())],
    )  # fmt: skip
    assert train.train(third)["validation_average_precision"] == float(row["score"])


def test_settings_stay_within_their_ranges_and_cover_them(whole: Path) -> None:
    """The search would look at one corner, or try what makes no sense."""
    for name, its in search.RANGES.items():
        values = [float(row[name]) for row in tried(whole)[1:]]
        assert its.low <= min(values) < max(values) <= its.high
        assert len(set(values)) > len(values) // 2


def test_what_is_left_in_the_folder(whole: Path) -> None:
    """Locks, pages and signs of life would pile up beside the results."""
    assert {file.name for file in whole.iterdir()} == {"best.yaml", "search.png", JOURNAL, "trials.csv"}


# Kills and signals


def test_a_search_that_is_killed_goes_on_to_the_same_trials(whole: Path, start: Any, tmp_path: Path) -> None:
    """A SIGKILL or SIGTERM would lose a trial, count one twice, or change what comes after."""
    out, words = tmp_path / "search", ("search.task=job-7", "search.lost_after_s=12", "--resume", "auto")
    for number, stop in ((2, signal.SIGKILL), (6, signal.SIGTERM)):
        process = start(out, *words)
        wait_until(process, lambda number=number: num_told(out) >= number)  # type: ignore[misc]
        if stop == signal.SIGKILL:
            kill_at_work(process, out, "job-7")
        else:
            os.killpg(process.pid, stop)
        process.communicate(timeout=240)
        assert process.returncode == (PREEMPTED if stop == signal.SIGTERM else -stop)
        status = (out / "tasks/job-7/status").read_text()
        assert status == ("preempted\n" if stop == signal.SIGTERM else "running\n")
    process = start(out, *words)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "learning_rate" in printed
    assert tried(out) == tried(whole)
    assert not (out / "tasks").exists()


def test_tasks_share_a_budget_and_outlive_one_that_is_killed(start: Any, tmp_path: Path) -> None:
    """Three tasks would try more or fewer than were asked for, or wait for ever for one that is dead."""
    out = tmp_path / "search"

    def begin(name: str) -> subprocess.Popen[str]:
        return start(out, "search.lost_after_s=4", f"search.task={name}", "--resume", "auto")

    lost = begin("a")
    wait_until(lost, lambda: (out / JOURNAL).exists())
    stop_at_work(lost, out, "a")  # the others could be done before it has begun
    tasks = [begin("b"), begin("c")]
    wait_until(tasks[0], lambda: num_told(out) >= 3)
    os.killpg(lost.pid, signal.SIGKILL)
    for task in tasks:
        _, said = task.communicate(timeout=240)
        assert task.returncode == 0, said
    rows = tried(out)
    assert [int(row["trial"]) for row in rows] == list(range(NUM_TRIALS)), "one lost, or done twice"
    assert num_told(out) == NUM_TRIALS
    assert len({row["l2"] for row in rows}) == NUM_TRIALS
    # The journal, read by itself: each trial has one end, and none is left running
    ends = Counter(entry["trial_id"] for entry in entries(out) if entry["op_code"] == 6 and entry["state"] != 0)
    assert set(ends.values()) == {1}
    assert len(ends) == num_begun(out) == NUM_TRIALS + 1, "the one that was lost, too"
    whole = [row for row in rows if row["pruned"] == "0"]
    best = configuration.read_yaml(out / "best.yaml")
    assert str(best["l2"]) == max(whole, key=lambda row: float(row["score"]))["l2"]


def test_a_line_that_was_cut_off_is_mended(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """After a full disk, no task could read the search again."""
    out = tmp_path / "search"
    search.search(settings(prepared, out, trials=2))
    with open(out / JOURNAL, "ab") as journal:
        journal.write(b'{"op_code":4,"worker')
    search.search(settings(prepared, out), "auto")
    assert tried(out) == tried(whole)


def test_a_damaged_journal_is_named(prepared: Path, tmp_path: Path) -> None:
    """A traceback of the library would be all that is said."""
    (tmp_path / JOURNAL).write_text("nothing of the kind\nnor this\n")
    with pytest.raises(UserError, match=r"trials\.journal is damaged"):
        search.search(settings(prepared, tmp_path), "auto")


# What is refused


def test_a_search_is_joined_only_on_request_and_by_its_like(whole: Path, prepared: Path, prepared_copy: Path) -> None:
    """Trials of other data or settings would be mixed, or a search that took hours overwritten."""
    before = num_begun(whole)
    with pytest.raises(UserError, match="holds a search: add --resume auto"):
        search.search(settings(prepared, whole))
    with pytest.raises(UserError, match="with library=xgboost"):
        search.search(settings(prepared, whole, "lightgbm"), "auto")
    with pytest.raises(UserError, match=r"search\.seed=0 \(now 4\)"):
        search.search(settings(prepared, whole, seed=4), "auto")
    about = {name: value for name, value in folders.read_manifest(prepared_copy).items() if name != "files"}
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**about, "note": "other data"})
    with pytest.raises(UserError, match="with data="):
        search.search(settings(prepared_copy, whole), "auto")
    assert num_begun(whole) == before == NUM_TRIALS
    assert not (whole / "tasks").exists()


def test_what_cannot_be_searched_is_refused(prepared: Path, tmp_path: Path) -> None:
    """The user would get a traceback, or a folder of something else would be written into."""
    with pytest.raises(UserError, match="no search to join"):
        search.search(settings(prepared, tmp_path / "none"), "last")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="files that no search wrote"):
        search.search(settings(prepared, tmp_path), "auto")
    with pytest.raises(UserError, match="not by 2 ranks"):
        search.search(settings(prepared, tmp_path / "search"), "", RankInfo(0, 2, "", 0))
    with pytest.raises(UserError, match=r"search\.lost_after_s=0\.0 is impossible"):
        search.search(settings(prepared, tmp_path / "search", lost_after_s=0.0))
    assert not (tmp_path / "search").exists()


def test_without_optuna_the_error_names_the_package() -> None:
    """Whoever left the extra out would see a traceback."""
    code = "import sys; sys.modules['optuna'] = None\nfrom ensemble.trees import trials"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UserError: a search needs Optuna: pip install -e '.[search]'" in done.stderr


# The trials by themselves

SPACE = {"x": Range(0.0, 1.0, False), "width": Range(1, 100, True)}


def task(folder: Path, **budget: Any) -> Trials:
    folder.mkdir(exist_ok=True)
    return Trials(folder, SearchConfig(**budget), SPACE, {"x": 0.5, "width": 8}, {"data": "d"}, higher_is_better=True)


def never() -> int:
    return 0


def do(trials: Trials, work: Callable[[Trial], float]) -> bool:
    """Take a trial and do it; False when there is none."""
    trial = trials.take(never)
    if trial:
        trials.run(trial, lambda trial: (work(trial), {}))
    return trial is not None


def test_two_tasks_never_do_the_same_trial(tmp_path: Path) -> None:
    """Half of the time would be wasted, most of all at the random start."""
    with task(tmp_path, trials=4) as one, task(tmp_path, trials=4) as other:
        taken = [trials.take(never) for trials in (one, other, one, other)]
        assert [trial.place for trial in taken if trial] == [0, 1, 2, 3]
        assert len({trial.settings["x"] for trial in taken if trial}) == 4


def test_the_trial_of_a_dead_task_is_done_again_and_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be missing, or counted twice should its task only have slept."""
    with task(tmp_path, trials=3, lost_after_s=1000) as sleeper, task(tmp_path, trials=3, lost_after_s=1000) as other:
        lost = sleeper.take(never)
        assert lost
        assert do(other, lambda trial: 1.0)
        long_ago = time.time() - 2000
        os.utime(tmp_path / "tasks" / sleeper.name / "status", (long_ago, long_ago))
        again = other.take(never)
        assert again
        assert (again.place, again.settings) == (lost.place, lost.settings)
        sleeper.run(lost, lambda _: (9.0, {}))
        assert "trial 0 was considered lost, and another task repeats it" in capsys.readouterr().err
        other.run(again, lambda _: (2.0, {}))
        assert do(other, lambda trial: 3.0)
        assert not do(other, lambda trial: 4.0)
        assert [(ended.place, ended.score) for ended in other.ended()] == [(0, 2.0), (1, 1.0), (2, 3.0)]


def test_a_trial_behind_the_others_is_pruned_and_counts(tmp_path: Path) -> None:
    """Hopeless settings would be trained to their end, or their place tried again for ever."""

    def work(trial: Trial) -> float:
        score = 0.1 if trial.place == NUM_RANDOM else 0.5 + trial.place / 100
        trial.report(score, 0)
        if trial.place == NUM_RANDOM:
            pytest.fail("it was to be pruned")
        return score

    with task(tmp_path, trials=NUM_RANDOM + 1) as trials:
        while do(trials, work):
            pass
        assert [ended.pruned for ended in trials.ended()] == [False] * NUM_RANDOM + [True]
        assert trials.ended()[-1].score == 0.1


def test_an_error_frees_the_place(tmp_path: Path) -> None:
    """A trial that broke would be taken for done."""
    with task(tmp_path, trials=1) as trials:
        with pytest.raises(ZeroDivisionError):
            do(trials, lambda trial: 1 / 0)
        assert not trials.ended()
        assert do(trials, lambda trial: 1.0)
    with pytest.raises(Pruned), task(tmp_path, trials=1, task="named"):
        raise Pruned("what is raised is the reason")
    assert (tmp_path / "tasks/named/status").read_text() == "failed\nPruned: what is raised is the reason\n"


def test_seconds_are_counted_over_the_lives_of_a_task(tmp_path: Path) -> None:
    """A job that is requeued would never come to the end of its budget."""

    def work(trial: Trial) -> float:
        time.sleep(0.02)
        return 1.0

    for most in (2, None):
        with task(tmp_path, seconds=0.09, task="job") as trials:
            while (most is None or len(trials.ended()) < most) and do(trials, work):
                pass
            seconds = [ended.facts["seconds"] for ended in trials.ended()]
    assert sum(seconds[:-1]) < 0.09 <= sum(seconds)


def test_places_are_filled_by_the_right_direction(tmp_path: Path) -> None:
    """Of a loss, the search would go after the largest."""
    tmp_path.mkdir(exist_ok=True)
    near = {}
    for higher_is_better in (True, False):
        folder = tmp_path / str(higher_is_better)
        folder.mkdir()
        budget = SearchConfig(trials=30)
        trials = Trials(folder, budget, SPACE, {"x": 0.5, "width": 8}, {}, higher_is_better=higher_is_better)
        with trials:
            while do(trials, lambda trial: trial.settings["x"]):
                pass
            late = [ended.settings["x"] for ended in trials.ended()[NUM_RANDOM:]]
        near[higher_is_better] = sum(late) / len(late)
    assert near[False] < 0.4 < 0.6 < near[True]


def test_overwriting_a_search_spares_files_of_the_users(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """Notes on what was searched, or a member that was trained in the folder, would be deleted."""
    folder = Path(shutil.copytree(whole, tmp_path / "search"))
    again = dataclasses.replace(settings(prepared, folder, trials=1), overwrite=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"search holds notes.txt, which no search wrote, so the folder is"):
        search.search(again)
    (folder / "notes.txt").unlink()
    assert search.search(again)["trials"] == 1
