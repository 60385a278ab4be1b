"""A training of trees that was killed, stopped or damaged resumes, and ends with the same bits as an uninterrupted one."""

import os
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tree_members
from tree_members import SCRIPT, Start, interrupt, model, wait_for_trees, words

from ensemble import folders
from ensemble.errors import UserError
from ensemble.trees import boosting, train
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.predict import library_module
from ensemble.trees.settings import FREE_TO_CHANGE, SearchConfig, TreesConfig

SETTINGS: dict[str, Any] = {
    "num_rounds": 60, "early_stopping_rounds": 25, "learning_rate": 0.05, "threads": 1, "chunk_rounds": 7,
    "checkpoint_s": 0.0,
}  # fmt: skip
LONG = {**SETTINGS, "num_rounds": 400, "early_stopping_rounds": 400}


def config(library: str, data: Path, out: Path, **settings: Any) -> TreesConfig:
    return tree_members.config_of(library, data, out, **{**SETTINGS, **settings})


def start_script(start: Start, library: str, data: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    return start([SCRIPT, *words(library=library, data=data, out=out, **LONG), *arguments])


# Chunks


def test_where_chunks_end_changes_nothing_but_the_draws(library: str, prepared: Path, tmp_path: Path) -> None:
    """A training in chunks would stop elsewhere, or grow other trees, than one without."""
    everything = {"row_fraction": 1.0, "column_fraction": 1.0, "early_stopping_rounds": 9, "learning_rate": 0.2}
    for name, chunk_rounds in (("chunks", 4), ("whole", 1000)):
        train.train(config(library, prepared, tmp_path / name, chunk_rounds=chunk_rounds, **everything))
    assert (tmp_path / "chunks/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert model(tmp_path / "chunks") == model(tmp_path / "whole")
    assert len((tmp_path / "chunks/metrics.jsonl").read_text().splitlines()) < SETTINGS["num_rounds"], (
        "choose other settings"
    )


def test_no_two_chunks_draw_alike() -> None:
    """The trees of two seeds would be the same, shifted by a chunk, and scores of several seeds would not be independent."""
    seeds = [boosting.chunk_seed(seed, chunk) for seed in range(30) for chunk in range(30)]
    assert len(set(seeds)) == len(seeds)
    assert max(seeds) < 2**30


def test_interrupted_anywhere_it_ends_with_the_same_bits(library: str, prepared: Path, tmp_path: Path) -> None:
    """A requeued job would end with another model, or early stopping would count from the checkpoint only."""
    train.train(config(library, prepared, tmp_path / "whole"))
    lines = (tmp_path / "whole/metrics.jsonl").read_text()
    num_chunks = (len(lines.splitlines()) - 1) // SETTINGS["chunk_rounds"]
    assert num_chunks >= 3, "choose settings that need more trees"
    out = tmp_path / "again"
    interrupt(config(library, prepared, out))
    for _ in range(num_chunks - 1):
        assert not out.exists()
        interrupt(config(library, prepared, out), 1, "last")
    train.train(config(library, prepared, out), "auto")
    assert model(out) == model(tmp_path / "whole")
    assert (out / "metrics.jsonl").read_text() == lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "whole"]


# Processes that are killed and stopped


def test_killed_by_force_it_ends_with_the_same_bits(library: str, prepared: Path, tmp_path: Path, start: Start) -> None:
    """The state that a library keeps in memory would be lost, or a half-written file would prevent the resume."""
    for num_trees in (10, 60):
        process = start_script(start, library, prepared, tmp_path / "killed", "--resume", "auto")
        wait_for_trees([process], tmp_path / "killed", num_trees)
        process.kill()
        process.wait()
        assert (tmp_path / "killed.checkpoint/status").read_text() == "running\n"
    process = start_script(start, library, prepared, tmp_path / "killed", "--resume", "auto")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "continuing after " in errors
    train.train(config(library, prepared, tmp_path / "whole", **{**LONG, "checkpoint_s": 1000.0}))
    assert model(tmp_path / "killed") == model(tmp_path / "whole")
    killed, whole = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("killed", "whole"))
    assert killed == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]


