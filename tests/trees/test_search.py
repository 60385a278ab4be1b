"""A search for settings: reproducible, shared by tasks, resumed after kills, and with scores that trainings confirm."""

import csv
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from matplotlib.figure import Figure
from tree_members import ROOT, SCRIPT, Start, config_of, words

from ensemble import configuration, folders
from ensemble.errors import PREEMPTED, UserError
from ensemble.trees import search, train
from ensemble.trees.distributed import RankInfo
from ensemble.trees.settings import SearchConfig, TreesConfig
from ensemble.trees.trials import JOURNAL, NUM_RANDOM, Range, Trial, Trials

NUM_TRIALS = NUM_RANDOM + 3
QUICK: dict[str, Any] = {"num_rounds": 12, "early_stopping_rounds": 6, "chunk_rounds": 4, "threads": 1, "learning_rate": 0.1}


def settings(data: Path, out: Path, library: str = "xgboost", **of_search: Any) -> TreesConfig:
    return config_of(library, data, out, search=SearchConfig(**{"trials": NUM_TRIALS, **of_search}), **QUICK)


def tried(out: Path) -> list[dict[str, str]]:
    """The table of a search's trials, without the seconds."""
    with open(out / "trials.csv", encoding="utf-8", newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that was not interrupted."""
    out = tmp_path_factory.mktemp("whole") / "search"
    search.search(settings(prepared, out))
    return out


@pytest.fixture
def start_search(prepared: Path, start: Start) -> Start:
    """Starts the script with a folder and further arguments."""

    def start_search(out: Path, *arguments: str) -> subprocess.Popen[str]:
        line = [SCRIPT, *words(data=prepared, out=out, **QUICK), f"search.trials={NUM_TRIALS}", *arguments]
        return start(line)

    return start_search


def num_ended(out: Path) -> int:
    """The number of trials of which the journal has a score."""
    journal = out / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum('"state":1' in line or '"state":2' in line for line in lines)


def num_begun(out: Path) -> int:
    return (out / JOURNAL).read_text().count('"op_code":4')


def entries(out: Path) -> list[dict[str, Any]]:
    """The complete lines of the journal, to which processes may be writing."""
    return [json.loads(line) for line in (out / JOURNAL).read_text().split("\n")[:-1]]


def is_at_work(out: Path, name: str) -> bool:
    """Whether the task `name` has begun a trial and not ended it."""
    attributes = [(entry["trial_id"], entry["user_attr"]) for entry in entries(out) if entry["op_code"] == 8]
    begun = {trial for trial, attribute in attributes if attribute.get("owner", {}).get("name") == name}
    ended = {entry["trial_id"] for entry in entries(out) if entry["op_code"] == 6 and entry["state"] != 0}
    return bool((begun & {trial for trial, attribute in attributes if "place" in attribute}) - ended)


def stop_at_work(process: subprocess.Popen[str], out: Path, name: str) -> None:
    """Send SIGSTOP to a task while it has a trial."""
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


# Results


def test_the_seed_determines_the_trials(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """A search could not be repeated, or all seeds would give the same trials."""
    search.search(settings(prepared, tmp_path / "again"))
    assert tried(tmp_path / "again") == tried(whole)
    assert (tmp_path / "again/best.yaml").read_bytes() == (whole / "best.yaml").read_bytes()
    search.search(settings(prepared, tmp_path / "other", seed=1, trials=3))
    assert tried(tmp_path / "other")[0] == tried(whole)[0], "the given settings are the first trial with any seed"
    assert all(one != other for one, other in zip(tried(tmp_path / "other")[1:], tried(whole)[1:], strict=False))


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_training_with_the_best_settings_has_the_score_of_the_trial(library: str, prepared: Path, tmp_path: Path) -> None:
    """A trial would have other bins, trees or settings than the training with best.yaml."""
    summary = search.search(settings(prepared, tmp_path / "search", library, trials=4))
    file = tmp_path / "search/best.yaml"
    best = configuration.load(TreesConfig, file, words(data=prepared, out=tmp_path / "member", threads=1))
    assert best.library == library
    assert train.train(best)["validation_average_precision"] == summary["best"]
    assert summary["best"] >= summary["given"]
    # The last trial was trained on bins that other trials had used
    row = tried(tmp_path / "search")[3]
    tried_settings = {name: int(row[name]) if name == "max_leaves" else float(row[name]) for name in search.RANGES}
    last_words = words(data=prepared, out=tmp_path / "last", threads=1, **tried_settings)
    last = configuration.load(TreesConfig, file, last_words)
    assert train.train(last)["validation_average_precision"] == float(row["score"])


def test_settings_stay_within_their_ranges_and_cover_them(whole: Path) -> None:
    """The search would try only a part of a range, or values outside of it."""
    for name, span in search.RANGES.items():
        values = [float(row[name]) for row in tried(whole)[1:]]
        assert span.low <= min(values) < max(values) <= span.high
        assert len(set(values)) > len(values) // 2


def test_a_finished_search_leaves_only_its_results(whole: Path) -> None:
    """Locks, pages and status files would stay beside the results."""
    assert {file.name for file in whole.iterdir()} == {"best.yaml", "search.png", JOURNAL, "trials.csv"}


# Kills and signals


def test_a_search_that_was_killed_resumes_with_the_same_trials(whole: Path, start_search: Any, tmp_path: Path) -> None:
    """A SIGKILL or SIGTERM would lose a trial, count one twice, or change later trials."""
    out, arguments = tmp_path / "search", ("search.task=job-7", "search.lost_after_s=12", "--resume", "auto")
    for number, stop in ((2, signal.SIGKILL), (6, signal.SIGTERM)):
        process = start_search(out, *arguments)
        wait_until(process, lambda number=number: num_ended(out) >= number)  # type: ignore[misc]
        if stop == signal.SIGKILL:
            kill_at_work(process, out, "job-7")
        else:
            os.killpg(process.pid, stop)
        process.communicate(timeout=240)
        assert process.returncode == (PREEMPTED if stop == signal.SIGTERM else -stop)
        status = (out / "tasks/job-7/status").read_text()
        assert status == ("preempted\n" if stop == signal.SIGTERM else "running\n")
    process = start_search(out, *arguments)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "learning_rate" in printed
    assert tried(out) == tried(whole)
    assert not (out / "tasks").exists()


def test_tasks_share_a_budget_and_continue_after_one_is_killed(start_search: Any, tmp_path: Path) -> None:
    """Three tasks would run more or fewer trials than `search.trials`, or wait for ever for a dead task."""
    out = tmp_path / "search"

    def begin(name: str) -> subprocess.Popen[str]:
        return start_search(out, "search.lost_after_s=20", f"search.task={name}", "--resume", "auto")

    lost = begin("a")
    wait_until(lost, lambda: (out / JOURNAL).exists())
    stop_at_work(lost, out, "a")  # the others could be done before it has begun
    tasks = [begin("b"), begin("c")]
    wait_until(tasks[0], lambda: num_ended(out) >= 3)
    os.killpg(lost.pid, signal.SIGKILL)
    for task in tasks:
        _, errors = task.communicate(timeout=240)
        assert task.returncode == 0, errors
    rows = tried(out)
    assert [int(row["trial"]) for row in rows] == list(range(NUM_TRIALS)), "a trial was lost, or run twice"
    assert num_ended(out) == NUM_TRIALS
    assert len({row["l2"] for row in rows}) == NUM_TRIALS
    # In the journal each trial ends once, and none is still running
    ends = Counter(entry["trial_id"] for entry in entries(out) if entry["op_code"] == 6 and entry["state"] != 0)
    assert set(ends.values()) == {1}
    assert len(ends) == num_begun(out) == NUM_TRIALS + 1, "the trial of the killed task too"
    whole = [row for row in rows if row["pruned"] == "0"]
    best = configuration.read_yaml(out / "best.yaml")
    assert str(best["l2"]) == max(whole, key=lambda row: float(row["score"]))["l2"]


def test_an_incomplete_last_line_is_removed(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """After a full disk, no task could read the journal."""
    out = tmp_path / "search"
    search.search(settings(prepared, out, trials=2))
    with open(out / JOURNAL, "ab") as journal:
        journal.write(b'{"op_code":4,"worker')
    search.search(settings(prepared, out), "auto")
    assert tried(out) == tried(whole)


def test_a_damaged_journal_is_named(prepared: Path, tmp_path: Path) -> None:
    """A traceback of the library would be the only message."""
    (tmp_path / JOURNAL).write_text("nothing of the kind\nnor this\n")
    with pytest.raises(UserError, match=r"trials\.journal is damaged"):
        search.search(settings(prepared, tmp_path), "auto")


# Refusals


def test_a_search_is_joined_only_on_request_and_with_equal_settings(
    whole: Path, prepared: Path, prepared_copy: Path
) -> None:
    """Trials of other data or settings would be mixed, or a search that took hours would be overwritten."""
    before = num_begun(whole)
    with pytest.raises(UserError, match="holds a search: add --resume auto"):
        search.search(settings(prepared, whole))
    with pytest.raises(UserError, match="with library=xgboost"):
        search.search(settings(prepared, whole, "lightgbm"), "auto")
    with pytest.raises(UserError, match=r"search\.seed=0 \(now 4\)"):
        search.search(settings(prepared, whole, seed=4), "auto")
    manifest = {name: value for name, value in folders.read_manifest(prepared_copy).items() if name != "files"}
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "note": "other data"})
    with pytest.raises(UserError, match="with data="):
        search.search(settings(prepared_copy, whole), "auto")
    assert num_begun(whole) == before == NUM_TRIALS
    assert not (whole / "tasks").exists()


def test_a_search_that_cannot_start_is_refused(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user would get a traceback, or a search would be written to a folder with other files."""
    with pytest.raises(UserError, match="no search to join"):
        search.search(settings(prepared, tmp_path / "none"), "last")
    with pytest.raises(UserError, match=r"search lies inside .* which is prepared data"):
        search.search(settings(prepared, prepared / "search"))
    assert not (prepared / "search").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="files that no search wrote"):
        search.search(settings(prepared, tmp_path), "auto")
    with monkeypatch.context() as patch:
        patch.setattr(search.rows, "tree_manifest", lambda data: {"splits": {"train": {}}})
        with pytest.raises(UserError, match=r"has no validation split, which search.trials .* need: leave them out"):
            search.search(settings(prepared, tmp_path / "folds"))
    assert not (tmp_path / "folds").exists()
    with pytest.raises(UserError, match="not by 2 ranks"):
        search.search(settings(prepared, tmp_path / "search"), "", RankInfo(0, 2, "", 0))
    for seconds in (0.0, math.inf):
        with pytest.raises(
            UserError, match=rf"search\.lost_after_s={seconds} is impossible: it must be more than 0, and fin"
        ):
            search.search(settings(prepared, tmp_path / "search", lost_after_s=seconds))
    for name in ("..", ".", "a/b"):  # its folder is deleted when the task ends
        with pytest.raises(UserError, match=r"search.task='?.+'? is impossible: it must be a name without / that does not"):
            search.search(settings(prepared, tmp_path / "search", task=name))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file/search cannot be written .*: name another out="):
        search.search(settings(prepared, tmp_path / "file/search"))
    assert not (tmp_path / "search").exists()


