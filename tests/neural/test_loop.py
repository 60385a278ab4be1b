"""The training loop on a toy recipe: gradients, resuming, early stopping, checkpoints, and what a run leaves behind."""

import dataclasses
import errno
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from ensemble.errors import UserError
from ensemble.neural import checkpoint, guards, loop, speed
from ensemble.neural.config import TrainConfig
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.optim import learning_rate_scale

torch.set_num_threads(1)
NUM_ROWS = 37  # a ragged tail for any batch size here
WIDTH = 6


class ToyRows:
    def __init__(self, num_rows: int):
        generator = np.random.default_rng(1)
        self.x = generator.normal(size=(num_rows, WIDTH)).astype(np.float32)
        self.y = generator.normal(size=(num_rows, 3)).astype(np.float32)
        self.known = generator.random((num_rows, 3)) < 0.6
        self.known[:, 0] = True

    def __len__(self) -> int:
        return len(self.x)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        arrays = {"x": self.x[rows], "y": self.y[rows], "known": self.known[rows], "row": rows}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Recorder(torch.optim.SGD):
    """Remembers the gradient of each step, and the weights at which it was taken."""

    def __init__(self, parameters: Any, **options: Any):
        super().__init__(parameters, **options)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rates: list[float] = []

    def step(self, closure: Any = None) -> Any:
        parameters = self.param_groups[0]["params"]
        gradient = torch.cat([parameter.grad.flatten() for parameter in parameters])
        self.rates.append(self.param_groups[0]["lr"])
        self.seen.append((torch.cat([parameter.detach().flatten() for parameter in parameters]), gradient.clone()))
        return super().step(closure)


class NanGradient(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.sqrt(0 * x.sum())  # whose slope at 0 is infinite: 0 times that is NaN


class Toy:
    """A regression in which the number of targets differs from row to row, as tokens do; it may carry a state."""

    name, fingerprint, monitor = "toy", "f1", "score"
    inputs: ClassVar[dict[str, Any]] = {}

    def __init__(self, *, dropout: float = 0.0, carries_state: bool = False, scores: Callable[[int], float] | None = None):
        self.dropout, self.carries_state = dropout, carries_state
        self.scores = scores
        self.num_evaluations = 0
        self.times, self.broken_row = 1.0, -1
        self.crash_at = math.inf
        self.at_micro_batch: dict[int, Callable[[], Any]] = {}
        self.num_micro_batches = 0

    def rows(self, split: str) -> ToyRows:
        return ToyRows(NUM_ROWS if split == "train" else 11)

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Dropout(self.dropout), torch.nn.Linear(8, 3)
        )

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        self.recorder = Recorder(model.parameters(), lr=learning_rate, momentum=0.9)
        return [self.recorder]

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        self.num_micro_batches += 1  # the first is the loop's trial of the memory
        if self.num_micro_batches == 1 + self.crash_at:
            raise KeyboardInterrupt
        self.at_micro_batch.get(self.num_micro_batches, lambda: None)()
        output = model(batch["x"])
        if self.carries_state:
            memory = torch.zeros_like(output) if state is None else state["memory"]
            output = output + memory
            state = {"memory": 0.5 * memory + 0.5 * output.detach()}
        error = torch.where(batch["known"], (output - batch["y"]) ** 2, 0.0) * self.times
        error = torch.where((batch["row"] == self.broken_row)[:, None], torch.nan, error)
        return error.sum(), batch["known"].sum().float(), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        assert not model.training
        return {"prediction": model(batch["x"]), "row": batch["row"]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        self.num_evaluations += 1
        if self.scores:
            return {"score": self.scores(self.num_evaluations)}
        return {"score": -float(np.abs(predictions["prediction"]).mean())}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        return {"row_id": np.arange(len(self.rows(split)))}


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        data="toy",
        out=str(tmp_path / "run"),
        batch_size=16,
        max_epochs=4,
        learning_rate=0.05,
        warmup_steps=2,
        clip_norm=0,
        patience=100,
        evaluations_per_epoch=1,
        log_every=1,
    )


def plain_gradient(toy: Toy, weights: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """PyTorch's own gradient of the sum over all rows by the count over all rows."""
    model = toy.model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    loss_sum, count, _ = toy.step(model, toy.rows("train").gather(rows), None)
    (loss_sum / count).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def lines(config: TrainConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.out, "metrics.jsonl").read_text().splitlines()]