@pytest.mark.parametrize(
    ("library", "number"),
    [("xgboost", signal.SIGTERM), ("xgboost", signal.SIGINT), ("xgboost", signal.SIGUSR1), ("lightgbm", signal.SIGTERM)],
)
def test_a_signal_saves_and_leaves(
    library: str, number: signal.Signals, prepared: Path, tmp_path: Path, start: Start
) -> None:
    """A preempted job would lose its trees, or look like one that failed."""
    # No checkpoint is due in time: only the signal can have written one
    endless = words(checkpoint_s=1000, num_rounds=20000, early_stopping_rounds=20000)
    process = start_script(start, library, prepared, tmp_path / "out", *endless)
    while "of 20000 trees" not in (line := process.stderr.readline()):
        assert line, process.communicate()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert (tmp_path / "out.checkpoint/status").read_text() == "preempted\n"
    assert len(Checkpoints(tmp_path / "out", "").all()) == 1
    assert not (tmp_path / "out").exists()


# What a checkpoint is checked for


def test_a_damaged_checkpoint_is_named_and_passed_over(
    library: str, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit would become part of the model, or the library would crash at every restart."""
    train.train(config(library, prepared, tmp_path / "whole"))
    settings = config(library, prepared, tmp_path / "out")
    interrupt(settings, 3)
    newest, before = Checkpoints(settings.out, "").all()
    assert (newest.name, before.name) == ("trees-00000021", "trees-00000014")
    file = newest / library_module(library).FILE
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    shutil.copytree(tmp_path / "out.checkpoint", tmp_path / "both.checkpoint")
    train.train(settings, "last")
    printed = capsys.readouterr()
    assert f"skipped a damaged checkpoint, which is now damaged-{newest.name}: " in printed.out
    assert "continuing after 14 trees" in printed.err
    assert model(tmp_path / "out") == model(tmp_path / "whole")

    (tmp_path / "both.checkpoint" / before.name / "state.json").write_text("{}")
    train.train(config(library, prepared, tmp_path / "both"), "auto")
    assert "continuing after" not in capsys.readouterr().err
    assert model(tmp_path / "both") == model(tmp_path / "whole")


def test_a_signal_while_the_member_is_written_does_not_end_the_training(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR1 would kill a training that is complete, and after SIGTERM or Ctrl-C its status would be failed."""
    write_member = train.write_member

    def signalled(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_member(*arguments)

    monkeypatch.setattr(train, "write_member", signalled)
    assert train.train(config("xgboost", prepared, tmp_path / "out"))["status"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_of_the_users_stay_beside_the_checkpoints(prepared: Path, tmp_path: Path) -> None:
    """Notes and copies in OUT.checkpoint would be deleted when the training ends, resumes, or starts again."""
    settings = config("xgboost", prepared, tmp_path / "out")
    interrupt(settings, 3)
    folder = tmp_path / "out.checkpoint"
    newest = Checkpoints(settings.out, "").all()[0]
    copy = shutil.copytree(newest, folder / f"{newest.name}-mine")
    users = [folder / "notes.txt", folder / ".hidden", folder / "more/notes.txt", newest / "notes.txt"]
    (folder / "more").mkdir()
    for file in users:
        file.write_text("mine")
    (folder / ".trees-00000099.writing-0123abcd").mkdir()
    train.train(settings, "auto")
    assert [file.read_text() for file in users] == ["mine"] * 4
    assert sorted(file.name for file in folder.iterdir()) == [
        ".hidden", "more", "notes.txt", newest.name, copy.name,
    ]  # fmt: skip


@pytest.mark.parametrize("resume", ["", "auto"])
def test_a_file_in_place_of_the_checkpoints_is_kept(resume: str, prepared: Path, tmp_path: Path) -> None:
    """The training would end with a traceback, or replace a file of the user, such as the weights of another program."""
    (tmp_path / "out.checkpoint").write_text("weights")
    with pytest.raises(UserError, match=r"out\.checkpoint is a file, but must be a folder: move it, or name another out="):
        train.train(config("xgboost", prepared, tmp_path / "out"), resume)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["weights"]


def test_a_training_resumes_only_on_request(prepared: Path, tmp_path: Path) -> None:
    """A command without --resume would delete the trees of a day, or a new training would be mixed with an old one."""
    settings = config("xgboost", prepared, tmp_path / "out")
    with pytest.raises(
        UserError, match=r"there is no checkpoint to resume from in .*out\.checkpoint: start without --resume"
    ):
        train.train(settings, "last")
    assert list(tmp_path.iterdir()) == []
    interrupt(settings, 2)
    kept = [folder.name for folder in Checkpoints(settings.out, "").all()]
    with pytest.raises(UserError, match=r"holds a training that was not finished: add --resume auto .*overwrite=true"):
        train.train(settings)
    assert [folder.name for folder in Checkpoints(settings.out, "").all()] == kept
    train.train(config("xgboost", prepared, tmp_path / "out", overwrite=True, seed=5))
    train.train(config("xgboost", prepared, tmp_path / "fresh", seed=5))
    assert model(tmp_path / "out") == model(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "out"]


@pytest.mark.parametrize("resume", ["auto", ""])
def test_one_command_trains_a_member_at_a_time(
    resume: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is submitted twice would delete the files that the other one is writing."""
    settings = config("xgboost", prepared, tmp_path / "out")
    monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.2)
    checkpoints = Checkpoints(settings.out, "")
    with checkpoints.locked():
        checkpoints.clear()  # as a training does that starts anew
        with pytest.raises(UserError, match=r"another command is training .*out, with checkpoints in .*: wait until it has"):
            train.train(settings, resume)
    train.train(settings, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_first_member_of_a_new_folder_is_locked_too(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is requeued while its old processes are ending would write the same checkpoints as they do."""
    monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.2)
    settings = config("xgboost", prepared, tmp_path / "new/members/out")
    with Checkpoints(settings.out, "").locked(), pytest.raises(UserError, match=r"another command is training .*out, with"):
        train.train(settings, "auto")
    inside = config("xgboost", prepared, prepared / "new/out")
    with pytest.raises(UserError, match=r"lies inside .*, which is prepared data"):
        train.train(inside, "auto")
    assert not (prepared / "new").exists()


def test_a_replaced_member_does_not_come_back(tmp_path: Path) -> None:
    """After a kill during overwrite=true, the old member would stay, hidden, and be restored if the new one is deleted."""
    out, hidden = tmp_path / "out", tmp_path / ".out.old-1234abcd"
    for folder in (out, hidden):
        folder.mkdir()
        folders.write_manifest(folder, {"kind": train.KIND})
    (hidden / "notes.txt").touch()
    Checkpoints(out, "").sweep()
    assert hidden.exists(), "a file of the user's is kept"
    (hidden / "notes.txt").unlink()
    Checkpoints(out, "").sweep()
    assert list(tmp_path.iterdir()) == [out]


def test_a_command_that_waited_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that ends without a checkpoint deletes its folder: the next one would hold a lock on the deleted folder."""
    with ExitStack() as first:
        first.enter_context(Checkpoints(tmp_path / "out", "").locked())
        monkeypatch.setattr("time.sleep", lambda seconds: first.close())
        with Checkpoints(tmp_path / "out", "").locked():
            monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.0)
            with pytest.raises(UserError, match="another command is training"), Checkpoints(tmp_path / "out", "").locked():
                pass
    assert not list(tmp_path.iterdir())


def test_other_settings_and_data_are_refused(prepared: Path, prepared_copy: Path, tmp_path: Path) -> None:
    """Half of the trees would be trained with other settings than those in the member's config.json."""
    interrupt(config("xgboost", prepared, tmp_path / "out"))
    for name, value in (("learning_rate", 0.07), ("seed", 1), ("chunk_rounds", 8)):
        with pytest.raises(
            UserError, match=rf"was written with {name}={SETTINGS.get(name, 0)} \(now {value}\): use those again"
        ):
            train.train(config("xgboost", prepared, tmp_path / "out", **{name: value}), "auto")
    manifest = folders.read_manifest(prepared_copy)
    (prepared_copy / folders.NAME).unlink()
    folders.write_manifest(prepared_copy, {**manifest, "config": {**manifest["config"], "shares": [0.1, 0.1, 0.1, 0.7]}})
    with pytest.raises(UserError, match="was trained on other prepared data"):
        train.train(config("xgboost", prepared_copy, tmp_path / "out"), "auto")
    free = {
        "threads": 2, "memory": "low", "checkpoint_s": 3.0, "timeout_s": 7.0, "overwrite": True, "together": "side_by_side",
        "search": SearchConfig(seed=3), "max_seconds": 1e6,
    }  # fmt: skip
    assert {*free, "data", "verify", "out", "folds"} == set(FREE_TO_CHANGE)
    assert train.train(config("xgboost", prepared, tmp_path / "out", **free), "auto")["status"] == "done"


def test_the_checkpoint_of_another_library_is_refused(prepared: Path, tmp_path: Path) -> None:
    """The user would get a traceback with the name of a missing file."""
    interrupt(config("xgboost", prepared, tmp_path / "out"))
    for library in ("lightgbm", "linear"):
        with pytest.raises(UserError, match=rf"was written with library=xgboost \(now {library}\).*: use those again"):
            train.train(config(library, prepared, tmp_path / "out"), "auto")


def test_threads_do_not_change_the_trees(library: str, prepared: Path, tmp_path: Path) -> None:
    """A job that is requeued on a node with fewer cores would end with another model."""
    for num_threads in (1, 2):
        train.train(config(library, prepared, tmp_path / str(num_threads), threads=num_threads))
    assert model(tmp_path / "1") == model(tmp_path / "2")


def test_a_finished_member_is_kept(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is requeued after its last line would fail, or train the same member again."""
    settings = config("xgboost", prepared, tmp_path / "out")
    output = train.train(settings)
    before = (tmp_path / "out/manifest.json").stat().st_mtime_ns
    (tmp_path / "out.checkpoint").mkdir()  # killed before it was cleared away
    (tmp_path / ".out.writing-0123abcd").mkdir()
    assert train.train(settings, "auto") == output
    assert (tmp_path / "out/manifest.json").stat().st_mtime_ns == before
    assert "is complete already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(UserError, match=r"exists already: choose another folder, or add overwrite=true"):
        train.train(config("xgboost", prepared, tmp_path / "out", seed=1), "auto")


def test_a_checkpoint_that_cannot_be_written_stops_the_training(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the training would go on for hours without a checkpoint to resume from."""
    settings = config("xgboost", prepared, tmp_path / "out")
    write_manifest = folders.write_manifest

    def no_room(folder: Path, content: dict[str, Any]) -> Any:
        if folder.name.startswith(".trees-00000014"):
            raise OSError(28, os.strerror(28))
        return write_manifest(folder, content)

    monkeypatch.setattr(folders, "write_manifest", no_room)
    with pytest.raises(
        UserError, match=r"trees-00000014 cannot be written \(.*No space left.*\): free disk space, and continue"
    ):
        train.train(settings)
    status, reason = (tmp_path / "out.checkpoint/status").read_text().splitlines()
    assert status == "failed"
    assert "cannot be written" in reason
    assert [folder.name for folder in Checkpoints(settings.out, "").all()] == ["trees-00000007"]
    monkeypatch.undo()
    assert train.train(settings, "last")["status"] == "done"
