"""The refit of a network: the rows and the first weights of each part, and the state after a kill or a signal."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from toy import Toy, ToyRows

from ensemble import folders
from ensemble.data import inputs
from ensemble.errors import UserError
from ensemble.neural import checkpoint, launch, loop, predict, refit, runs
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.settings import TrainConfig
from ensemble.predictor import members
from ensemble.signals import StopSignals

torch.set_num_threads(1)
SIZES = {"train": 37, "validation": 11, "blend": 13}


class SplitRows(ToyRows):
    """Rows that differ from those of the other splits in their values and numbers."""

    def __init__(self, split: str):
        super().__init__(SIZES[split])
        self.first = 1000 * list(SIZES).index(split)
        self.x = self.x + self.first / 1000

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        batch = super().gather(rows, epoch)
        return {**batch, "row": batch["row"] + self.first}


class SplitToy(Toy):
    """Remembers the rows of each step, and scores the evaluations with `values` in turn."""

    def __init__(self, *values: float, **settings: Any):
        super().__init__(**settings)
        self.values, self.steps = list(values), list[list[int]]()

    def rows(self, split: str) -> Any:
        return SplitRows(split)

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        self.steps.append(batch["row"].tolist())
        return super().step(model, batch, state)

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        return {"score": self.values.pop(0)} if self.values else super().metrics(predictions)


BETTER, WORSE = (1.0, 0.5, 0.2, 0.3), (1.0, 0.5, 0.2, 0.1)
"""Scores of two evaluations of validation, of the best weights on blend, and of the trial on blend."""


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    """Two epochs of three steps, then a refit of one: three steps of the trial and four of `newest`."""
    return dataclasses.replace(config, max_epochs=2, refit_epochs=1.0, micro_batch_size=16)


def numbers(*splits: str) -> list[int]:
    """The row numbers of these splits."""
    return [1000 * list(SIZES).index(split) + row for split in splits for row in range(SIZES[split])]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_joined_rows_are_those_of_their_splits() -> None:
    """A batch would have rows of another split, or another order than requested."""
    joined = refit.JoinedRows([SplitRows(split) for split in SIZES])
    assert len(joined) == sum(SIZES.values())
    each = {name: torch.cat([SplitRows(split).gather(np.arange(SIZES[split]))[name] for split in SIZES]) for name in "xy"}
    drawn = np.random.default_rng(0).permutation(len(joined))
    for rows in (drawn, drawn[:5], np.arange(37, 48), np.arange(60, 61)):
        batch = joined.gather(rows)
        assert batch["row"].tolist() == [numbers(*SIZES)[row] for row in rows]
        assert all(torch.equal(batch[name], each[name][rows]) for name in each)


def test_joined_rows_have_the_tensors_of_all_splits_and_continue_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refit of an emulator with derivatives would end in a traceback, and one of sudoku begin again with easy puzzles."""

    def gather(self: SplitRows, rows: np.ndarray, epoch: int = 0) -> Batch:
        known = {"only_here": torch.zeros(len(rows))} if self.first == 0 else {}
        return {"epoch": torch.full((len(rows),), epoch), **known}

    monkeypatch.setattr(SplitRows, "gather", gather)
    recipe = refit.Continued(SplitToy(), Path(), ("train", "validation"), 5)
    rows = recipe.rows("train")
    assert rows.gather(np.array([0, 40]), 2)["epoch"].tolist() == [7, 7]
    assert rows.gather(np.array([0, 40])).keys() == {"epoch"}


def test_each_part_learns_its_rows_once_from_the_best_weights(config: TrainConfig, accelerator: Accelerator) -> None:
    """Blend would be learned before it is predicted, rows would be missing, or a part would start from the last weights."""
    toy, out = SplitToy(*BETTER), Path(config.out)
    summary = refit.train(toy, config, accelerator)
    parts = {"first": 6, refit.TRIAL: 3, refit.NEWEST: 4}
    steps, learned = iter(toy.steps), {}
    for part, num_steps in parts.items():
        next(steps)  # the trial of the memory
        learned[part] = sorted(row for _ in range(num_steps) for row in next(steps))
    assert learned["first"] == sorted(2 * numbers("train"))
    assert learned[refit.TRIAL] == sorted(numbers("train", "validation"))
    assert learned[refit.NEWEST] == sorted(numbers(*SIZES))
    begun = toy.recorder.seen[0][0]  # by the optimizer of the last part
    model = toy.model()
    model.load_state_dict(weights(out / "best"))
    assert torch.equal(begun, torch.nn.utils.parameters_to_vector(model.parameters()))
    assert json.loads((out / "best/state.json").read_text())["step"] == 3
    assert toy.recorder.rates == pytest.approx([0.05 * (1 - step / 4) for step in (1, 2, 3, 3.5)])
    assert summary["refit"] == {"monitor": "score", "before": 0.2, "after": 0.3, "is_better": True}
    assert json.loads((out / "summary.json").read_text()) == summary
    assert (out / "status").read_text() == "done\n"
    assert not any((out / part / "status").exists() for part in (refit.TRIAL, refit.NEWEST))
    assert not (out / refit.NEWEST / "best").exists()


