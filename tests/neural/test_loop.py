"""The training loop on a toy recipe: gradients, resuming, early stopping, checkpoints, and what a run leaves behind."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.config import TrainConfig
from ensemble.neural.loader import Batch, BatchPlan

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

    def gather(self, rows: np.ndarray) -> Batch:
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


class Toy:
    """A regression in which the number of targets differs from row to row, as tokens do; it may carry a state."""

    name, fingerprint, monitor = "toy", "f1", "score"
    inputs: ClassVar[dict[str, Any]] = {}

    def __init__(self, *, dropout: float = 0.0, carries_state: bool = False, scores: Callable[[int], float] | None = None):
        self.dropout, self.carries_state = dropout, carries_state
        self.scores = scores or (lambda evaluation: float(evaluation))
        self.num_evaluations = 0
        self.crash_at = math.inf
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
        self.num_micro_batches += 1
        if self.num_micro_batches == self.crash_at:
            raise KeyboardInterrupt
        output = model(batch["x"])
        if self.carries_state:
            memory = torch.zeros(3) if state is None else state["memory"]
            output = output + memory
            state = {"memory": 0.5 * memory + 0.5 * output.detach().mean(dim=0)}
        error = torch.where(batch["known"], (output - batch["y"]) ** 2, 0.0)
        return error.sum(), batch["known"].sum().float(), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        assert not model.training
        return {"prediction": model(batch["x"]), "row": batch["row"]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        self.num_evaluations += 1
        return {"score": self.scores(self.num_evaluations)}

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


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, the optimizer's moments, the random states and the recipe's state of a checkpoint."""
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}


# Gradients


@pytest.mark.parametrize("micro_batch_size", [16, 8, 2])
def test_the_gradient_is_the_sum_over_the_global_batch_by_its_count(
    micro_batch_size: int, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A mean of means, or the nominal size instead of the true count: wrong by percents, most of all in the ragged tail."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, micro_batch_size=micro_batch_size), accelerator, False)
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
    loop.train(toy, dataclasses.replace(config, clip_norm=0.5, micro_batch_size=2), accelerator, False)
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
    loop.train(toy, dataclasses.replace(config, micro_batch_size=2), accelerator, False)
    rows = next(BatchPlan.make(NUM_ROWS, 16, 0, 1, 0, config.seed).micro_batches(0, 1)).rows
    model = toy.model()
    torch.nn.utils.vector_to_parameters(toy.recorder.seen[0][0], model.parameters())
    loss_sum, count, _ = toy.step(model, toy.rows("train").gather(rows), None)
    assert lines(config)[0]["loss"] == pytest.approx((loss_sum / count).item(), rel=1e-5)


def test_the_learning_rate_warms_up_and_falls_to_zero(config: TrainConfig, accelerator: Accelerator) -> None:
    """The first step would be taken at the peak, or the last one far from zero; and without warm-up nothing divides by 0."""
    scale = loop.learning_rate_scale
    assert [scale(step, 10, 4) for step in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert scale(7, 10, 4) == pytest.approx(0.5)
    assert scale(10, 10, 4) == pytest.approx(0.0)
    assert 0.9 < scale(1, 10, 0) < 1
    assert scale(3, 3, 5) == 0.6
    toy = Toy()
    loop.train(toy, config, accelerator, False)
    logged = [line["learning_rate"] for line in lines(config) if line["kind"] == "train"]
    assert logged == toy.recorder.rates == pytest.approx([0.05 * scale(step, 12, 2) for step in range(1, 13)])


# Resuming


@pytest.mark.parametrize("micro_batch_size", [0, 4])
@pytest.mark.parametrize("crash_at_step", [4, 6, 11])
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    micro_batch_size: int, crash_at_step: int, config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """The order of rows, dropout, momentum, learning rate or the recipe's state would start anew after --resume."""
    config = dataclasses.replace(config, micro_batch_size=micro_batch_size)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))
    uninterrupted = loop.train(Toy(dropout=0.3, carries_state=True), whole, accelerator, False)
    toy = Toy(dropout=0.3, carries_state=True)
    per_epoch = 3 if micro_batch_size == 0 else 10
    toy.crash_at = (crash_at_step - 1) // 3 * per_epoch + (crash_at_step - 1) % 3 * (per_epoch // 3) + 1
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator, False)
    interrupted_at = json.loads(Path(config.out, "last/state.json").read_text())["progress"]["step"]
    assert interrupted_at == (crash_at_step - 1) // 3 * 3
    torch.manual_seed(99)
    resumed = loop.train(Toy(dropout=0.3, carries_state=True), config, accelerator, True)
    assert resumed["steps"] == uninterrupted["steps"] == 12
    expected, found = (tensors(tmp_path / name / "last") for name in ("whole", "run"))
    assert "rank0.state.memory" in expected
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    steps = [(line["kind"], line["step"]) for line in lines(config)]
    assert steps == [(line["kind"], line["step"]) for line in lines(whole)], "a step stands twice in metrics.jsonl"
    assert [line.get("loss") for line in lines(config)] == [line.get("loss") for line in lines(whole)]


