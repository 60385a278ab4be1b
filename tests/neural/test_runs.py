"""The status of a run that ended, in whatever order ranks write it; tests/launch/test_failures.py has real ranks."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import Accelerator
from toy import Toy

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import launch, loop, runs
from ensemble.neural.heartbeat import RankLost
from ensemble.neural.settings import TrainConfig

LOST = RankLost("rank 1 of 2 (host there, pid 7) died")
FAILED = UserError("the loss is nan:\nlower learning_rate")
STATUS_OF = {
    LOST: ["lost", "rank 1 of 2 (host there, pid 7) died"],
    FAILED: ["failed", "rank 1 of 2 (host here): the loss is nan: lower learning_rate"],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs.socket, "gethostname", lambda: "here")
    runs.set_status(tmp_path, "running")
    return tmp_path


def end(run: Path, error: BaseException, rank: int) -> None:
    accelerator: Any = SimpleNamespace(process_index=rank, num_processes=2)
    with pytest.raises(type(error)), runs.status_on_error(run, accelerator):
        raise error


def status(run: Path) -> list[str]:
    return (run / "status").read_text().splitlines()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LOST, STATUS_OF[LOST]),
        (FAILED, STATUS_OF[FAILED]),
        (ValueError("a row\nis damaged"), ["failed", "rank 1 of 2 (host here): ValueError: a row is damaged"]),
        (KeyboardInterrupt(), ["failed", "rank 1 of 2 (host here): KeyboardInterrupt"]),
        (RuntimeError("[gloo/x.cc:5] reset"), ["lost", "rank 1 of 2 (host here): RuntimeError: [gloo/x.cc:5] reset"]),
    ],
    ids=repr,
)
def test_the_status_is_lost_or_failed_with_a_reason(error: BaseException, expected: list[str], run: Path) -> None:
    """A job would be requeued to fail again, or a run of weeks would be given up because a machine died."""
    end(run, error, 1)
    assert status(run) == expected


@pytest.mark.parametrize("errors", [(LOST, FAILED), (FAILED, LOST)], ids=["lost, failed", "failed, lost"])
def test_a_failure_replaces_lost_in_any_order(errors: tuple[Exception, ...], run: Path) -> None:
    """The other ranks lose the rank that failed: the status would not show the error."""
    for error in errors:
        end(run, error, int(error is FAILED))
    assert status(run) == STATUS_OF[FAILED]


@pytest.mark.parametrize("written_before", [0, 1], ids=["before lost", "after lost"])
def test_a_failure_during_the_write_of_another_rank_is_not_lost(
    written_before: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of a rank that fails while another writes `lost` would be overwritten."""
    write = runs.folders.write_text

    def write_and_fail(path: Path, text: str) -> None:
        monkeypatch.setattr(runs.folders, "write_text", write)
        if written_before:
            write(path, text)
        end(run, FAILED, 1)
        if not written_before:
            write(path, text)

    monkeypatch.setattr(runs.folders, "write_text", write_and_fail)
    end(run, LOST, 0)
    assert status(run) == STATUS_OF[FAILED]


def test_a_run_that_is_done_is_not_lost(run: Path) -> None:
    """A rank that dies at exit would make a finished run start again."""
    runs.set_status(run, "done")
    end(run, LOST, 0)
    assert status(run) == ["done"]


def test_a_full_disk_does_not_hide_the_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`No space left on device` would replace the error, or an incomplete status would stay."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs.folders, "sync", full)
    end(run, FAILED, 1)
    end(run, LOST, 0)
    assert status(run) == ["running"]
    assert [path.name for path in run.iterdir()] == ["status"]


@pytest.mark.parametrize("name", ["trial", "newest"])
def test_a_run_named_as_a_part_of_a_refit_has_a_status(name: str, tmp_path: Path) -> None:
    """Beside a config.json, as in a folder of Hugging Face, it would have no status, and replace a file of the user."""
    for file in ("config.json", "status"):
        (tmp_path / file).write_text("mine")
    (tmp_path / name).mkdir()
    runs.set_status(tmp_path / name, "running")
    assert (status(tmp_path / name), status(tmp_path)) == (["running"], ["mine"])