def checkpoints(config: TrainConfig) -> list[str]:
    return sorted(path.name for path in Path(config.out, "checkpoints").iterdir())


def last(config: TrainConfig) -> Path:
    return Path(config.out, "checkpoints", checkpoints(config)[-1])


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, the optimizer's moments, the random states and the recipe's state of a checkpoint."""
    mapped = {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}
    return {name: tensor.clone() for name, tensor in mapped.items()}  # the files may be damaged or deleted later


# Gradients


@pytest.mark.parametrize("micro_batch_size", [16, 8, 2])
def test_the_gradient_is_the_sum_over_the_global_batch_by_its_count(
    micro_batch_size: int, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A mean of means, or the nominal size instead of the true count: wrong by percents, most of all in the ragged tail."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, micro_batch_size=micro_batch_size), accelerator)
    uncut = BatchPlan.make(NUM_ROWS, 16, 0, 1, 0, config.seed)
    batches = [micro.rows for micro in uncut.micro_batches(0, 12)]
    assert {len(rows) for rows in batches} == {16, 5}
    for (weights, gradient), rows in zip(toy.recorder.seen, batches, strict=True):
        expected = plain_gradient(toy, weights, rows)
        assert torch.linalg.norm(gradient - expected) <= 1e-6 * torch.linalg.norm(expected)


def test_the_gradient_is_clipped_after_it_was_divided_by_the_true_count(
    config: TrainConfig, accelerator: Accelerator
) -> None:
    """The bound would hold for another gradient than the one that is stepped with."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, clip_norm=0.5, micro_batch_size=2), accelerator)
    batches = [micro.rows for micro in BatchPlan.make(NUM_ROWS, 16, 0, 1, 0, config.seed).micro_batches(0, 12)]
    unclipped = []
    for (weights, gradient), rows in zip(toy.recorder.seen, batches, strict=True):
        expected = plain_gradient(toy, weights, rows)
        unclipped.append(float(expected.norm()))
        expected = expected * min(1.0, 0.5 / unclipped[-1])
        assert torch.linalg.norm(gradient - expected) <= 1e-5 * torch.linalg.norm(expected)
    assert max(unclipped) > 0.5
    logged = [line["gradient_norm"] for line in lines(config) if line["kind"] == "train"]
    assert logged == pytest.approx(unclipped, rel=1e-5)


