"""The estimates of --dry-run are compared with a real step; FLOPs where the memory is too small."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from toy import WIDTH, Toy, ToyRows

from ensemble.errors import UserError
from ensemble.neural import preflight
from ensemble.neural.loader import Batch, BatchPlan
from ensemble.neural.preflight import activation_bytes, mean_instead_of_sum, optimizer_state_bytes, summary
from ensemble.neural.settings import TrainConfig
from ensemble.recipe import Size

PLAN = BatchPlan(num_rows=1000, batch_size=64, micro_batch_size=8, num_ranks=2, rank=0, seed=0)


def make_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(100, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 10))


class Communicating(torch.optim.SGD):
    """Cannot step on the meta device, like an optimizer that communicates with other ranks."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].sum().item()
        return super().step(closure)


def text(settings: dict[str, Any], model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> str:
    config = TrainConfig(data="prepared", out="run", **{"warmup_steps": 5, **settings})
    return summary(config, PLAN, model, list(optimizers), "bf16", lambda: model(torch.ones(8, 100)).sum())


def test_the_summary_is_complete() -> None:
    """A user would not see what a long run does, or would get wrong numbers."""
    model = make_model()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.002, fused=True)
    settings = {"learning_rate_scaling": "linear", "base_batch_size": 32, "ema_decay": 0.99}
    output = text(settings, model, optimizer)
    weights, trainable = 100 * 1000 + 1000 + 1000 * 10 + 10, 100 * 1000 + 1000 * 10 + 10
    assert "  data: prepared\n" in output
    assert "  learning_rate_scaling: linear\n" in output
    assert "  trackers:\n  - tensorboard\n" in output
    assert f"  {weights:,} parameters, {trainable:,} trainable, precision bf16\n" in output
    activations = 8 * (100 + 1000) * 4
    assert [line.split() for line in output.splitlines() if line.endswith(" MB")] == [
        ["weights", f"{weights * 4 / 1e6:.1f}", "MB"],
        ["gradients", f"{trainable * 4 / 1e6:.1f}", "MB"],
        ["AdamW", f"{trainable * 8 / 1e6:.1f}", "MB"],
        ["averaged", "weights", f"{trainable * 4 / 1e6:.1f}", "MB"],
        ["activations", f"{activations / 1e6:.1f}", "MB"],
        ["total", f"{(weights * 4 + trainable * 16 + activations) / 1e6:.1f}", "MB"],
    ]
    assert "  examples per step: 64 = 8 × 2 ranks × 4 accumulated\n" in output
    assert "  1,000 rows, 16 steps per epoch, 48 steps in total, 5 of them warm-up\n" in output
    assert "48 steps in total, 48 of them warm-up\n" in text(settings | {"warmup_steps": 50}, model, optimizer)
    assert output.endswith("  peak learning rate 0.002, linear scaling from a batch of 32, then cosine")


