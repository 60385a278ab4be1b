"""Checkpoints, and bitwise exact resuming after signals, crashes and damage."""

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from toy import NUM_ROWS, WIDTH, Toy, checkpoints, last, lines, same_checkpoints, tensors

from ensemble import folders
from ensemble.errors import UserError
from ensemble.neural import checkpoint, loop, optim, runs, setup
from ensemble.neural.loader import BatchPlan
from ensemble.neural.settings import TrainConfig

torch.set_num_threads(1)


def crash(toy: Toy, at_micro_batch: int, *arguments: Any, **options: Any) -> None:
    """Train until a crash in a micro-batch; `loop.train` gets the other arguments."""
    toy.crash_at = at_micro_batch
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, *arguments, **options)


# Resuming


RESUMED = {
    "whole batches": {},
    "accumulation": {"micro_batch_size": 4},
    "moving average": {"ema_decay": 0.9, "micro_batch_size": 8},
    "workers": {"num_workers": 2},
    "between evaluations": {"checkpoint_steps": 2},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("changed", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("crash_at_step", [4, 6, 11])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    changed: dict[str, Any],
    crash_at_step: int,
    config: TrainConfig,
    accelerator: Accelerator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of rows, dropout, momentum, learning rate, moving average or carried state would be reset."""
    config = dataclasses.replace(config, **changed)
    if config.precision == "bf16":
        monkeypatch.setattr(accelerator.state, "_mixed_precision", "bf16")
        monkeypatch.setattr(accelerator, "native_amp", True)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    uninterrupted = loop.train(Toy(dropout=0.3, carries_state=True), whole, accelerator)
    plan = BatchPlan(NUM_ROWS, 16, config.micro_batch_size, 1, 0, 0)
    crash(Toy(dropout=0.3, carries_state=True), 1 + len(list(plan.micro_batches(0, crash_at_step - 1))), config, accelerator)
    every = config.checkpoint_steps or 3
    assert last(config).name == f"step-{(crash_at_step - 1) // every * every:08d}"
    failed = f"failed\nrank 0 of 1 (host {socket.gethostname()}): KeyboardInterrupt\n"
    assert Path(config.out, "status").read_text() == failed
    torch.manual_seed(99)
    resumed = loop.train(Toy(dropout=0.3, carries_state=True), config, accelerator, "last")
    assert not list(Path(config.out).glob(".*")), (
        "if the run is lost next, its status would be the reason of the previous failure"
    )
    assert resumed["steps"] == uninterrupted["steps"] == 12
    assert "carry.0.memory" in tensors(last(whole))
    assert same_checkpoints(whole, config)
    for name in ("best", "final"):
        actual_weights, expected_weights = (load_file(Path(run.out, name, "model.safetensors")) for run in (config, whole))
        assert all(torch.equal(actual_weights[key], expected_weights[key]) for key in expected_weights)
    steps = [(line["kind"], line["step"]) for line in lines(config)]
    assert steps == [(line["kind"], line["step"]) for line in lines(whole)], "a step is twice in metrics.jsonl"
    assert [line.get("loss") for line in lines(config)] == [line.get("loss") for line in lines(whole)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("at_step", [2, 3])
def test_a_signal_saves_the_current_step(
    number: int, at_step: int, config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Preemption would lose the steps since the last checkpoint, or the evaluation at that step."""
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    loop.train(Toy(dropout=0.3), whole, accelerator)
    toy = Toy(dropout=0.3)
    toy.at_micro_batch = {1 + at_step: lambda: (os.kill(os.getpid(), number), time.sleep(0.3))}
    summary = loop.train(toy, config, accelerator)
    assert (summary["status"], summary["steps"]) == ("preempted", at_step)
    assert Path(config.out, "status").read_text() == "preempted\n"
    assert not Path(config.out, "final").exists()
    # After the evaluation that the preemption postponed, before another checkpoint
    crash(Toy(dropout=0.3), 1, config, accelerator, "auto")
    assert loop.train(Toy(dropout=0.3), config, accelerator, "auto")["status"] == "done"
    assert Path(config.out, "status").read_text() == "done\n"
    assert same_checkpoints(whole, config)
    assert [line.get("score") for line in lines(config)] == [line.get("score") for line in lines(whole)]


def test_signals_are_handled_before_the_status_is_running(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job script forwards a signal when the status is `running`: a rank without a handler would die without saving."""
    set_status, before = runs.set_status, signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def set_and_warn(run: Path, status: runs.Status, reason: str = "") -> None:
        set_status(run, status, reason)
        if status == "running":
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.3)

    monkeypatch.setattr(runs, "set_status", set_and_warn)
    try:
        summary = loop.train(Toy(), config, accelerator)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (summary["status"], summary["steps"]) == ("preempted", 1)


def test_early_stopping_keeps_the_best_and_holds_after_a_resume(config: TrainConfig, accelerator: Accelerator) -> None:
    """`best` would be the last weights, or --resume of a stopped run would continue it."""
    config = dataclasses.replace(config, max_epochs=10, patience=2)
    scores = {1: 0.1, 2: 0.4, 3: 0.3, 4: 0.4}
    summary = loop.train(Toy(scores=lambda evaluation: scores[evaluation]), config, accelerator)
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 6, 0.4)
    best = json.loads(Path(config.out, "best/state.json").read_text())
    assert (best["step"], best["scores"]) == (6, {"score": 0.4})
    progress = json.loads((last(config) / "state.json").read_text())["progress"]
    assert [progress[name] for name in ("step", "best_step", "evaluations_since_best")] == [12, 6, 2]
    before = tensors(last(config))
    assert loop.train(Toy(), config, accelerator, "last")["steps"] == 12
    after = tensors(last(config))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_score_that_is_nan_ends_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """Without positive rows in the validation split the score is NaN: no weights would be stored as the best."""
    with pytest.raises(
        UserError,
        match="score of the validation split is nan at step 3, but it must be finite to compare models: prepare data",
    ):
        loop.train(Toy(scores=lambda _: math.nan), config, accelerator)


def test_patience_is_counted_across_a_resume(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run that is interrupted often would never stop early, or replace `best` by a worse one."""
    config = dataclasses.replace(config, max_epochs=10, patience=3)
    crash(Toy(scores=lambda evaluation: -float(evaluation)), 8, config, accelerator)
    summary = loop.train(Toy(scores=lambda evaluation: -10.0), config, accelerator, "last")
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 3, -1.0)


def test_resuming_with_other_settings_or_data_is_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run would continue with other settings or data, or start from scratch despite --resume."""
    with pytest.raises(UserError, match=r"no checkpoint to resume from in .*run: start without --resume"):
        loop.train(Toy(), config, accelerator, "last")
    assert not Path(config.out).exists()
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    with pytest.raises(UserError, match=r"exists already: choose another out=…, or add --resume"):
        loop.train(Toy(), config, accelerator)
    changed = dataclasses.replace(config, learning_rate=0.1)
    sentence = (
        r"written with max_epochs=1 \(now 4\), learning_rate=0.05 \(now 0.1\): give the previous values, or add --resume-o"
    )
    with pytest.raises(UserError, match=sentence):
        loop.train(Toy(), changed, accelerator, "last")
    toy = Toy()
    toy.fingerprint = "f2"
    with pytest.raises(UserError, match="trained on other prepared data"):
        loop.train(toy, dataclasses.replace(config, max_epochs=1), accelerator, "last")
    Path(config.out, "notes.txt").write_text("not of this project")
    Path(config.out, "config.json").unlink()
    with pytest.raises(UserError, match="exists already"):
        loop.train(Toy(), config, accelerator, "auto")


def test_settings_that_may_change_when_a_run_is_resumed(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run could not continue with fewer workers, or --resume-override would use the previous learning rate."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1, schedule="constant"), accelerator)
    elsewhere = dataclasses.replace(config, max_epochs=1, schedule="constant", micro_batch_size=4, log_every=2, data="moved")
    assert loop.train(Toy(), elsewhere, accelerator, "last")["steps"] == 3
    changed = dataclasses.replace(config, max_epochs=2, schedule="constant", learning_rate=0.01)
    toy = Toy()
    assert loop.train(toy, changed, accelerator, "last", override=True)["steps"] == 6
    assert toy.recorder.rates == pytest.approx([0.01] * 3)
    assert json.loads(Path(config.out, "config.json").read_text())["learning_rate"] == 0.01


def test_other_trained_parameters_begin_with_new_optimizers(
    config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments are stored by position: those of one layer would be those of another, in memory of another size."""

    class Frozen(Toy):
        def model(self) -> torch.nn.Module:
            model = super().model()
            model[0].requires_grad_(False)
            return model

        def optimizers(self, model: torch.nn.Module, *settings: float) -> list[torch.optim.Optimizer]:
            return [optim.adamw(model, *settings)]

    class Thawed(Frozen):
        def model(self) -> torch.nn.Module:
            return Toy.model(self)

    averaged = dataclasses.replace(config, ema_decay=0.5)
    loop.train(Frozen(), dataclasses.replace(averaged, max_epochs=1), accelerator)
    assert loop.train(Thawed(), averaged, accelerator, "last", override=True)["steps"] == 12
    assert "other parameters are trained than before: optimizers and moving average" in capsys.readouterr().out
    again = dataclasses.replace(averaged, max_epochs=5)
    assert loop.train(Thawed(), again, accelerator, "last", override=True)["steps"] == 15
    assert "other parameters" not in capsys.readouterr().out


def test_the_best_weights_after_a_checkpoint_count_on_other_ranks(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """best/ would hold weights of a step that is lost, while the summary names an earlier step and a worse score."""
    seldom = dataclasses.replace(config, checkpoint_steps=5)
    crash(Toy(scores=lambda number: float(number)), 9, seldom, accelerator)
    state = last(config) / "state.json"
    assert last(config).name == "step-00000005"
    description = json.loads(state.read_text())
    description["progress"]["ranks"] = 2
    state.write_text(json.dumps(description))
    (last(config) / folders.NAME).unlink()
    folders.write_manifest(last(config), {"kind": "checkpoint"})
    summary = loop.train(Toy(scores=lambda number: -1.0), seldom, accelerator, "last")
    assert (summary["best_step"], summary["validation_score"]) == (6, 2.0)
    assert json.loads(Path(config.out, "best/state.json").read_text())["step"] == 6


def test_copies_of_checkpoints_are_left_alone(config: TrainConfig, accelerator: Accelerator) -> None:
    """A copy that a user has made would end the training, or be resumed in place of the newest checkpoint."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=2), accelerator)
    copies = [last(config).with_name(f"step-{number}-mine") for number in ("00000001", "99999999")]
    for copy in copies:
        shutil.copytree(last(config), copy)
    assert loop.train(Toy(), config, accelerator, "last", override=True)["steps"] == 12
    assert all(copy.is_dir() for copy in copies)


def test_the_time_limit_is_kept_between_lines_of_the_log(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With long steps a run would exceed its limit by `log_every` steps."""
    toy = Toy()
    monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=lambda: 30.0 * toy.num_micro_batches))
    limited = dataclasses.replace(config, max_seconds=130.0, log_every=100, batch_size=2)  # 19 steps until an evaluation
    assert loop.train(toy, limited, accelerator)["steps"] == 4


def test_a_new_moving_average_starts_at_the_restored_weights(config: TrainConfig, accelerator: Accelerator) -> None:
    """The moving average would start at random initial weights, and validation scores would fall."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    weights = load_file(last(config) / "model.safetensors")
    with_average = dataclasses.replace(config, max_epochs=1.3, ema_decay=0.5, learning_rate=1e-30)
    loop.train(Toy(), with_average, accelerator, "last", override=True)
    averaged = load_file(Path(config.out, "final/model.safetensors"))
    assert all(torch.allclose(averaged[name], weights[name], atol=1e-6) for name in weights)


def test_resume_auto_starts_without_a_checkpoint_and_resumes_with_one(config: TrainConfig, accelerator: Accelerator) -> None:
    """A job that is requeued before its first checkpoint would fail at each start."""
    Path(config.out).mkdir()
    Path(config.out, ".config.json.writing-1").touch()  # left by a kill at the start
    crash(Toy(), 2, config, accelerator, "auto")
    assert not Path(config.out, "checkpoints").exists()
    crash(Toy(), 5, config, accelerator, "auto")
    toy = Toy()
    assert loop.train(toy, config, accelerator, "auto")["steps"] == 12
    assert len(toy.recorder.seen) == 9


def test_a_run_with_a_limit_of_time_ends_where_fewer_epochs_end(config: TrainConfig, accelerator: Accelerator) -> None:
    """After more steps than the new settings have, the next one would have no batch: an error that names a variable."""
    limited = dataclasses.replace(config, max_seconds=1e6)
    crash(Toy(), 9, limited, accelerator)
    fewer = dataclasses.replace(limited, max_epochs=1)
    assert loop.train(Toy(), fewer, accelerator, "last", override=True)["steps"] == 6


def test_one_command_trains_in_a_folder_at_a_time(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is submitted twice would delete the files that the other one is writing."""
    monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.2)
    crash(Toy(), 5, config, accelerator)
    out = Path(config.out)
    with (
        folders.locked(out, "training in"),
        pytest.raises(UserError, match=r"another command is training in .*: wait until"),
    ):
        loop.train(Toy(), config, accelerator, "auto")
    assert loop.train(Toy(), config, accelerator, "auto")["status"] == "done"