def test_without_optuna_the_error_names_the_package() -> None:
    """Without the optional dependency the user would get a traceback."""
    code = "import sys; sys.modules['optuna'] = None\nfrom ensemble.trees import trials"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UserError: a search needs Optuna: pip install 'accelerate-ensemble[search]'" in done.stderr


# The trials without trainings

SPACE = {"x": Range(0.0, 1.0, False), "width": Range(1, 100, True)}


def task(folder: Path, higher_is_better: bool = True, **budget: Any) -> Trials:
    folder.mkdir(exist_ok=True)
    return Trials(folder, SearchConfig(**budget), SPACE, {"x": 0.5, "width": 8}, {"data": "d"}, higher_is_better)


def never() -> int:
    return 0


def run_next(trials: Trials, work: Callable[[Trial], float]) -> bool:
    """Take a trial and run it; False if there is none."""
    trial = trials.take(never)
    if trial:
        trials.run(trial, lambda trial: (work(trial), {"trees": 1}))
    return trial is not None


def test_two_tasks_never_run_the_same_trial(tmp_path: Path) -> None:
    """Half of the time would be wasted, in particular on the random trials at the beginning."""
    with task(tmp_path, trials=4) as one, task(tmp_path, trials=4) as other:
        taken = [trials.take(never) for trials in (one, other, one, other)]
        assert [trial.place for trial in taken if trial] == [0, 1, 2, 3]
        assert len({trial.settings["x"] for trial in taken if trial}) == 4