def test_the_logged_loss_is_that_of_the_global_batch(config: TrainConfig, accelerator: Accelerator) -> None:
    """train.log would show the loss of the last micro-batch, or one that was divided by the wrong count."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, micro_batch_size=2), accelerator)
    rows = next(BatchPlan.make(NUM_ROWS, 16, 0, 1, 0, config.seed).micro_batches(0, 1)).rows
    model = toy.model()
    torch.nn.utils.vector_to_parameters(toy.recorder.seen[0][0], model.parameters())
    loss_sum, count, _ = toy.step(model, toy.rows("train").gather(rows), None)
    assert lines(config)[0]["loss"] == pytest.approx((loss_sum / count).item(), rel=1e-5)


def test_the_learning_rate_follows_the_schedule(config: TrainConfig, accelerator: Accelerator) -> None:
    """The first step would be taken at the peak, or the last one far from zero."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, base_batch_size=4, learning_rate_scaling="sqrt"), accelerator)
    logged = [line["learning_rate"] for line in lines(config) if line["kind"] == "train"]
    expected = [0.1 * learning_rate_scale(config, step, 12) for step in range(1, 13)]
    assert logged == toy.recorder.rates == pytest.approx(expected)
    assert expected[:2] == [0.05, 0.1]
    assert expected[-1] == 0


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
    """The order of rows, dropout, momentum, learning rate, the average or the recipe's state would start anew."""
    config = dataclasses.replace(config, **changed)
    if config.precision == "bf16":
        monkeypatch.setattr(accelerator.state, "_mixed_precision", "bf16")
        monkeypatch.setattr(accelerator, "native_amp", True)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    uninterrupted = loop.train(Toy(dropout=0.3, carries_state=True), whole, accelerator)
    toy = Toy(dropout=0.3, carries_state=True)
    plan = BatchPlan.make(NUM_ROWS, 16, config.micro_batch_size, 1, 0, 0)
    toy.crash_at = 1 + len(list(plan.micro_batches(0, crash_at_step - 1)))
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator)
    every = config.checkpoint_steps or 3
    assert last(config).name == f"step-{(crash_at_step - 1) // every * every:08d}"
    assert Path(config.out, "status").read_text() == "failed\n"
    torch.manual_seed(99)
    resumed = loop.train(Toy(dropout=0.3, carries_state=True), config, accelerator, "last")
    assert resumed["steps"] == uninterrupted["steps"] == 12
    expected, found = (tensors(last(run)) for run in (whole, config))
    assert "carry.0.memory" in expected
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    for name in ("best", "final"):
        ours, theirs = (load_file(Path(run.out, name, "model.safetensors")) for run in (config, whole))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    steps = [(line["kind"], line["step"]) for line in lines(config)]
    assert steps == [(line["kind"], line["step"]) for line in lines(whole)], "a step stands twice in metrics.jsonl"
    assert [line.get("loss") for line in lines(config)] == [line.get("loss") for line in lines(whole)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("at_step", [2, 3])
def test_a_signal_saves_the_step_and_loses_nothing(
    number: int, at_step: int, config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """Preemption would cost all steps since the last checkpoint, or the evaluation that fell on that step."""
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    loop.train(Toy(dropout=0.3), whole, accelerator)
    toy = Toy(dropout=0.3)
    toy.at_micro_batch = {1 + at_step: lambda: (os.kill(os.getpid(), number), time.sleep(0.3))}
    summary = loop.train(toy, config, accelerator)
    assert (summary["status"], summary["steps"]) == ("preempted", at_step)
    assert Path(config.out, "status").read_text() == "preempted\n"
    assert not Path(config.out, "final").exists()
    toy = Toy(dropout=0.3)
    toy.crash_at = 1  # after the evaluation that is made up for, before another checkpoint
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator, "auto")
    assert loop.train(Toy(dropout=0.3), config, accelerator, "auto")["status"] == "done"
    assert Path(config.out, "status").read_text() == "done\n"
    expected, found = (tensors(last(run)) for run in (whole, config))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [line.get("score") for line in lines(config)] == [line.get("score") for line in lines(whole)]


def test_early_stopping_keeps_the_best_and_stays_stopped(config: TrainConfig, accelerator: Accelerator) -> None:
    """`best` would be the last one, or --resume of a run that had stopped would train on."""
    config = dataclasses.replace(config, max_epochs=10, patience=2)
    scores = {1: 0.1, 2: 0.4, 3: 0.3, 4: 0.4}
    summary = loop.train(Toy(scores=lambda evaluation: scores[evaluation]), config, accelerator)
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 6, 0.4)
    best = json.loads(Path(config.out, "best/state.json").read_text())
    assert (best["step"], best["scores"]) == (6, {"score": 0.4})
    progress = json.loads((last(config) / "state.json").read_text())["progress"]
    assert {name: progress[name] for name in ("step", "best_step", "evaluations_since_best")} == {
        "step": 12,
        "best_step": 6,
        "evaluations_since_best": 2,
    }
    before = tensors(last(config))
    assert loop.train(Toy(), config, accelerator, "last")["steps"] == 12
    after = tensors(last(config))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_score_that_tells_nothing_ends_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """A validation split without a single positive scores NaN: no weights would ever be the best, and none be kept."""
    with pytest.raises(UserError, match="score of the validation split is nan at step 3: it cannot tell"):
        loop.train(Toy(scores=lambda _: math.nan), config, accelerator)