@pytest.mark.parametrize("resume", ["", "auto"])
def test_a_run_that_ended_while_a_command_waited_is_not_overwritten(
    resume: str, config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that is submitted twice, the second would replace the finished run of the first one by a new one."""
    locked = folders.locked

    def locked_later(*arguments: Any) -> Any:
        monkeypatch.setattr(folders, "locked", locked)
        loop.train(Toy(), config, accelerator)
        return locked(*arguments)

    monkeypatch.setattr(folders, "locked", locked_later)
    with pytest.raises(UserError, match="exists already"):
        loop.train(Toy(), config, accelerator, resume)
    assert Path(config.out, "status").read_text() == "done\n"


def test_a_new_run_from_a_read_only_checkpoint_can_delete_its_copy(
    config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """The run would fail when it deletes its oldest checkpoint, since the copy of the first one would be read-only."""
    loop.train(Toy(), dataclasses.replace(config, keep_last=9), accelerator)
    step_3 = Path(config.out, "checkpoints/step-00000003")
    for path in (*step_3.iterdir(), step_3):
        path.chmod(0o555)
    crash(Toy(), 1, dataclasses.replace(config, out=str(tmp_path / "branch")), accelerator, str(step_3))
    copy = tmp_path / "branch" / "checkpoints" / step_3.name
    assert all(path.stat().st_mode & 0o200 for path in (copy, *copy.iterdir()))
    assert checkpoint.newest_intact(tmp_path / "branch", print) == copy


def test_a_new_run_can_start_from_the_checkpoint_of_another(
    config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """To try another learning rate from step 6 on, the first run would have to be overwritten."""
    loop.train(Toy(), dataclasses.replace(config, keep_last=9), accelerator)
    branch = dataclasses.replace(config, out=str(tmp_path / "branch"), learning_rate=0.001)
    step_6 = str(Path(config.out, "checkpoints/step-00000006"))
    before = tensors(last(config))
    crash(Toy(scores=lambda _: -100.0), 2, branch, accelerator, step_6, override=True)
    toy = Toy(scores=lambda _: -100.0)
    assert loop.train(toy, branch, accelerator, "auto", override=True)["steps"] == 12
    assert len(toy.recorder.seen) == 6
    assert json.loads(Path(branch.out, "best/state.json").read_text())["step"] == 9, (
        "the best of the new run, not of the first one"
    )
    with pytest.raises(UserError, match=r"holds weights only: resume from a folder in .*checkpoints"):
        loop.train(Toy(), dataclasses.replace(branch, out=branch.out + "2"), accelerator, str(Path(config.out, "best")))
    assert not Path(branch.out + "2").exists()
    run = str(Path(config.out))
    with pytest.raises(UserError, match=r"is the folder of a run: name a checkpoint in .*checkpoints"):
        loop.train(Toy(), dataclasses.replace(branch, out=branch.out + "2"), accelerator, run)
    other_batches = dataclasses.replace(branch, out=branch.out + "2", batch_size=2 * branch.batch_size)
    with pytest.raises(UserError, match="its steps are counted in such batches: give the previous value"):
        loop.train(Toy(), other_batches, accelerator, step_6, override=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(last(config)).items())
    with pytest.raises(UserError, match="exists already"):
        loop.train(Toy(), branch, accelerator, step_6, override=True)


def test_a_new_run_without_steps_left_has_weights(config: TrainConfig, accelerator: Accelerator, tmp_path: Path) -> None:
    """A run would be done without a folder best/, and could not predict."""
    loop.train(Toy(), config, accelerator)
    again = dataclasses.replace(config, out=str(tmp_path / "again"))
    assert loop.train(Toy(), again, accelerator, str(last(config)))["best_step"] == 12
    assert (tmp_path / "again" / "best" / "model.safetensors").exists()


# Checkpoints


def test_a_checkpoint_holds_no_pickle(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint from a stranger could run code."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was written or read")

    for name in ("torch.load", "torch.save", "pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps"):
        monkeypatch.setattr(name, refuse)
    config = dataclasses.replace(config, max_epochs=1)
    loop.train(Toy(), config, accelerator)
    loop.train(Toy(), config, accelerator, "last")
    files = sorted(path.name for path in last(config).iterdir())
    assert files == ["manifest.json", "model.safetensors", "state.json", "state.safetensors"]


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "state.json", "state.safetensors"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(
    file: str, config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit would end a run, or it would continue with damaged weights."""
    loop.train(Toy(dropout=0.3), config, accelerator)
    expected, before, newest = tensors(last(config)), last(config).with_name("step-00000009"), last(config)
    intact = (newest / file).read_bytes()
    flipped = [
        intact[:position] + bytes([intact[position] ^ 1]) + intact[position + 1 :]
        for position in np.linspace(0, len(intact) - 2, 40).astype(int)
    ]
    for content in (*flipped, intact[:-2], intact[: len(intact) // 2], b"", None):
        if content is None:
            (newest / file).unlink()
        else:
            (newest / file).write_bytes(content)
        assert checkpoint.newest_intact(Path(config.out), print) == before
        output = capsys.readouterr().out
        assert "skipping a damaged checkpoint, renamed to damaged-step-00000012" in output
        assert f"step-00000012/{file}" in output
        newest.with_name("damaged-step-00000012").rename(newest)
    loop.train(Toy(dropout=0.3), config, accelerator, "auto")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(last(config)).items())


def test_old_checkpoints_are_deleted_except_those_to_keep(config: TrainConfig, accelerator: Accelerator) -> None:
    """A long run would fill the disk, or lose the checkpoints of keep_steps."""
    loop.train(Toy(), dataclasses.replace(config, checkpoint_steps=1, keep_last=2, keep_steps=5), accelerator)
    assert checkpoints(config) == [f"step-{step:08d}" for step in (5, 10, 11, 12)]


def test_incomplete_folders_of_a_killed_run_are_deleted(config: TrainConfig, accelerator: Accelerator) -> None:
    """Temporary folders of a job that is killed often would fill the disk, or `best` would be lost between two renames."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    out = Path(config.out)
    weights = (out / "best/model.safetensors").read_bytes()
    for folder in (
        "checkpoints/.step-00000006.writing-0123abcd",
        "checkpoints/.step-00000001.old",
        ".final.writing-0123abcd",
    ):
        (out / folder).mkdir()
        (out / folder / "model.safetensors").write_bytes(b"half")
    (out / "best").rename(out / ".best.old-0123abcd")
    users = ("checkpoints/.notes", ".gitignore", "checkpoints/step-00000001/notes.txt")
    for name in users:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    loop.train(Toy(), config, accelerator, "last", override=True)
    assert sorted(str(path.relative_to(out)) for path in out.rglob(".*")) == [".gitignore", "checkpoints/.notes"]
    assert all((out / name).read_text() == "mine" for name in users)
    assert weights != (out / "best/model.safetensors").read_bytes()


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_keeps_the_previous_one(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would continue for days without checkpoints, if the error of the background thread were lost."""
    save_file = checkpoint.save_file

    def fail_later(tensors: Any, file: Path, metadata: Any = None) -> None:
        if "step-00000006" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, file, metadata)

    monkeypatch.setattr(checkpoint, "save_file", fail_later)
    with pytest.raises(
        UserError, match=r"step-00000006 cannot be written \(.*No space left on device\): free disk space, .* --resume auto"
    ):
        loop.train(Toy(), config, accelerator)
    assert checkpoints(config)[0] == "step-00000003"
    assert "step-00000006" not in checkpoints(config)
    word, reason = Path(config.out, "status").read_text().splitlines()
    assert word == "failed"
    assert reason.startswith(f"rank 0 of 1 (host {socket.gethostname()}): {config.out}/checkpoints/step-00000006 cannot be")


def test_the_weights_of_another_model_are_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """A changed model would end in PyTorch's long list of key names."""
    config = dataclasses.replace(config, max_epochs=1)
    loop.train(Toy(), config, accelerator)
    toy = Toy()
    toy.model = lambda: torch.nn.Linear(WIDTH, 3)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="holds the weights of another model"):
        loop.train(toy, config, accelerator, "last")