@pytest.mark.parametrize("content", ['{"model_type": "bert"}', '{"data": "x", "out": "y", "num_rounds": 9}', "[1]", "mine"])
def test_files_of_another_program_are_not_replaced(content: str, config: TrainConfig, accelerator: Accelerator) -> None:
    """With --resume auto, a tree member or a model of Hugging Face would lose its config.json, without a message."""
    file = Path(config.out, "config.json")
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(UserError, match="exists already: choose another out"):
        loop.train(Toy(), config, accelerator, "auto")
    assert file.read_text() == content


def test_weights_without_a_checkpoint_are_deleted_when_a_run_starts_again(
    config: TrainConfig, accelerator: Accelerator
) -> None:
    """The run would end with the best score, step and weights of the killed one, even with other settings."""
    seldom = dataclasses.replace(config, checkpoint_steps=100)
    toy = Toy(scores=lambda number: 1.0)
    toy.crash_at = 9
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, seldom, accelerator)
    assert Path(config.out, "best").is_dir()
    toy = Toy()
    toy.crash_at = 2
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, dataclasses.replace(seldom, learning_rate=1e-7), accelerator, "auto")
    assert not Path(config.out, "best").exists()


def test_a_run_that_is_continued_is_not_done(config: TrainConfig, accelerator: Accelerator) -> None:
    """A finished run that was killed while more epochs were trained would predict with unfinished weights, silently."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    longer, killed = dataclasses.replace(config, max_epochs=3), Toy()
    killed.crash_at = 5
    with pytest.raises(KeyboardInterrupt):
        loop.train(killed, longer, accelerator, "last", override=True)
    with pytest.raises(UserError, match=r"run is not complete, its status is running: continue it with --resume last"):
        launch.to_predict([Path(config.out)])
    loop.train(Toy(), longer, accelerator, "last")
    assert folders.read_json(Path(config.out, "summary.json"))["status"] == "done"


def test_a_finished_run_without_checkpoints_is_kept(config: TrainConfig, accelerator: Accelerator) -> None:
    """A job that is submitted again after its checkpoints were deleted, to save space, would delete its best weights."""
    loop.train(Toy(), config, accelerator)
    shutil.rmtree(Path(config.out, "checkpoints"))
    for resume in ("auto", "last"):
        with pytest.raises(UserError, match=r"run is complete, and has no checkpoint to continue from: choose another out"):
            loop.train(Toy(), config, accelerator, resume)
    assert status(Path(config.out)) == ["done"]
    for name in ("", "best", "final"):
        folders.verify(Path(config.out, name))


def test_checkpoints_are_sufficient_to_resume(config: TrainConfig, accelerator: Accelerator) -> None:
    """A copy of the checkpoints alone could not be resumed: `auto` advised `last`, and `last` to delete the folder."""
    killed = Toy()
    killed.crash_at = 8
    with pytest.raises(KeyboardInterrupt):
        loop.train(killed, config, accelerator)
    run = Path(config.out)
    for path in set(run.iterdir()) - {run / "checkpoints"}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=r"exists already: .*, or add --resume last to continue from its last checkpoint"):
        loop.train(Toy(), config, accelerator, "auto")
    toy = Toy()
    assert loop.train(toy, config, accelerator, "last")["status"] == "done"
    assert toy.num_micro_batches == 1 + 12 - 6, "it starts at the checkpoint"


@pytest.mark.parametrize("name", ["best", "final"])
@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_damaged_weights_are_written_again(
    file: str, name: str, config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run could not be resumed, or would end with weights that cannot be loaded."""
    toy = Toy()
    loop.train(toy, config, accelerator)
    Path(config.out, name, file).write_text("{")
    loop.train(toy, config, accelerator, "last")
    assert f"skipping a damaged checkpoint, renamed to damaged-{name}: " in capsys.readouterr().out
    folders.verify(Path(config.out, name))


def test_a_link_to_a_folder_that_does_not_exist_yet_stays_a_link(config: TrainConfig, accelerator: Accelerator) -> None:
    """On a cluster `runs/a` is a link to a larger disk: a training would be refused with `File exists`, as no fit is."""
    out = Path(config.out)
    out.symlink_to(out.with_name("disk"))
    loop.train(Toy(), config, accelerator)
    assert out.is_symlink()
    assert (out.with_name("disk") / "status").read_text() == "done\n"