def test_each_part_begins_with_the_same_loss_scale(config: TrainConfig, in_fp16: Accelerator) -> None:
    """In fp16 a part would begin with the scale of the part before, but after a kill with a new one: other bits."""
    toy = SplitToy(*BETTER)
    toy.times = 1e3  # times a loss scale of 65536, too much for gradients in fp16
    refit.train(toy, config, in_fp16)
    for part in (".", "trial", "newest"):
        lines = (Path(config.out) / part / "metrics.jsonl").read_text().splitlines()
        event = next(line["event"] for line in map(json.loads, lines) if line["kind"] == "event")
        assert event == "skipped: fp16 overflowed at a loss scale of 65536", part


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_a_trial_that_is_not_better_ends_the_refit(
    higher_is_better: bool, config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows would be predicted by weights that were worse on blend."""
    monkeypatch.setattr(SplitToy, "higher_is_better", higher_is_better)
    summary = refit.train(SplitToy(*(WORSE if higher_is_better else BETTER)), config, accelerator)
    assert not summary["refit"]["is_better"]
    assert not Path(config.out, refit.NEWEST).exists()
    assert Path(config.out, "status").read_text() == "done\n"


def test_a_trial_is_judged_by_its_last_weights(config: TrainConfig, accelerator: Accelerator) -> None:
    """`newest` would be trained for two epochs because of a trial that was better after one and worse after two."""

    class Fading(SplitToy):
        def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
            return {"score": {11: 0.3, 14: 0.1}.get(len(self.steps), 0.2)}  # after each epoch of the trial; before

    summary = refit.train(Fading(), dataclasses.replace(config, refit_epochs=2.0), accelerator)
    assert summary["refit"] == {"monitor": "score", "before": 0.2, "after": 0.1, "is_better": False}


def test_a_recipe_may_choose_the_batch_size_and_the_epochs(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default, 0, would be the batch size on blend, an error after the training; or the refit would repeat epoch 0."""
    gather, epochs = SplitRows.gather, set[int]()
    monkeypatch.setattr(SplitRows, "gather", lambda self, rows, epoch=0: epochs.add(epoch) or gather(self, rows, epoch))

    class Chooser(SplitToy):
        def choose(self, config: TrainConfig) -> TrainConfig:
            return dataclasses.replace(config, batch_size=16, max_epochs=config.max_epochs or 2.0)

    config = dataclasses.replace(config, batch_size=0, micro_batch_size=0, max_epochs=0.0)
    assert refit.train(Chooser(*BETTER), config, accelerator)["refit"]["is_better"]
    assert epochs == {0, 1, 2}


class ShortOfMemory(torch.nn.Sequential):
    """Runs out of memory with more than 4 rows in training, and more than 8 in prediction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > (4 if self.training else 8):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def test_predictions_use_the_micro_batch_that_fitted_in_training(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After hours of training, the scores of the refit or the predictions would need memory for a whole global batch."""
    toy = SplitToy(*BETTER)
    toy.model = lambda: ShortOfMemory(*SplitToy().model())  # type: ignore[method-assign]
    assert refit.train(toy, dataclasses.replace(config, micro_batch_size=0), accelerator)["refit"]["is_better"]
    sizes, gather = list[int](), SplitRows.gather
    monkeypatch.setattr(predict.NeuralMember, "recipe_of", lambda *_: toy)
    with_recipe = dataclasses.make_dataclass("_", [("recipe", Any, None)], bases=(TrainConfig,), frozen=True, kw_only=True)
    monkeypatch.setattr(predict, "config_class", lambda _: with_recipe)
    monkeypatch.setattr(inputs, "refuse_foreign", lambda *_: None)
    monkeypatch.setattr(folders, "read_manifest", lambda _: {"recipe": "toy"})
    monkeypatch.setattr(
        SplitRows, "gather", lambda self, rows, epoch=0: sizes.append(len(rows)) or gather(self, rows, epoch)
    )
    toy.columns = lambda split, arrays: arrays  # type: ignore[attr-defined]
    predict.NeuralMember(config.out, accelerator, "data", split="blend").predict("data", "blend")
    assert sizes == [4, 4, 4, 1]


def test_a_score_on_blend_that_is_nan_ends_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """Blend without positive rows would silently leave out the refit."""
    with pytest.raises(UserError, match=r"score of the weights .*best on the split blend is nan, but it must be finite"):
        refit.train(SplitToy(1.0, 0.5, np.nan), config, accelerator)


def test_a_killed_refit_ends_with_the_same_bits(config: TrainConfig, accelerator: Accelerator, tmp_path: Path) -> None:
    """A complete part would be trained again, or an incomplete one would be used."""
    config = dataclasses.replace(config, checkpoint_steps=1)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    expected = refit.train(SplitToy(), whole, accelerator)
    assert expected["refit"]["is_better"]
    for crash_at in (4, 8, 9, 12, 14):
        config = dataclasses.replace(config, out=str(tmp_path / f"crash_at_{crash_at}"))
        toy = SplitToy()
        toy.crash_at = crash_at
        with pytest.raises(KeyboardInterrupt):
            refit.train(toy, config, accelerator)
        assert Path(config.out, "status").read_text().startswith("failed\n")
        summary = refit.train(SplitToy(), config, accelerator, "auto")
        assert {**summary, "seconds": 0} == {**expected, "seconds": 0}, crash_at
        for folder in ("best", f"{refit.TRIAL}/final", f"{refit.NEWEST}/final"):
            actual, whole_run = weights(Path(config.out, folder)), weights(Path(whole.out, folder))
            assert all(torch.equal(actual[name], whole_run[name]) for name in whole_run), (crash_at, folder)


def test_the_first_training_does_not_go_on_after_the_trial_has_begun(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its limit of time, the first training would end with other best weights than the trial continues."""
    config = dataclasses.replace(config, checkpoint_steps=1)
    toy, seconds = SplitToy(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[-1])
    toy.at_micro_batch[4] = lambda: seconds.append(1000.0)  # so the third step of six is the last one
    toy.crash_at = 6  # in the second step of the trial
    with pytest.raises(KeyboardInterrupt):
        refit.train(toy, dataclasses.replace(config, max_seconds=500.0), accelerator)
    best = weights(Path(config.out, "best"))
    summary = refit.train(SplitToy(), config, accelerator, "auto")
    assert summary["steps"] == 3
    assert all(torch.equal(weights(Path(config.out, "best"))[name], tensor) for name, tensor in best.items())


def test_no_other_command_trains_in_the_folder_during_any_part(config: TrainConfig, accelerator: Accelerator) -> None:
    """A job that was submitted twice would change files and status of the run that another one is refitting."""
    toy, refused = SplitToy(*BETTER), list[int]()

    def second_command() -> None:
        try:
            with folders.locked(Path(config.out), "training in"):
                pass
        except UserError:
            refused.append(toy.num_micro_batches)

    toy.at_micro_batch = dict.fromkeys((2, 9, 13), second_command)
    refit.train(toy, config, accelerator)
    assert refused == [2, 9, 13]
    second_command()  # the lock is released at the end
    assert refused == [2, 9, 13]


@pytest.mark.parametrize("at_micro_batch", [4, 7, 10, 11, 13])
def test_a_signal_stops_the_run_in_any_part(at_micro_batch: int, config: TrainConfig, accelerator: Accelerator) -> None:
    """The next part would start after a signal to stop, or the status would not show that the run can be resumed.

    The seventh and the eleventh are the last ones of the first training and of the trial.
    """
    toy = SplitToy(*BETTER)

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while not StopSignals.active.received:  # type: ignore[union-attr]
            time.sleep(0.01)

    toy.at_micro_batch[at_micro_batch] = ask
    summary = refit.train(toy, config, accelerator)
    assert summary["status"] == "preempted"
    assert Path(config.out, "status").read_text() == "preempted\n"
    assert not Path(config.out, "manifest.json").exists()
    assert len(toy.steps) == at_micro_batch
    assert refit.train(SplitToy(), config, accelerator, "last")["status"] == "done"
    assert Path(config.out, "manifest.json").exists()


@pytest.mark.parametrize(("call", "part"), [(1, ""), (2, refit.TRIAL), (3, refit.NEWEST)])
def test_a_signal_while_a_part_is_set_up_stops_it(
    call: int, part: str, config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message would announce a stop, but the part would be trained to its end, and Slurm would kill it."""
    toy, make, calls = SplitToy(*BETTER), SplitToy.optimizers, list[int]()

    def optimizers(*arguments: Any) -> Any:
        calls.append(len(toy.steps))
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
            while not StopSignals.active.received:  # type: ignore[union-attr]
                time.sleep(0.01)
        return make(*arguments)

    monkeypatch.setattr(SplitToy, "optimizers", optimizers)
    assert refit.train(toy, config, accelerator)["status"] == "preempted"
    assert len(toy.steps) == calls[-1] + 2, "the trial of the memory and one step"
    assert Path(config.out, "status").read_text() == "preempted\n"
    assert [path.name for path in folders.checkpoints(Path(config.out, part))] == ["step-00000001"]


def test_a_signal_within_a_nested_context_counts_for_the_outer_one() -> None:
    """A signal during the last step of a part would be lost, and the next part would start."""
    with StopSignals() as outer:
        with StopSignals() as inner:
            os.kill(os.getpid(), signal.SIGUSR1)
            while not inner.received:
                time.sleep(0.01)
        assert outer.received == signal.SIGUSR1
    with StopSignals() as later:
        assert not later.received


def test_the_summary_is_not_done_before_the_refit(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed during its refit would predict with weights that never learned blend, without a message."""

    def kill(*_: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(refit, "score_of", kill)
        with pytest.raises(KeyboardInterrupt):
            refit.train(SplitToy(*BETTER), config, accelerator)
    out = Path(config.out)
    assert json.loads((out / "summary.json").read_text())["status"] == "running"
    with pytest.raises(UserError, match=r"run is not complete, its status is running: continue it with --resume last"):
        members.load(out, "nowhere")
    assert refit.train(SplitToy(0.2, 0.3), config, accelerator, "last")["status"] == "done"
    assert json.loads((out / "summary.json").read_text())["status"] == "done"


def test_a_yaml_does_not_lower_the_precision_of_predictions(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was trained in float32, since its recipe needs the digits, would predict in the bf16 of a YAML."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1, refit_epochs=0), accelerator)
    precisions: list[str] = []

    def start() -> None:
        precisions.append(os.environ["ACCELERATE_MIXED_PRECISION"])
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(KeyboardInterrupt):
        members.load(Path(config.out), "nowhere")
    assert precisions == ["no"]


def test_the_parts_share_the_limit_of_time(config: TrainConfig, accelerator: Accelerator) -> None:
    """The first training would use all of the time, each part as much as the whole run, or the report would show a share."""
    limit_s = 100_000.0
    summary = refit.train(SplitToy(*BETTER), dataclasses.replace(config, max_seconds=limit_s), accelerator)
    limits = [
        json.loads(Path(config.out, part, "config.json").read_text())["max_seconds"] / limit_s
        for part in ("", refit.TRIAL, refit.NEWEST)
    ]
    assert limits == pytest.approx([0.6, 0.5, 1.0], abs=0.01)
    assert summary["max_seconds"] == limit_s


def test_the_last_part_gets_the_time_that_the_trial_left(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would exceed its limit by the duration of the trial."""
    train = loop.train

    def slow_train(*arguments: Any) -> dict[str, Any]:
        return {**train(*arguments), "seconds": 30_000.0}

    monkeypatch.setattr(loop, "train", slow_train)
    refit.train(SplitToy(*BETTER), dataclasses.replace(config, max_seconds=100_000.0), accelerator)
    limits = [
        json.loads(Path(config.out, part, "config.json").read_text())["max_seconds"] for part in (refit.TRIAL, refit.NEWEST)
    ]
    assert limits == pytest.approx([35_000.0, 40_000.0], abs=100)


def test_the_trial_leaves_time_for_its_score(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would exceed a short limit by half of the time that it takes to score blend."""
    score_of, seconds = refit.score_of, [0.0]

    def slow_score_of(*arguments: Any) -> float:
        seconds[0] += 20_000.0
        return score_of(*arguments)

    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(refit, "score_of", slow_score_of)
    refit.train(SplitToy(*BETTER), dataclasses.replace(config, max_seconds=100_000.0), accelerator)
    limits = [
        json.loads(Path(config.out, part, "config.json").read_text())["max_seconds"] for part in (refit.TRIAL, refit.NEWEST)
    ]
    assert limits == [30_000.0, 60_000.0]


def test_a_lost_rank_in_a_part_is_in_the_status_of_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """The status would remain `running`."""
    refit.train(SplitToy(*BETTER), config, accelerator)
    run = Path(config.out)
    for part in (refit.TRIAL, refit.NEWEST):
        runs.set_status(run, "running")
        runs.mark_lost(run / part, "rank 1 does not respond")
        assert (run / "status").read_text() == "lost\nrank 1 does not respond\n"
    runs.set_status(run, "running")
    with pytest.raises(ZeroDivisionError), runs.status_on_error(run / refit.TRIAL, accelerator):
        raise ZeroDivisionError("1 / 0")
    assert "1 / 0" in (run / "status").read_text()


def test_what_a_refit_cannot_use_is_refused_before_the_training(config: TrainConfig, accelerator: Accelerator) -> None:
    """The error would be raised after the training, or the parts would belong to different trainings."""
    with_lengths = SplitToy()
    with_lengths.rows = lambda split: _with_lengths(SplitRows(split))  # type: ignore[method-assign]
    with pytest.raises(UserError, match="refit_epochs=1 joins the rows of splits, and examples of the recipe toy differ in"):
        refit.train(with_lengths, config, accelerator)
    assert not Path(config.out).exists()
    refit.train(SplitToy(*BETTER), config, accelerator)
    with pytest.raises(UserError, match="was trained from the weights of other settings"):
        refit.train(SplitToy(), dataclasses.replace(config, weight_decay=0.1), accelerator, "last", override=True)


def test_the_same_command_with_an_override_continues_a_refit(config: TrainConfig, accelerator: Accelerator) -> None:
    """A job that was preempted in its refit is requeued with the same command, and would be refused."""
    loop.train(SplitToy(), dataclasses.replace(config, refit_epochs=0), accelerator)
    for _ in range(2):
        assert refit.train(SplitToy(), config, accelerator, "auto", override=True)["status"] == "done"


def _with_lengths(rows: Any) -> Any:
    rows.lengths = np.ones(len(rows), int)
    return rows


def test_refit_epochs_is_checked(config: TrainConfig, accelerator: Accelerator) -> None:
    """A negative number would give a part without steps, and an error about its result."""
    with pytest.raises(UserError, match="refit_epochs=-1"):
        refit.train(SplitToy(), dataclasses.replace(config, refit_epochs=-1.0), accelerator)


def test_the_plan_has_the_steps_that_the_tests_above_count(config: TrainConfig) -> None:
    """The crashes and signals of the tests above would be in other parts."""
    steps = [BatchPlan(rows, 16, 16, 1, 0, 0).num_steps(1) for rows in (37, 48, 61)]
    assert steps == [3, 3, 4]


def test_the_seconds_of_all_parts_of_a_run_are_added(tmp_path: Path) -> None:
    """A run that is continued with a deadline would end at once, since its earlier seconds count too."""
    for part, step, seconds in (("", 3, 20.0), ("", 12, 50.0), ("trial", 2, 7.0)):
        folder = checkpoint.step_folder(tmp_path / part, step)
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"progress": {"seconds": seconds}}))
    assert refit.seconds_of_checkpoints(tmp_path) == 57.0
    (checkpoint.step_folder(tmp_path / "trial", 2) / "state.json").write_text("{")
    assert refit.seconds_of_checkpoints(tmp_path) == 50.0
    assert refit.seconds_of_checkpoints(tmp_path / "missing") == 0.0


@pytest.mark.parametrize(("max_seconds", "expected"), [(0.0, 80.0), (50.0, 50.0), (100.0, 80.0)])
def test_a_deadline_does_not_prolong_a_training(
    max_seconds: float, expected: float, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of a job would replace a smaller max_seconds, and the run would take all of the job's time."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    limited = dataclasses.replace(config, max_seconds=max_seconds)
    assert refit.with_deadline(limited, 1080.0, "auto").max_seconds == expected


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf")])
def test_a_deadline_that_is_no_time_is_refused(deadline_s: float, config: TrainConfig) -> None:
    """A run with the deadline nan would end after a second, as if its time had passed."""
    with pytest.raises(UserError, match=f"--deadline {deadline_s} is impossible"):
        refit.with_deadline(config, deadline_s, "")


def test_a_new_run_from_a_checkpoint_of_another_continues_its_seconds(tmp_path: Path) -> None:
    """With a deadline, such a run would end at its first line of the log, if the other one had trained for longer."""
    folder = checkpoint.step_folder(tmp_path / "other", 3)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"progress": {"seconds": 20.0}}))
    assert refit.seconds_of_checkpoints(tmp_path / "new", str(folder)) == 20.0