def test_the_trial_of_a_dead_task_is_repeated_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trial would be missing, or would count twice if the task was not dead but suspended."""
    with task(tmp_path, trials=3, lost_after_s=1000) as sleeper, task(tmp_path, trials=3, lost_after_s=1000) as other:
        lost = sleeper.take(never)
        assert lost
        assert run_next(other, lambda trial: 1.0)
        long_ago = time.time() - 2000
        os.utime(tmp_path / "tasks" / sleeper.name / "status", (long_ago, long_ago))
        again = other.take(never)
        assert again
        assert (again.place, again.settings) == (lost.place, lost.settings)
        sleeper.run(lost, lambda _: (9.0, {}))
        assert "trial 0 was considered lost, and another task repeats it" in capsys.readouterr().err
        other.run(again, lambda _: (2.0, {}))
        assert run_next(other, lambda trial: 3.0)
        assert not run_next(other, lambda trial: 4.0)
        assert [(ended.place, ended.score) for ended in other.ended()] == [(0, 2.0), (1, 1.0), (2, 3.0)]


def test_a_trial_with_a_low_score_is_pruned_and_counts(tmp_path: Path) -> None:
    """Poor settings would be trained to their end, or their place would be tried again for ever."""

    def work(trial: Trial) -> float:
        score = 0.1 if trial.place == NUM_RANDOM else 0.5 + trial.place / 100
        trial.report(score, 0)
        if trial.place == NUM_RANDOM:
            pytest.fail("it was to be pruned")
        return score

    with task(tmp_path, trials=NUM_RANDOM + 1) as trials:
        while run_next(trials, work):
            pass
        assert [ended.pruned for ended in trials.ended()] == [False] * NUM_RANDOM + [True]
        assert trials.ended()[-1].score == 0.1


def test_trials_are_compared_after_as_many_trees_times_rate(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials with a high learning rate would be compared after more progress, and those with a low one would be pruned."""
    reports: list[tuple[int, float]] = []
    monkeypatch.setattr(Trial, "report", lambda self, score, rung: reports.append((rung, score)))
    config = settings(prepared, tmp_path / "search", trials=1)
    config = dataclasses.replace(config, learning_rate=0.2, chunk_rounds=10, metric="log_loss")
    search.search(config)
    train.train(dataclasses.replace(config, out=str(tmp_path / "member"), search=SearchConfig()))
    lines = (tmp_path / "member/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["log_loss"] for line in lines]
    assert reports == [(0, min(losses[:5])), (1, min(losses[:10]))]
    assert reports[0][1] > reports[1][1], "choose other settings"


def test_an_error_frees_the_place(tmp_path: Path) -> None:
    """A trial that failed would count as completed."""
    with task(tmp_path, trials=1) as trials:
        with pytest.raises(ZeroDivisionError):
            run_next(trials, lambda trial: 1 / 0)
        assert not trials.ended()
        assert run_next(trials, lambda trial: 1.0)
    with pytest.raises(optuna.TrialPruned), task(tmp_path, trials=1, task="named"):
        raise optuna.TrialPruned("what is raised is the reason")
    assert (tmp_path / "tasks/named/status").read_text() == "failed\nTrialPruned: what is raised is the reason\n"


def test_the_seconds_of_all_runs_of_a_task_are_added(tmp_path: Path) -> None:
    """A job that is requeued would never reach the end of its budget."""

    def work(trial: Trial) -> float:
        time.sleep(0.02)
        return 1.0

    for most in (2, None):
        with task(tmp_path, seconds=0.09, task="job") as trials:
            while (most is None or len(trials.ended()) < most) and run_next(trials, work):
                pass
            seconds = [ended.facts["seconds"] for ended in trials.ended()]
    assert sum(seconds[:-1]) < 0.09 <= sum(seconds)


def test_a_metric_is_maximised_or_minimised(tmp_path: Path) -> None:
    """With a loss, the search would look for the largest."""
    near = {}
    for higher_is_better in (True, False):
        with task(tmp_path / str(higher_is_better), higher_is_better, trials=30) as trials:
            while run_next(trials, lambda trial: trial.settings["x"]):
                pass
            late = [ended.settings["x"] for ended in trials.ended()[NUM_RANDOM:]]
        near[higher_is_better] = sum(late) / len(late)
    assert near[False] < 0.4 < 0.6 < near[True]


def results_of(folder: Path, scores: Sequence[float]) -> dict[str, Any]:
    """The results of a search whose trials have these losses."""
    budget = SearchConfig(trials=len(scores))
    config = config_of("xgboost", Path("data"), folder, search=budget, metric="root_mean_squared_error")
    first = {name: getattr(config, name) for name in search.RANGES}
    with Trials(folder, budget, search.RANGES, first, {}, higher_is_better=False) as trials:
        while run_next(trials, lambda trial: scores[trial.place]):
            pass
        return search.write_results(folder, trials, config, "fingerprint")


def test_without_a_best_tenth_there_is_no_importance(tmp_path: Path) -> None:
    """Optuna would warn, and the picture would show equal importances of all settings, as if they had been measured."""
    assert results_of(tmp_path, [0.5] + [1.0] * (search.MIN_FOR_IMPORTANCE - 1))["best"] == 0.5


def test_scores_in_a_small_unit_differ(tmp_path: Path) -> None:
    """All scores of a target that is measured in a large unit would be shown as 0.0000."""
    table = results_of(tmp_path, [3e-7, 1.5e-7, 2e-7])["table"]
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["1", "1.5e-07"], ["2", "2e-07"], ["0", "3e-07"]]
    assert "1.5e-07, 3e-07 with the given settings\n" in (tmp_path / "best.yaml").read_text()