def test_early_stopping_keeps_the_best_and_stays_stopped(config: TrainConfig, accelerator: Accelerator) -> None:
    """`best` would be the last one, or --resume of a run that had stopped would train on."""
    config = dataclasses.replace(config, max_epochs=10, patience=2)
    scores = {1: 0.1, 2: 0.4, 3: 0.3, 4: 0.4}
    summary = loop.train(Toy(scores=lambda evaluation: scores[evaluation]), config, accelerator, False)
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 6, 0.4)
    best, last = (json.loads(Path(config.out, name, "state.json").read_text())["progress"] for name in ("best", "last"))
    assert best.pop("seconds") <= last.pop("seconds")
    assert best == {"step": 6, "best_score": 0.4, "best_step": 6, "evaluations_since_best": 0}
    assert last == {"step": 12, "best_score": 0.4, "best_step": 6, "evaluations_since_best": 2}
    before = tensors(Path(config.out, "last"))
    again = loop.train(Toy(), config, accelerator, True)
    assert again["steps"] == 12
    after = tensors(Path(config.out, "last"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_patience_is_counted_over_an_interruption(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run that is interrupted often enough would never stop early, and would overwrite `best` with something worse."""
    config = dataclasses.replace(config, max_epochs=10, patience=3)
    toy = Toy(scores=lambda evaluation: -float(evaluation))
    toy.crash_at = 8
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator, False)
    summary = loop.train(Toy(scores=lambda evaluation: -10.0), config, accelerator, True)
    assert (summary["steps"], summary["best_step"], summary["validation_score"]) == (12, 3, -1.0)


def test_what_cannot_be_resumed_is_refused(config: TrainConfig, accelerator: Accelerator, tmp_path: Path) -> None:
    """A run would go on with other settings or data than it began with, or begin anew where someone said --resume."""
    with pytest.raises(UserError, match=r"no checkpoint to resume from .*run: start without --resume"):
        loop.train(Toy(), config, accelerator, True)
    assert not Path(config.out).exists()
    loop.train(Toy(), dataclasses.replace(config, max_epochs=1), accelerator, False)
    with pytest.raises(UserError, match=r"exists already: choose another out=…, or add --resume"):
        loop.train(Toy(), config, accelerator, False)
    with pytest.raises(UserError, match="other values of max_epochs, learning_rate: give it those again"):
        loop.train(Toy(), dataclasses.replace(config, learning_rate=0.1), accelerator, True)
    toy = Toy()
    toy.fingerprint = "f2"
    with pytest.raises(UserError, match="trained on other prepared data"):
        loop.train(toy, dataclasses.replace(config, max_epochs=1), accelerator, True)


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
    loop.train(Toy(), config, accelerator, False)
    loop.train(Toy(), config, accelerator, True)
    files = sorted(path.name for path in Path(config.out, "last").iterdir())
    assert files == ["manifest.json", "model.safetensors", "state.json", "state.safetensors"]


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "state.json", "state.safetensors"])
def test_a_damaged_checkpoint_is_named(file: str, config: TrainConfig, accelerator: Accelerator) -> None:
    """A flipped byte would end in a traceback, or worse, in a run that goes on from damaged weights."""
    config = dataclasses.replace(config, max_epochs=1)
    loop.train(Toy(), config, accelerator, False)
    path = Path(config.out, "last", file)
    sound = path.read_bytes()
    for position in np.linspace(0, len(sound) - 2, 40).astype(int):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        with pytest.raises(UserError, match=rf"{file} .*(damaged|changed).*: run the stage that wrote it again"):
            loop.train(Toy(), config, accelerator, True)
    for damaged in (sound[:-2], b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{file} .*: .*run the stage that wr(ote|ites) it"):
            loop.train(Toy(), config, accelerator, True)
    path.unlink()
    with pytest.raises(UserError, match=rf"{file} .*: .*run the stage that wr(ote|ites) it"):
        loop.train(Toy(), config, accelerator, True)


def test_the_weights_of_another_model_are_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """A changed model would end in PyTorch's page of key names."""
    config = dataclasses.replace(config, max_epochs=1)
    loop.train(Toy(), config, accelerator, False)
    toy = Toy()
    toy.model = lambda: torch.nn.Linear(WIDTH, 3)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="holds the weights of another model"):
        loop.train(toy, config, accelerator, True)


# What a run says and leaves


def test_a_run_leaves_its_files(config: TrainConfig, accelerator: Accelerator) -> None:
    """Somebody who comes back to a run could not tell how it was made, or TensorBoard would show nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = loop.train(Toy(), config, accelerator, False)
    out = Path(config.out)
    names = {"config.json", "train.log", "val.log", "metrics.jsonl", "tensorboard", "best", "last", "summary.json"}
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
        loop.train(toy, config, accelerator, False)
    loop.train(Toy(), config, accelerator, True)
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
        loop.train(Toy(), dataclasses.replace(config, **changed), accelerator, False)
    assert not Path(config.out).exists()


def test_a_loss_that_explodes_stops_the_run(
    config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run would go on for days on NaN; and the sentence would stand behind the progress bar on the same line."""
    config = dataclasses.replace(config, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(UserError, match=r"the loss is (nan|inf) at step \d+: lower learning_rate=1e\+30"):
        loop.train(Toy(), config, accelerator, False)
    assert capsys.readouterr().err.endswith("\n")


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
