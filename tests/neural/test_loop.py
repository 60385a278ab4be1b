"""The training loop on a toy recipe: gradients, errors, skipped steps and rollbacks, and the files of a run."""

import dataclasses
import json
import math
import os
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from toy import NUM_ROWS, Toy, ToyRows, checkpoints, last, lines, same_checkpoints, tensors

from ensemble.errors import UserError
from ensemble.neural import evaluation, guards, loop, meter
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.optim import learning_rate_scale
from ensemble.neural.settings import TrainConfig

torch.set_num_threads(1)


class NanGradient(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.sqrt(0 * x.sum())  # the derivative of sqrt at 0 is infinite, and 0 times infinity is NaN


def plain_gradient(toy: Toy, weights: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """PyTorch's gradient of the sum over all rows divided by the count over all rows."""
    model = toy.model()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    loss_sum, count, _ = toy.step(model, toy.rows("train").gather(rows), None)
    (loss_sum / count).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


# Rows


@pytest.mark.parametrize("num_sums", [None, 1])
def test_a_value_for_each_row_is_required(num_sums: int | None, config: TrainConfig, accelerator: Accelerator) -> None:
    """Rows that a recipe drops or repeats would change a score, or end in a crash of several ranks."""

    class Dropping(Toy):
        def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
            return {name: values[:-1] for name, values in super().predict(model, batch).items()}

    toy, method = Dropping(), "predict"
    if num_sums:
        toy.sums, method = lambda model, batch: {"right": torch.ones(num_sums)}, "sums"  # type: ignore[attr-defined]
    with pytest.raises(
        UserError, match=rf"`{method}` of the recipe returns '\w+' of the shape .* for 11 rows: return a value"
    ):
        loop.train(toy, config, accelerator)


@pytest.mark.parametrize(
    ("method", "result", "sentence"),
    [
        ("rows", None, "`rows` of the recipe returns NoneType without __len__ and gather: see Rows in neural/loader.py"),
        ("gather", None, "`gather` of the rows returns NoneType: return a dict of tensors"),
        ("model", None, "`model` of the recipe returns NoneType: return a torch.nn.Module"),
        ("step", (torch.zeros(()), 16, None), "a loss from which no gradient follows: return a tensor that"),
        ("step", (1.5, 16, None), "a loss from which no gradient follows: return a tensor that"),
        ("predict", None, "`predict` of the recipe returns NoneType: return a dict of tensors"),
        ("predict", {"output": torch.zeros(11)}, "returns output, but no 'prediction': give one of the tensors this name"),
        ("predict", {"prediction": torch.zeros(11, 1)}, r"shape \(11, 1\), but output=value needs \(B,\), as by prediction"),
        ("sums", {"error": np.zeros(11)}, "`sums` of the recipe returns 'error' as ndarray: return tensors"),
        ("metrics", None, "`metrics` of the recipe returns None: return a dict of numbers"),
        ("metrics", {"score": torch.tensor(0.5)}, r"returns {'score': tensor\(0.5000\)}: return a dict of numbers"),
    ],
)
def test_a_result_of_another_type_gets_one_sentence(
    method: str, result: Any, sentence: str, config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a forgotten `return`, the author of a recipe would see a traceback of other code."""
    owner = ToyRows if method == "gather" else Toy
    monkeypatch.setattr(owner, method, lambda *arguments, **named: result, raising=False)
    with pytest.raises(UserError, match=sentence):
        loop.train(Toy(), config, accelerator)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_empty_split_is_named(split: str, config: TrainConfig, accelerator: Accelerator) -> None:
    """The author of a recipe would see a traceback, for validation only after half an epoch."""

    class Empty(Toy):
        def rows(self, name: str) -> ToyRows:
            return ToyRows(0) if name == split else super().rows(name)

    toy = Empty()
    predict = partial(evaluation.predict, toy, toy.model(), split, 16, accelerator)
    use = predict if split == "test" else partial(loop.train, toy, config, accelerator)
    with pytest.raises(UserError, match=f"the split {split} has no rows: prepare data with rows in it"):
        use()
    assert not toy.num_micro_batches


# Gradients


@pytest.mark.parametrize("micro_batch_size", [16, 8, 2])
def test_the_gradient_is_that_of_the_sum_divided_by_the_count(
    micro_batch_size: int, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A mean of means, or the nominal size instead of the count, would be wrong by percents, most in the short batch."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, micro_batch_size=micro_batch_size), accelerator)
    uncut = BatchPlan(NUM_ROWS, 16, 0, 1, 0, config.seed)
    batches = [micro.rows for micro in uncut.micro_batches(0, 12)]
    assert {len(rows) for rows in batches} == {16, 5}
    for (weights, gradient), rows in zip(toy.recorder.seen, batches, strict=True):
        expected = plain_gradient(toy, weights, rows)
        assert torch.linalg.norm(gradient - expected) <= 1e-6 * torch.linalg.norm(expected)


def test_a_batch_of_rows_without_weight_has_no_gradient(config: TrainConfig, accelerator: Accelerator) -> None:
    """The short last batch of an epoch, if all of its rows have the weight 0, would end the run with a loss of NaN."""

    class Weighted(Toy):
        def rows(self, split: str) -> ToyRows:
            rows = super().rows(split)
            rows.known[5] = False
            return rows

    toy = Weighted()
    summary = loop.train(toy, dataclasses.replace(config, batch_size=1, max_epochs=1), accelerator)
    assert (summary["status"], summary["steps"], summary["skipped"]) == ("done", NUM_ROWS, 0)
    assert [bool(gradient.any()) for _, gradient in toy.recorder.seen].count(False) == 1


def test_a_recipe_that_counts_nothing_is_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """Its training would end with the weights with which it began, without a message."""

    class Empty(Toy):
        def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
            loss, count, state = super().step(model, batch, state)
            return loss * 0, count * 0, state

    with pytest.raises(UserError, match="from a count of 0"):
        loop.train(Empty(), dataclasses.replace(config, nonfinite="stop"), accelerator)


def test_the_gradient_is_clipped_after_it_was_divided_by_the_true_count(
    config: TrainConfig, accelerator: Accelerator
) -> None:
    """The limit would apply to another gradient than that of the step."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, clip_norm=0.5, micro_batch_size=2), accelerator)
    batches = [micro.rows for micro in BatchPlan(NUM_ROWS, 16, 0, 1, 0, config.seed).micro_batches(0, 12)]
    unclipped = []
    for (weights, gradient), rows in zip(toy.recorder.seen, batches, strict=True):
        expected = plain_gradient(toy, weights, rows)
        unclipped.append(float(expected.norm()))
        expected = expected * min(1.0, 0.5 / unclipped[-1])
        assert torch.linalg.norm(gradient - expected) <= 1e-5 * torch.linalg.norm(expected)
    assert max(unclipped) > 0.5
    logged = [line["gradient_norm"] for line in lines(config) if line["kind"] == "train"]
    assert logged == pytest.approx(unclipped, rel=1e-5)


def test_a_parameter_without_an_optimizer_counts_once(config: TrainConfig, accelerator: Accelerator) -> None:
    """The gradients of the parameter would add up, and clipping would make the steps of the others smaller and smaller."""

    class Frozen(Toy):
        def optimizers(self, model: Any, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(model[0].parameters(), learning_rate)]

    loop.train(Frozen(), dataclasses.replace(config, learning_rate=1e-30, batch_size=NUM_ROWS), accelerator)
    norms = [line["gradient_norm"] for line in lines(config) if line["kind"] == "train"]
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def test_the_logged_loss_is_that_of_the_global_batch(config: TrainConfig, accelerator: Accelerator) -> None:
    """train.log would show the loss of the last micro-batch, or a loss divided by the wrong count."""
    toy = Toy()
    loop.train(toy, dataclasses.replace(config, micro_batch_size=2), accelerator)
    rows = next(BatchPlan(NUM_ROWS, 16, 0, 1, 0, config.seed).micro_batches(0, 1)).rows
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
    assert 0 < expected[-1] < 0.01 * expected[1]


# Files of a run


def test_a_warm_up_that_does_not_end_is_mentioned(
    config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that learns almost nothing would look like one of a network that cannot learn."""
    loop.train(Toy(), dataclasses.replace(config, warmup_steps=48), accelerator)
    assert (
        "warmup_steps=48 is more than the 12 steps of this training: the learning rate ends at 0.25 of its peak"
        in capsys.readouterr().out
    )


def test_a_warm_up_that_max_seconds_ends_is_mentioned(
    config: TrainConfig, accelerator: Accelerator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of steps of all epochs is enough for the warm-up, and only the time is not."""
    toy, seconds = Toy(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[-1])
    toy.at_micro_batch[4] = lambda: seconds.append(1000.0)  # so the third step of twelve is the last one
    loop.train(toy, dataclasses.replace(config, warmup_steps=12, max_seconds=500.0), accelerator)
    note = "max_seconds=500 ended the training within the warm-up of warmup_steps=12: the learning rate ends at 0.25 of its"
    assert note in capsys.readouterr().out


def test_a_run_writes_its_files(config: TrainConfig, accelerator: Accelerator) -> None:
    """It would be unknown how a run was made, or TensorBoard would show nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = loop.train(Toy(), config, accelerator)
    out = Path(config.out)
    files = "manifest.json config.json environment.json status train.log val.log metrics.jsonl curves.txt summary.json"
    assert {path.name for path in out.iterdir()} == {*files.split(), "tensorboard", "checkpoints", "best", "final"}
    assert json.loads((out / "config.json").read_text())["learning_rate"] == 0.05
    assert json.loads((out / "summary.json").read_text()) == summary
    assert (summary["ranks"], summary["steps"], summary["parameters"]) == (1, 12, 83)
    assert len((out / "train.log").read_text().splitlines()) == 12
    assert len((out / "val.log").read_text().splitlines()) == 4
    board = EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(range(1, 13))
    assert [event.step for event in board.Scalars("val/score")] == [3, 6, 9, 12]


def test_the_speed_of_a_run_excludes_evaluations_also_right_after_a_resume(
    config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first speed after a preemption would be too low, since the postponed evaluation would count as training."""

    def train(toy: Toy) -> None:
        clock = SimpleNamespace(perf_counter=lambda: toy.num_micro_batches + 1000.0 * toy.num_evaluations)
        monkeypatch.setattr(meter, "time", clock)
        loop.train(toy, config, accelerator, "auto")

    toy = Toy()
    toy.at_micro_batch = {1 + 3: lambda: (os.kill(os.getpid(), signal.SIGUSR1), time.sleep(0.3))}
    train(toy)
    train(Toy())
    speeds = {line["step"]: line["samples_per_s"] for line in lines(config) if line["kind"] == "train"}
    assert speeds == {step: 5 if step % 3 == 0 else 16 for step in range(1, 13)}


def test_tensorboard_shows_every_step_of_a_resumed_run_once(config: TrainConfig, accelerator: Accelerator) -> None:
    """After --resume a curve would have steps twice, or lack the step of the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    toy = Toy()
    toy.crash_at = 9
    with pytest.raises(KeyboardInterrupt):
        loop.train(toy, config, accelerator)
    # TensorBoard reads files in the order of their names: by the second, then by a process's counter, of which 10 precedes 9
    time.sleep(1)
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
        ({"bucket_batches": -1}, "bucket_batches=-1 is impossible: it must be 0 or more"),
        ({"bucket_batches": 2}, "this recipe's rows have no lengths"),
        ({"num_workers": -1}, "num_workers=-1 is impossible"),
        ({"num_workers": 100_000}, "num_workers=100000 is impossible: it must be from 0 to 1000"),
        ({"log_every": 0}, "log_every=0 is impossible"),
        ({"seed": -1}, "seed=-1 is impossible"),
        ({"seed": 2**63}, "seed=9223372036854775808 is impossible"),
        ({"micro_batch_size": 5}, "the nearest that does is micro_batch_size=4"),
    ],
)
def test_invalid_settings_are_refused_and_nothing_is_written(
    changed: dict[str, Any], sentence: str, config: TrainConfig, accelerator: Accelerator
) -> None:
    """A typo would waste a training, or leave a folder because of which the corrected command is refused."""
    with pytest.raises(UserError, match=sentence):
        loop.train(Toy(), dataclasses.replace(config, **changed), accelerator)
    assert not Path(config.out).exists()


def test_a_large_seed_can_be_used(config: TrainConfig, accelerator: Accelerator) -> None:
    """A date and time as the seed, or the largest seed, would end in an overflow."""
    for seed in (20261130123456, 2**63 - 1):
        with_seed = dataclasses.replace(config, seed=seed, out=f"{config.out}-{seed}", max_epochs=1)
        assert loop.train(Toy(), with_seed, accelerator)["steps"] == 3


class WithoutSum(Toy):
    """A recipe whose author forgot the sum over rows."""

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> Any:
        loss, count, state = super().step(model, batch, state)
        return loss.expand(4), count, state


def test_a_loss_for_each_row_is_refused(config: TrainConfig, accelerator: Accelerator) -> None:
    """The author of a recipe would see a traceback of PyTorch."""
    with pytest.raises(UserError, match=r"`step` of the recipe returns losses of the shape \(4,\) instead of their sum"):
        loop.train(WithoutSum(), config, accelerator)


def test_a_loss_that_explodes_stops_the_run(config: TrainConfig, accelerator: Accelerator) -> None:
    """A run would continue for days with NaN."""
    config = dataclasses.replace(config, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(
        UserError, match=r"the (loss|gradient norm) is (nan|inf).* at step \d+, .*lower learning_rate.* or nonfinite=skip$"
    ):
        loop.train(Toy(), config, accelerator)


def test_batches_that_are_not_finite_can_be_skipped(config: TrainConfig, accelerator: Accelerator) -> None:
    """One broken row would end a run of weeks, or leave NaN in the momentum or the carried state."""
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
    with pytest.raises(
        UserError,
        match=r"the loss is nan at step \d+, from rank 0, .*rows: .*saved.* \(max_nonfinite=3 batches were skipped before\)",
    ):
        loop.train(toy, dataclasses.replace(skipping, out=config.out + "2", max_nonfinite=3), accelerator)


def test_a_spike_restores_the_last_checkpoint(config: TrainConfig, accelerator: Accelerator) -> None:
    """Training would continue with weights damaged by one batch, or roll back again and again."""
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
    toy = Toy()  # the losses before the first checkpoint count too
    toy.at_micro_batch = {26: lambda: setattr(toy, "times", 1000.0), 27: lambda: setattr(toy, "times", 1.0)}
    once = dataclasses.replace(config, out=config.out + "3", checkpoint_steps=24)
    loop.train(toy, once, accelerator)
    assert [line["step"] for line in lines(once) if line["kind"] == "event"] == [25]


def test_a_spike_restores_the_same_checkpoint_after_a_preemption(
    config: TrainConfig, accelerator: Accelerator, tmp_path: Path
) -> None:
    """A preempted run would return to the step of the preemption, and have another result."""
    config = dataclasses.replace(config, spike_factor=20.0, max_epochs=9, keep_last=1, learning_rate=0.01)
    whole = dataclasses.replace(config, out=str(tmp_path / "whole"))

    def spiking(first_step: int) -> Toy:
        toy = Toy()
        step = 26 - first_step  # the first micro-batch is the trial of the memory
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
    assert same_checkpoints(whole, config)


def test_a_step_that_overflows_in_fp16_is_skipped(
    config: TrainConfig, in_fp16: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overflow would make weights infinite, or use a step of the schedule."""
    toy = Toy()
    toy.times = 1e3  # times the first loss scale of 65536, too much for gradients in fp16
    summary = loop.train(toy, dataclasses.replace(config, clip_norm=1.0), in_fp16)
    assert summary["precision"] == "fp16"
    events = [line["event"] for line in lines(config) if line["kind"] == "event"]
    assert events
    assert all("fp16 overflowed" in event for event in events)
    assert len(toy.recorder.seen) == 12 - len(events)
    assert toy.recorder.rates[0] == pytest.approx(0.025)
    assert json.loads((last(config) / "state.json").read_text())["scaler"]["scale"] < 65536
    monkeypatch.setattr(in_fp16, "scaler", torch.amp.GradScaler("cpu", init_scale=4.0))
    toy = Toy()
    toy.model = lambda: torch.nn.Sequential(Toy().model(), NanGradient())  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the gradient norm is nan"):
        loop.train(toy, dataclasses.replace(config, out=config.out + "2"), in_fp16)


# Prediction


def test_a_metric_may_be_a_number_of_numpy(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of predictions, a float32, would end the training at its first evaluation: JSON does not take it."""
    toy = Toy()
    monkeypatch.setattr(toy, "metrics", lambda predictions: {"score": np.abs(predictions["prediction"]).mean()})
    assert json.loads(json.dumps(evaluation.score(toy, toy.model(), "validation", 4, accelerator)))["score"] > 0


@pytest.mark.parametrize("batch_size", [1, 4, 11, 64])
def test_each_row_is_predicted_once_and_in_order(batch_size: int, accelerator: Accelerator) -> None:
    """A score would be computed over repeated or missing rows, or a prediction written under another row's id."""
    toy = Toy(dropout=0.5)
    model = toy.model()
    predictions = evaluation.predict(toy, model, "validation", batch_size, accelerator)
    assert predictions["row"].tolist() == list(range(11))
    with torch.no_grad():
        expected = model(torch.from_numpy(toy.rows("validation").x)).numpy()
    assert predictions["prediction"] == pytest.approx(expected, abs=1e-6)


class OtherDevice:
    """An accelerator whose process group takes tensors of its own device only, as NCCL does."""

    device, num_processes, process_index, distributed_type = torch.device("meta"), 1, 0, "NO"

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device == self.device
        return torch.ones(tensor.shape, dtype=tensor.dtype)

    def reduce(self, tensor: torch.Tensor, _: str) -> torch.Tensor:
        return self.gather(tensor)


class ReturnsToTheCpu(Toy):
    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": torch.zeros(len(batch["x"]))}


class SumsOnTheCpu(Toy):
    def sums(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": torch.zeros(len(batch["x"]), 2)}


@pytest.mark.parametrize("toy", [ReturnsToTheCpu(), SumsOnTheCpu()])
def test_what_a_recipe_returns_on_a_cpu_is_gathered_over_gpus(toy: Toy) -> None:
    """Validation would fail on several GPUs, for which NCCL takes no tensors of a CPU, but on no other machine."""
    assert evaluation.score(toy, toy.model().to("meta"), "validation", 4, OtherDevice())