def test_weights_that_are_sharded_need_less_memory_per_rank(config: TrainConfig) -> None:
    """A model that fits with FSDP would seem to need as much memory as without."""

    class Large(Toy):
        def model(self) -> torch.nn.Module:
            model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 1_000_000), torch.nn.Linear(1_000_000, 3))
            model.register_buffer("table", torch.zeros(500_000))
            return model

    def memory(distributed_type: str) -> dict[str, float]:
        facts = {"device": torch.device("cpu"), "mixed_precision": "no", "autocast": nullcontext, "process_index": 0}
        ranks: Any = SimpleNamespace(distributed_type=distributed_type, num_processes=2, **facts)
        output = preflight.describe(Large(), dataclasses.replace(config, ema_decay=0.9), ranks)
        parts = [line.rsplit(maxsplit=2) for line in output.splitlines() if line.endswith(" MB")]
        return {name.strip(): float(size) for name, size, _ in parts}

    whole = {"weights": 42.0, "gradients": 40.0, "Recorder": 40.0, "averaged weights": 40.0, "activations": 32.0}
    sharded = {"weights": 22.0, "gradients": 20.0, "Recorder": 20.0, "averaged weights": 20.0, "activations": 32.0}
    assert memory("MULTI_CPU") == pytest.approx({**whole, "total": sum(whole.values())}, rel=0.01)
    assert memory("FSDP") == pytest.approx({**sharded, "total": sum(sharded.values())}, rel=0.01)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("step", "`step` of the recipe returns NoneType: return the sum of the losses"),
        ("optimizers", "`optimizers` of the recipe returns NoneType: return a list of optimizers"),
    ],
)
def test_a_dry_run_checks_the_recipe(
    method: str, sentence: str, config: TrainConfig, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake for which a training gives one sentence would end in a traceback."""
    monkeypatch.setattr(Toy, method, lambda *arguments: None)
    with pytest.raises(UserError, match=sentence):
        preflight.describe(Toy(), config, accelerator)


def test_a_dry_run_halves_the_micro_batch_as_a_training_does(config: TrainConfig, accelerator: Accelerator) -> None:
    """A dry run would refuse a training that has enough memory."""

    class Limited(Toy):
        def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
            if len(batch["x"]) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().step(model, batch, state)

    assert "16 = 4 × 1 ranks × 4 accumulated\n" in preflight.describe(Limited(), config, accelerator)


def test_a_batch_needs_memory_for_the_rows_of_the_split_only(config: TrainConfig, accelerator: Accelerator) -> None:
    """A batch size above the number of rows, for one step per epoch, would be refused for memory that no step uses."""

    class Sized(Toy):
        def size(self, num_rows: int) -> Size:
            return Size(num_parameters=1, batch_bytes=1000 * num_rows, settings=())

    config = dataclasses.replace(config, batch_size=10**15)
    assert "1 steps per epoch" in preflight.describe(Sized(), config, accelerator)


def test_the_summary_names_what_is_not_estimated() -> None:
    """A total without an optimizer's state would look complete."""
    model = make_model()
    first, second = Communicating(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.3)
    output = text({}, model, first, second)
    assert "memory per rank, at least\n" in output
    assert [line.split() for line in output.splitlines() if line.startswith(("  Comm", "  SGD"))] == [
        ["Communicating", "1", "unknown"],
        ["SGD", "2", "0.0", "MB"],
    ]
    assert "averaged" not in output
    assert output.endswith("  peak learning rate 0.3 and 0.1, then cosine")


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, fused=True),
        lambda parameters: torch.optim.AdamW(parameters, foreach=True, amsgrad=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ],
)
def test_an_optimizers_state_is_as_large_as_after_a_real_step(make: Any) -> None:
    """The estimate would be right for one optimizer only, or would change the optimizer."""
    model = make_model()
    optimizer = make(model.parameters())
    estimate = optimizer_state_bytes(optimizer)
    assert not optimizer.state
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    model(torch.ones(2, 100)).sum().backward()
    optimizer.step()
    state = [value for entries in optimizer.state.values() for value in entries.values() if isinstance(value, torch.Tensor)]
    assert estimate == sum(value.nbytes for value in state)


def test_activations_are_the_tensors_saved_for_backward() -> None:
    """Weights, or a tensor that two layers save, would be counted twice."""
    model, x = make_model(), torch.ones(8, 100)
    random = torch.get_rng_state()
    assert activation_bytes(model, lambda: model(x).sum()) == x.nbytes + 8 * 1000 * 4
    checkpointed = torch.utils.checkpoint.checkpoint
    assert activation_bytes(model, lambda: checkpointed(model, x, use_reentrant=False).sum()) <= x.nbytes
    model.append(torch.nn.Dropout(0.5))
    assert activation_bytes(model, lambda: model(x).sum()) > x.nbytes + 8 * 1000 * 4
    assert torch.equal(random, torch.get_rng_state())


