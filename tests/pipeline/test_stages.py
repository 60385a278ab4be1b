"""A fit in stages, as on a cluster: the same bits as in one process, no work done twice, and errors of one sentence."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from fits import bits, configured, fit, people, planned, snapshot

from ensemble import folders
from ensemble.errors import UserError
from ensemble.pipeline import network, run, stages
from ensemble.pipeline.plan import PlannedMember, Preempted
from ensemble.trees import single_copy, train
from ensemble.trees.boosting import CannotLearn, Stopped

NUM_TASKS = 4
"""For six copies: a task has one or two of them."""


@pytest.fixture
def config(table: Path, tmp_path: Path) -> Any:
    return configured(table, tmp_path / "out")


def run_stages(config: Any) -> None:
    stages.run("prepare", config, "table")
    for task in range(NUM_TASKS):
        stages.run("copies", config, "table", task, NUM_TASKS)
    for task in range(2):
        stages.run("members", config, "table", task, 2)


def test_stages_make_the_same_ensemble(
    config: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster would give another ensemble than one machine, leave files behind, or do all the work twice."""
    fit(table, tmp_path / "local")
    run_stages(config)
    printed = capsys.readouterr().err
    assert "already" not in printed, "a task did the work of another"
    assert sorted(line for line in printed.splitlines() if line.startswith("trained")) == [
        f"trained: copy {copy} of {tmp_path}/out/members/{name}" for copy in range(3) for name in ("lightgbm", "xgboost")
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fit.json", "members", "network.words", "prepared"]
    assert sorted(path.name for path in (tmp_path / "out/members").iterdir()) == ["lightgbm", "xgboost"]
    times_before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.is_file()}
    run_stages(config)  # as after a job that was requeued at its end
    board = fit(table, tmp_path / "out", resume=True)
    assert "grown" not in capsys.readouterr().err
    changed = [file for file, time in times_before.items() if file.stat().st_mtime_ns != time]
    assert {file.name for file in changed} <= {"fit.json", "network.words"}
    assert [row["member"] for row in board][-1] == "base rate"
    expected, result = bits(tmp_path / "local"), bits(tmp_path / "out")
    assert expected.keys() == result.keys()
    assert [name for name in result if result[name] != expected[name] and "predictions/" not in name] == []


def test_members_of_earlier_data_are_trained_again(config: Any, table: Path, tmp_path: Path) -> None:
    """The stage members would end with the advice to add overwrite=true, which stages refuse, or keep the old members."""
    run_stages(config)
    shutil.rmtree(tmp_path / "out/prepared")
    people().tail(-5).write_csv(table)
    run_stages(config)
    fingerprint = folders.read_manifest(tmp_path / "out/prepared")["fingerprint"]
    assert not [member for member in (tmp_path / "out/members").iterdir() if run.is_stale(member, fingerprint)]