def test_patience_is_counted_over_an_interruption(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run that is interrupted often enough would never stop early, and would overwrite `best` with something worse."""
    config = dataclasses.replace(config, max_epochs=10, patience=3)
    toy = Toy(scores=lambda evaluation: -float(evaluation))
    toy.crash_at = 8
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator)
    summary = loop.train(Toy(scores=lambda evaluation: -10.0), config, accelerator, "last")
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 3, -1.0)


def test_what_cannot_be_resumed_is_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run would go on with other settings or data than it began with, or begin anew where someone said --resume."""
    with pytest.raises(UserError, match=r"no checkpoint to resume from in .*run: start without --resume"):
        loop.train(Toy(), config, accelerator, "last")
    assert not Path(config.out).exists()
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    with pytest.raises(UserError, match=r"exists already: choose another out=…, or add --resume"):
        loop.train(Toy(), config, accelerator)
    changed = dataclasses.replace(config, learning_rate=0.1)
    sentence = r"written with max_epochs=1 \(now 4\), learning_rate=0.05 \(now 0.1\): give it those again, or add --resume-o"
    with pytest.raises(UserError, match=sentence):
        loop.train(Toy(), changed, accelerator, "last")
    toy = Toy()
    toy.fingerprint = "f2"
    with pytest.raises(UserError, match="trained on other prepared data"):
        loop.train(toy, dataclasses.replace(config, max_epochs=1), accelerator, "last")
    Path(config.out, "notes.txt").write_text("of somebody else")
    Path(config.out, "config.json").unlink()
    with pytest.raises(UserError, match="exists already"):
        loop.train(Toy(), config, accelerator, "auto")


def test_what_may_change_when_a_run_is_resumed(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run could not go on with fewer workers or another log interval; or with --resume-override, at the old rate."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1, schedule="constant"), accelerator)
    elsewhere = dataclasses.replace(config, max_epochs=1, schedule="constant", micro_batch_size=4, log_every=2, data="moved")
    assert loop.train(Toy(), elsewhere, accelerator, "last")["steps"] == 3
    changed = dataclasses.replace(config, max_epochs=2, schedule="constant", learning_rate=0.01)
    toy = Toy()
    assert loop.train(toy, changed, accelerator, "last", override=True)["steps"] == 6
    assert toy.recorder.rates == pytest.approx([0.01] * 3)
    assert json.loads(Path(config.out, "config.json").read_text())["learning_rate"] == 0.01


def test_an_average_that_is_new_begins_at_the_weights_it_finds(config: TrainConfig, accelerator: Accelerator) -> None:
    """It would begin at random initial weights, and validation fall for as long as they are remembered."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    weights = load_file(last(config) / "model.safetensors")
    with_average = dataclasses.replace(config, max_epochs=1.3, ema_decay=0.5, learning_rate=1e-30)
    loop.train(Toy(), with_average, accelerator, "last", override=True)
    averaged = load_file(Path(config.out, "final/model.safetensors"))
    assert all(torch.allclose(averaged[name], weights[name], atol=1e-6) for name in weights)


def test_auto_begins_where_there_is_nothing_and_goes_on_where_there_is(
    config: TrainConfig, accelerator: Accelerator
) -> None:
    """A job that is requeued before its first checkpoint would fail at each start."""
    Path(config.out).mkdir()
    Path(config.out, ".config.json.writing-1").touch()  # all that a kill at the very start left behind
    toy = Toy()
    toy.crash_at = 2
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator, "auto")
    assert not Path(config.out, "checkpoints").exists()
    toy = Toy()
    toy.crash_at = 5
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator, "auto")
    toy = Toy()
    assert loop.train(toy, config, accelerator, "auto")["steps"] == 12
    assert len(toy.recorder.seen) == 9


def test_a_run_can_branch_off_another_ones_checkpoint(config: TrainConfig, accelerator: Accelerator, tmp_path: Path) -> None:
    """To try another rate from step 6 on, one would have to overwrite the run that led there."""
    loop.train(Toy(), dataclasses.replace(config, keep_last=9), accelerator)
    branch = dataclasses.replace(config, out=str(tmp_path / "branch"), learning_rate=0.001)
    step_6 = str(Path(config.out, "checkpoints/step-00000006"))
    before = tensors(last(config))
    toy = Toy(scores=lambda _: -100.0)
    toy.crash_at = 2
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, branch, accelerator, step_6, override=True)
    toy = Toy(scores=lambda _: -100.0)
    assert loop.train(toy, branch, accelerator, "auto", override=True)["steps"] == 12
    assert len(toy.recorder.seen) == 6
    assert json.loads(Path(branch.out, "best/state.json").read_text())["step"] == 9, (
        "the best of the branch, not of its origin"
    )
    with pytest.raises(UserError, match=r"holds weights only: go on from one of .*checkpoints"):
        loop.train(Toy(), dataclasses.replace(branch, out=branch.out + "2"), accelerator, str(Path(config.out, "best")))
    assert not Path(branch.out + "2").exists()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(last(config)).items())
    with pytest.raises(UserError, match="exists already"):
        loop.train(Toy(), branch, accelerator, step_6, override=True)


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
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    file: str, config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped byte would end a run, or worse, it would go on from damaged weights."""
    loop.train(Toy(dropout=0.3), config, accelerator)
    expected, before, newest = tensors(last(config)), last(config).with_name("step-00000009"), last(config)
    sound = (newest / file).read_bytes()
    flipped = [
        sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :]
        for position in np.linspace(0, len(sound) - 2, 40).astype(int)
    ]
    for content in (*flipped, sound[:-2], sound[: len(sound) // 2], b"", None):
        if content is None:
            (newest / file).unlink()
        else:
            (newest / file).write_bytes(content)
        assert checkpoint.newest_sound(Path(config.out), print) == before
        said = capsys.readouterr().out
        assert "passing over a damaged checkpoint, now damaged-step-00000012" in said
        assert f"step-00000012/{file}" in said
        newest.with_name("damaged-step-00000012").rename(newest)
    loop.train(Toy(dropout=0.3), config, accelerator, "auto")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(last(config)).items())


def test_old_checkpoints_go_and_chosen_ones_stay(config: TrainConfig, accelerator: Accelerator) -> None:
    """A long run would fill the disk, or lose the checkpoints that someone wanted to keep."""
    loop.train(Toy(), dataclasses.replace(config, checkpoint_steps=1, keep_last=2, keep_steps=5), accelerator)
    assert checkpoints(config) == [f"step-{step:08d}" for step in (5, 10, 11, 12)]


def test_what_a_kill_left_half_written_is_cleared_away(config: TrainConfig, accelerator: Accelerator) -> None:
    """Scratch folders of a job that is killed again and again would fill the disk; or `best` be lost between two renames."""
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator)
    out = Path(config.out)
    weights = (out / "best/model.safetensors").read_bytes()
    for left in ("checkpoints/.step-00000006.writing-ab", "checkpoints/.step-00000001.old", ".final.writing-ab"):
        (out / left).mkdir()
        (out / left / "model.safetensors").write_bytes(b"half")
    (out / "best").rename(out / ".best.old-ab")
    loop.train(Toy(), config, accelerator, "last", override=True)
    assert not [path for path in out.rglob(".*")]
    assert weights != (out / "best/model.safetensors").read_bytes()


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_leaves_the_one_before(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would go on for days and keep nothing, since the background's failure is nobody's."""
    save_file = checkpoint.save_file

    def fail_later(tensors: Any, file: Path) -> None:
        if "step-00000006" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, file)

    monkeypatch.setattr(checkpoint, "save_file", fail_later)
    with pytest.raises(
        UserError, match=r"step-00000006 cannot be written \(.*No space left on device\): make room, .* --resume auto"
    ):
        loop.train(Toy(), config, accelerator)
    assert checkpoints(config)[0] == "step-00000003"
    assert "step-00000006" not in checkpoints(config)
    assert Path(config.out, "status").read_text() == "failed\n"


def test_the_weights_of_another_model_are_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """A changed model would end in PyTorch's page of key names."""
    config = dataclasses.replace(config, max_epochs=1)
    loop.train(Toy(), config, accelerator)
    toy = Toy()
    toy.model = lambda: torch.nn.Linear(WIDTH, 3)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="holds the weights of another model"):
        loop.train(toy, config, accelerator, "last")


# What a run says and leaves


def test_a_run_leaves_its_files(config: TrainConfig, accelerator: Accelerator) -> None:
    """Somebody who comes back to a run could not tell how it was made, or TensorBoard would show nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = loop.train(Toy(), config, accelerator)
    out = Path(config.out)
    names = {
        "config.json",
        "environment.json",
        "status",
        "train.log",
        "val.log",
        "metrics.jsonl",
        "tensorboard",
        "curves.txt",
    }
    names |= {"checkpoints", "best", "final", "summary.json"}
    assert {path.name for path in out.iterdir()} == names
    assert json.loads((out / "config.json").read_text())["learning_rate"] == 0.05
    assert json.loads((out / "summary.json").read_text()) == summary
    assert (summary["ranks"], summary["steps"], summary["parameters"]) == (1, 12, 83)
    assert len((out / "train.log").read_text().splitlines()) == 12
    assert len((out / "val.log").read_text().splitlines()) == 4
    board = EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 13))
    assert [event.step for event in board.Scalars("val/score")] == [3, 6, 9, 12]


def test_tensorboard_shows_every_step_of_a_resumed_run_once(config: TrainConfig, accelerator: Accelerator) -> None:
    """The curve would go back and forth after --resume, or lack the step of the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    toy = Toy()
    toy.crash_at = 9
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator)
    loop.train(Toy(), config, accelerator, "last")
    board = EventAccumulator(str(Path(config.out, "tensorboard"))).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 13))
    assert [event.step for event in board.Scalars("val/score")] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"max_epochs": 0}, "max_epochs=0 is impossible: it must be more than 0, and finite"),
        ({"max_epochs": math.inf}, "max_epochs=inf is impossible"),
        ({"learning_rate": math.nan}, "learning_rate=nan is impossible"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 is impossible"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 is impossible"),
        ({"warmup_steps": -1}, "warmup_steps=-1 is impossible"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 is impossible"),
        ({"evaluations_per_epoch": 0}, "evaluations_per_epoch=0 is impossible"),
        ({"patience": 0}, "patience=0 is impossible"),
        ({"ema_decay": 1.0}, "ema_decay=1.0 is impossible"),
        ({"keep_last": 0}, "keep_last=0 is impossible"),
        ({"checkpoint_steps": -1}, "checkpoint_steps=-1 is impossible"),
        ({"spike_factor": 0.5}, "spike_factor=0.5 is impossible: it must be more than 1, or 0 for never"),
        ({"bucket_batches": 2}, "this recipe's rows have no lengths"),
        ({"num_workers": -1}, "num_workers=-1 is impossible"),
        ({"log_every": 0}, "log_every=0 is impossible"),
        ({"seed": -1}, "seed=-1 is impossible"),
        ({"micro_batch_size": 5}, "the nearest that does is micro_batch_size=4"),
    ],
)
def test_impossible_settings_are_refused_and_leave_nothing(
    changed: dict[str, Any], sentence: str, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A typo would train for nothing, or leave a folder because of which the corrected command is refused."""
    with pytest.raises(UserError, match=sentence):
        loop.train(Toy(), dataclasses.replace(config, **changed), accelerator)
    assert not Path(config.out).exists()


def test_a_loss_that_explodes_stops_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run would go on for days on NaN."""
    config = dataclasses.replace(config, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(UserError, match=r"the (loss|gradient norm) is (nan|inf).* at step \d+, .*lower learning_rate"):
        loop.train(Toy(), config, accelerator)


def test_batches_that_are_not_finite_can_be_skipped(config: TrainConfig, accelerator: Accelerator) -> None:
    """One broken row would end a run of weeks; or, skipped, leave NaN in the momentum or in the recipe's state."""
    skipping = dataclasses.replace(config, nonfinite="skip", max_nonfinite=4)
    toy = Toy(carries_state=True)
    toy.broken_row = 7
    summary = loop.train(toy, skipping, accelerator)
    assert (summary["steps"], summary["skipped"], len(toy.recorder.seen)) == (12, 4, 8)
    assert all(tensor.isfinite().all() for tensor in tensors(last(config)).values() if tensor.is_floating_point())
    assert toy.recorder.rates == pytest.approx([0.05 * learning_rate_scale(config, step, 12) for step in range(1, 9)])
    events = [line for line in lines(config) if line["kind"] == "event"]
    assert len(events) == 4
    saved = sorted(Path(config.out, "nonfinite").iterdir())
    assert all(7 in guards.load_batch(file)[0] for file in saved)
    with pytest.raises(UserError, match=r"the loss is nan at step \d+, from rank 0, .*rows: .*saved"):
        loop.train(toy, dataclasses.replace(skipping, out=config.out + "2", max_nonfinite=3), accelerator)


def test_a_spike_goes_back_to_the_last_checkpoint(config: TrainConfig, accelerator: Accelerator) -> None:
    """Weights that one batch threw out of the valley would be trained on; or the run would go back for ever."""
    config = dataclasses.replace(config, spike_factor=20.0, max_epochs=10, max_rollbacks=1, learning_rate=0.01)
    toy = Toy()
    toy.at_micro_batch = {26: lambda: setattr(toy, "times", 1000.0), 27: lambda: setattr(toy, "times", 1.0)}
    summary = loop.train(toy, config, accelerator)
    assert (summary["steps"], len(toy.recorder.seen)) == (30, 29)
    (event,) = [line for line in lines(config) if line["kind"] == "event"]
    assert event["step"] == 25
    assert event["event"].endswith("back to the weights of step 24")
    toy = Toy()
    toy.at_micro_batch = {26: lambda: setattr(toy, "times", 1000.0)}
    with pytest.raises(UserError, match="after 1 rollbacks: lower learning_rate"):
        loop.train(toy, dataclasses.replace(config, out=config.out + "2"), accelerator)


def test_a_spike_goes_back_as_far_after_an_interruption(
    config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """A run that was preempted would go back to the step where it was stopped, and learn something else."""
    config = dataclasses.replace(config, spike_factor=20.0, max_epochs=9, keep_last=1, learning_rate=0.01)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))

    def spiking(first_step: int) -> Toy:
        toy = Toy()
        step = 26 - first_step  # micro-batches are counted from the trial of the memory
        toy.at_micro_batch = {1 + step: lambda: setattr(toy, "times", 1e3), 2 + step: lambda: setattr(toy, "times", 1.0)}
        return toy

    loop.train(spiking(0), whole, accelerator)
    toy = spiking(0)
    toy.at_micro_batch = {26: lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.3))}
    assert loop.train(toy, config, accelerator)["steps"] == 25
    assert checkpoints(config) == ["step-00000024", "step-00000025"]
    loop.train(spiking(25), config, accelerator, "auto")
    assert [line["event"] for line in lines(config) if line["kind"] == "event"] == [
        line["event"] for line in lines(whole) if line["kind"] == "event"
    ]
    expected, found = (tensors(last(run)) for run in (whole, config))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_step_that_overflows_in_fp16_is_skipped(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One overflow would put infinity into the weights, or use up a step of the schedule."""
    monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
    monkeypatch.setattr(accelerator, "native_amp", False)
    monkeypatch.setattr(accelerator, "scaler", None)
    speed.use_fp16_on_cpu(accelerator)
    toy = Toy()
    toy.times = 1e3  # times the first loss scale of 65536, too much for gradients in fp16
    summary = loop.train(toy, dataclasses.replace(config, clip_norm=1.0), accelerator)
    assert summary["precision"] == "fp16"
    events = [line["event"] for line in lines(config) if line["kind"] == "event"]
    assert events
    assert all("fp16 overflowed" in event for event in events)
    assert len(toy.recorder.seen) == 12 - len(events)
    assert toy.recorder.rates[0] == pytest.approx(0.025)
    assert json.loads((last(config) / "state.json").read_text())["scaler"]["scale"] < 65536
    monkeypatch.setattr(accelerator, "scaler", torch.amp.GradScaler("cpu", init_scale=4.0))
    toy = Toy()
    toy.model = lambda: torch.nn.Sequential(Toy().model(), NanGradient())  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the gradient norm is nan"):
        loop.train(toy, dataclasses.replace(config, out=config.out + "2"), accelerator)


# Prediction


@pytest.mark.parametrize("batch_size", [1, 4, 11, 64])
def test_each_row_is_predicted_once_and_in_order(batch_size: int, accelerator: Accelerator) -> None:
    """A score would be computed over repeated or missing rows, or a prediction written under another row's id."""
    toy = Toy(dropout=0.5)
    model = toy.model()
    found = loop.predict(toy, model, "validation", batch_size, accelerator)
    assert found["row"].tolist() == list(range(11))
    with torch.no_grad():
        expected = model(torch.from_numpy(toy.rows("validation").x)).numpy()
    assert found["prediction"] == pytest.approx(expected, abs=1e-6)