def test_overwriting_a_search_keeps_files_of_the_users(whole: Path, prepared: Path, tmp_path: Path) -> None:
    """Notes about the search, or a member that was trained in the folder, would be deleted."""
    folder = Path(shutil.copytree(whole, tmp_path / "search"))
    again = dataclasses.replace(settings(prepared, folder, trials=1), overwrite=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"search holds notes.txt, which no search wrote, so the folder is"):
        search.search(again)
    (folder / "notes.txt").unlink()
    assert search.search(again)["trials"] == 1


def test_a_folder_that_was_looked_at_is_empty(prepared: Path, tmp_path: Path) -> None:
    """A new folder, which a file manager had shown, would be taken for one with files of the user."""
    (tmp_path / ".DS_Store").touch()
    assert search.search(settings(prepared, tmp_path, trials=1))["trials"] == 1


def test_a_search_that_was_killed_while_it_drew_can_be_replaced(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete picture, or a lock that was being released, would be taken for a file of the user, and overwrite=true
    refused for ever."""

    def savefig(figure: Figure, file: Path, **_: Any) -> None:
        file.write_bytes(b"half")
        for name in (JOURNAL, "claim"):
            (tmp_path / "search" / f"{name}.lock5f0c.rename").touch()
        shutil.copytree(tmp_path / "search", tmp_path / "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        search.search(settings(prepared, tmp_path / "search", trials=1))
    again = dataclasses.replace(settings(prepared, tmp_path / "killed", trials=1), overwrite=True)
    assert search.search(again)["trials"] == 1
    assert not [file.name for file in (tmp_path / "killed").glob(".*")]


def test_a_search_is_not_replaced_while_it_runs(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal would be deleted under a running task, which would lose its trials and end with a traceback."""
    config = settings(prepared, tmp_path / "search", trials=1)

    def savefig(figure: Figure, file: Path, **_: Any) -> None:
        monkeypatch.undo()
        with pytest.raises(UserError, match="another command is searching in"):
            search.search(dataclasses.replace(config, overwrite=True))
        file.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    assert search.search(config)["trials"] == 1


def test_a_task_may_start_while_another_one_does(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tasks of an array, one that begins as another writes the journal would end with an error."""
    folder, iterdir = tmp_path / "search", Path.iterdir
    folder.mkdir()

    def with_journal(path: Path) -> Iterator[Path]:
        if path == folder:
            (folder / JOURNAL).touch()
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", with_journal)
    assert search.search(settings(prepared, folder, trials=1), "auto")["trials"] == 1