def test_the_words_of_the_neural_member(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster would train the network with other settings than a fit does, or wait for one that is not planned."""
    stages.run("prepare", config, "table")
    assert (tmp_path / "out/network.words").read_text() == ""
    neural = PlannedMember(name="mlp", kind="neural", settings={"batch_size": 64})
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: [*planned("lightgbm"), neural])
    stages.run("prepare", config, "table")
    words = (tmp_path / "out/network.words").read_text().splitlines()
    out = tmp_path / "out"
    assert words == ["--recipe", "table", "seed=0", "batch_size=64", f"data={out}/prepared", f"out={out}/members/mlp"]


def test_members_of_a_follow_up_are_left_to_the_fit(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task would look for data that are made from predictions of members which are still being trained."""
    later = dataclasses.replace(planned("xgboost")[0], data="candidates")
    monkeypatch.setattr(run, "plan", lambda manifest, num_threads: [*planned("lightgbm"), later])
    run_stages(config)
    assert [path.name for path in (tmp_path / "out/members").iterdir()] == ["lightgbm"]


def test_a_module_of_the_report_that_fails_is_no_matter_of_the_training(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder for temporary files, a fit would print a traceback of Matplotlib, long before the sentence."""
    stages.run("prepare", config, "table")
    monkeypatch.setattr(train, "train", lambda config, resume: {"status": "done"})
    monkeypatch.setattr(run, "LATER_MODULES", ("ensemble.none",))
    stages.run("members", config, "table")


def test_a_stopped_task_is_preempted(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was warned would look like one that failed, and not be requeued."""
    stages.run("prepare", config, "table")

    def stopped(*words: Any) -> None:
        raise Stopped

    monkeypatch.setattr(single_copy, "train_copy", stopped)
    monkeypatch.setattr(train, "train", lambda config, resume: {"status": "preempted"})
    for stage in ("copies", "members"):
        with pytest.raises(Preempted, match="lightgbm"), stages.status_kept(str(tmp_path / "task")):
            stages.run(stage, config, "table")
        assert (tmp_path / "task/status").read_text() == "preempted\n"
    seen = []

    def wrong(*words: Any) -> None:
        seen.append((tmp_path / "task/status").read_text())
        raise UserError("a mistake")

    monkeypatch.setattr(single_copy, "train_copy", wrong)
    with pytest.raises(UserError), stages.status_kept(str(tmp_path / "task")):
        stages.run("copies", config, "table")
    assert seen[0] == "running\n"
    assert (tmp_path / "task/status").read_text() == "failed\n"
    with stages.status_kept(""):
        pass
    with pytest.raises(UserError, match=r"status cannot be written \(.+\): name another"), stages.status_kept(__file__):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "people.csv", "task"]


def test_what_a_library_refuses_is_left_out(config: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A library that cannot be trained on the rows would end all stages, but not a fit on one machine."""
    stages.run("prepare", config, "table")

    def refused(*words: Any) -> None:
        raise CannotLearn("lightgbm cannot learn from the folds")

    monkeypatch.setattr(single_copy, "train_copy", refused)
    monkeypatch.setattr(train, "train", refused)
    for stage in ("copies", "members"):
        stages.run(stage, config, "table")
        assert capsys.readouterr().err.count("warning: lightgbm cannot learn from the folds\n") == {"copies": 6}.get(
            stage, 2
        )


def test_a_complete_network_is_not_trained_again(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last job of a fit, on a node without GPUs, would train the network again that another job has trained."""
    options: list[list[str]] = []
    monkeypatch.setattr(network, "run_command", lambda command, environment: options.append(command[-2:]) or 0)
    folder, member = tmp_path / "mlp", PlannedMember(name="mlp", kind="neural")
    manifest = {"recipe": "table", "splits": {"train": {"rows": 100}}}
    folder.mkdir()
    (folder / "status").write_text("running\n")
    folders.write_manifest(folder, {"kind": "run"}, only=())
    for status, number in (("running", 1), ("done", 1)):
        (folder / "status").write_text(f"{status}\n")
        assert network.train(member, tmp_path, folder, manifest, config, 1, 0.0, True)
        assert options == [["--resume", "auto"]] * number
    assert "mlp is complete already" in capsys.readouterr().err
    (folder / folders.NAME).unlink()  # as in a run that is not complete
    assert network.train(member, tmp_path, folder, manifest, config, 1, 0.0, True)
    assert len(options) == 2


@pytest.mark.parametrize(
    ("stage", "settings", "task", "sentence"),
    [
        ("prepare", {"time_limit": 60.0}, (0, 1), "--stage needs time_limit=0 and no overwrite=true"),
        ("prepare", {"overwrite": True}, (0, 1), "--stage needs time_limit=0 and no overwrite=true"),
        ("copies", {}, (4, 4), "--task 4 --num-tasks 4 is impossible"),
        ("copies", {}, (-1, 4), "--task -1 --num-tasks 4 is impossible"),
        ("copies", {}, (0, 1), "fit.json does not exist"),
        ("members", {"num_draws": 0}, (0, 1), "num_draws=0 is impossible"),
    ],
)
def test_a_mistake(
    stage: str, settings: dict[str, Any], task: tuple[int, int], sentence: str, table: Path, tmp_path: Path
) -> None:
    """A task would train another part than its own, or end with a traceback."""
    with pytest.raises(UserError, match=sentence):
        stages.run(stage, configured(table, tmp_path / "out", **settings), "table", *task)
    assert [path.name for path in tmp_path.iterdir()] == ["people.csv"]


def test_tasks_need_the_settings_of_their_preparation(config: Any, table: Path, tmp_path: Path) -> None:
    """Half of the copies would be of another target."""
    stages.run("prepare", config, "table")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"out was fitted with other settings: give the same \(seed=0, not 1\)"):
        stages.run("copies", configured(table, tmp_path / "out", seed=1), "table")
    fit(table, tmp_path / "other", seed=1)
    (tmp_path / "out/prepared").rename(tmp_path / "aside")
    (tmp_path / "other/prepared").rename(tmp_path / "out/prepared")
    with pytest.raises(
        UserError, match=r"prepared does not belong to this fit: prepare the data again with --stage prepare"
    ):
        stages.run("copies", config, "table")
    assert snapshot(tmp_path / "aside") == {
        name.removeprefix("out/prepared/"): content for name, content in before.items() if name.startswith("out/prepared/")
    }