class Packed:
    """Rows of different lengths, one after the other without padding."""

    def __init__(self, *lengths: int):
        self.lengths = np.array(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Any:
        return {"x": torch.ones(int(self.lengths[rows].sum()), 4)}


def test_lengths_are_a_list_or_an_array_with_one_entry_for_each_row(accelerator: Accelerator) -> None:
    """The author of a recipe would see a traceback of the division into batches."""
    config = TrainConfig(data="prepared", out="run", batch_size=4, bucket_batches=1)
    rows: Any = Packed(3, 1, 2, 4)
    rows.lengths = rows.lengths.tolist()
    (micro,) = preflight.make_plan(rows, config, accelerator).micro_batches(0, 1)
    assert micro.rows.tolist() == [1, 2, 0, 3]
    rows = ToyRows(5)
    rows.lengths = [3, 1, 2, 4]
    with pytest.raises(UserError, match=r"has the shape \(4,\): it must have one length for each of the 5 rows"):
        preflight.make_plan(rows, config, accelerator)


class OnGpu(torch.nn.Linear):
    """Says that it was moved to a GPU."""

    def to(self, device: Any) -> "OnGpu":  # type: ignore[override]
        return self


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerator with a GPU whose peak is known; the tensors stay on the CPU."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    facts = {"device": SimpleNamespace(type="cuda"), "mixed_precision": "bf16", "autocast": nullcontext}
    return SimpleNamespace(distributed_type="NO", **facts)


@pytest.mark.parametrize("bucket_batches", [0, 50])
def test_flops_are_those_of_examples_of_average_length(bucket_batches: int, gpu: Any) -> None:
    """MFU would be too high by a factor, since the examples per second are those of all lengths."""
    rows = Packed(*range(1, 1001))
    plan = BatchPlan(1000, 400, 400, 1, 0, 0, bucket_batches, rows.lengths)
    recipe: Any = SimpleNamespace(rows=lambda split: rows, step=lambda model, batch, _: (model(batch["x"]).sum(), 1, None))
    assert preflight.flops(recipe, OnGpu(4, 3), plan, gpu)[0] == pytest.approx(2 * 4 * 3 * 2 * 500, rel=0.1)


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_flops_with_bucketing_are_those_of_less_padding(num_ranks: int, gpu: Any) -> None:
    """MFU would be too high, since the examples per second are those of bucketed micro-batches."""

    class Padded(Packed):
        def gather(self, rows: np.ndarray, epoch: int = 0) -> Any:
            return {"x": torch.ones(len(rows) * int(self.lengths[rows].max()), 4)}

    rows = Padded(*np.random.default_rng(0).geometric(0.02, 20_000))
    plan = BatchPlan(20_000, 64, 16, num_ranks, 0, 0, 8, rows.lengths)
    recipe: Any = SimpleNamespace(rows=lambda split: rows, step=lambda model, batch, _: (model(batch["x"]).sum(), 1, None))
    ranks = [dataclasses.replace(plan, rank=rank) for rank in range(num_ranks)]
    micro_batches = [micro.rows for plan in ranks for micro in plan.micro_batches(0, plan.steps_per_epoch) if not micro.idle]
    padded = sum(len(numbers) * rows.lengths[numbers].max() for numbers in micro_batches) / len(rows)
    assert preflight.flops(recipe, OnGpu(4, 3), plan, gpu)[0] == pytest.approx(2 * 4 * 3 * 2 * padded, rel=0.1)


@pytest.mark.parametrize("most_rows", [8, 3, 0])
def test_flops_are_counted_on_a_micro_batch_that_fits(most_rows: int, gpu: Any) -> None:
    """A GPU whose peak is known would end the training out of memory, before the micro-batch is halved."""
    sizes = list[int]()

    def step(model: torch.nn.Module, batch: Any, state: None) -> tuple[torch.Tensor, int, None]:
        sizes.append(len(batch["x"]))
        if sizes[-1] > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return model(batch["x"]).sum(), 1, None

    recipe = SimpleNamespace(rows=lambda split: Packed(*[1] * 1000), step=step)
    arguments: Any = recipe, OnGpu(4, 3), PLAN, gpu
    if most_rows:
        assert preflight.flops(*arguments) == (2 * 4 * 3 * 2, 989.4e12)
        assert sizes == {8: [8], 3: [8, 4, 2]}[most_rows]
    else:
        with pytest.raises(UserError, match="micro_batch_size=1 does not fit into memory"):
            preflight.flops(*arguments)
        gpu.distributed_type = "FSDP"  # a model that no GPU could hold is not counted
        assert preflight.flops(*arguments) == (0.0, None)


class Losses:
    """A recipe whose `step` returns the mean or the sum over the elements of each row, and the number of rows or 1."""

    def __init__(self, is_mean: bool, counts_rows: bool, dropout: float = 0.0):
        torch.manual_seed(0)
        self.is_mean, self.counts_rows = is_mean, counts_rows
        self.network = torch.nn.Sequential(torch.nn.Linear(WIDTH, 200), torch.nn.Dropout(dropout), torch.nn.Linear(200, 1))

    def rows(self, split: str) -> ToyRows:
        return ToyRows(100)

    def step(self, model: torch.nn.Module, batch: Any, state: None) -> tuple[torch.Tensor, torch.Tensor, None]:
        losses = (model(batch["x"])[:, 0] - batch["y"][:, 0]) ** 2
        count = float(len(losses)) if self.counts_rows else 1.0
        return losses.mean() if self.is_mean else losses.sum(), torch.tensor(count), None


@pytest.mark.parametrize(
    ("is_mean", "counts_rows", "words"),
    [
        (False, True, ""),
        (True, True, "returns the loss"),
        (True, False, "returns the loss"),
        (False, False, "returns the count 1 "),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("micro_batch_size", [4, 32])
def test_a_mean_instead_of_a_sum_is_noticed(
    is_mean: bool, counts_rows: bool, words: str, dropout: float, micro_batch_size: int, accelerator: Accelerator
) -> None:
    """The gradient would depend on the size of the micro-batches and the number of processes, without a message."""
    recipe: Any = Losses(is_mean, counts_rows, dropout)
    plan = dataclasses.replace(PLAN, micro_batch_size=micro_batch_size)
    random_state = torch.get_rng_state()
    sentence = mean_instead_of_sum(recipe, recipe.network, plan, accelerator)
    assert words in sentence
    assert bool(sentence) == bool(words)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_losses_of_fewer_than_four_rows_are_not_compared(accelerator: Accelerator) -> None:
    """A layer that needs several rows would end in a traceback, and one row cannot be halved."""
    recipe: Any = Losses(is_mean=True, counts_rows=True)
    assert mean_instead_of_sum(recipe, recipe.network, dataclasses.replace(PLAN, micro_batch_size=2), accelerator) == ""


@pytest.mark.parametrize(("num_ranks", "noise", "is_noticed"), [(2, 0.0, True), (1, 0.0, False), (2, 1.0, False)])
def test_a_loss_that_compares_rows_of_a_batch_is_noticed(
    num_ranks: int, noise: float, is_noticed: bool, accelerator: Accelerator
) -> None:
    """With in-batch negatives the gradient would depend on the number of processes, without a message."""

    class InBatch(Losses):
        def step(self, model: torch.nn.Module, batch: Any, state: None) -> tuple[torch.Tensor, torch.Tensor, None]:
            outputs = model(batch["x"]) + noise * torch.randn(len(batch["x"]), 1)
            losses = torch.logsumexp(outputs @ outputs.T, 1)
            return losses.sum(), torch.tensor(float(len(losses))), None

    recipe: Any = InBatch(is_mean=False, counts_rows=True)
    plan = dataclasses.replace(PLAN, batch_size=32 * num_ranks, micro_batch_size=32, num_ranks=num_ranks)
    sentence = mean_instead_of_sum(recipe, recipe.network, plan, accelerator)
    assert ("loss of a row depends on the other rows of its micro-batch" in sentence) == is_noticed
    assert bool(sentence) == is_noticed
