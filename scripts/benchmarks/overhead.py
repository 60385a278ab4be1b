"""The duration of a step of the training loop, relative to a plain PyTorch loop.

A block is one training with the same model, optimizer and rows in both loops. Blocks of the plain loop and of ours alternate
in the same processes, with one thread for each rank, and are compared by `PairedRatios`. The duration of a block is the
median of its steps, each from the end of one `optimizer.step` to the end of the next: start, evaluation and checkpoints do
not count.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.commands import command
from benchmarks.runs import enough, launcher, measure_alternating, num_gpus, on_rank, paired_ratios, quartiles
from benchmarks.timing import called
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.loader import Batch
from ensemble.neural.settings import TrainConfig

WARM_UP_STEPS = 20


class Mlp(torch.nn.Sequential):
    """32-256-256-1: a step takes so little time that the overhead of a loop is a large part of it."""

    batch_size, num_steps = 256, 420

    def __init__(self) -> None:
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        super().__init__(linear(32, 256), relu(), linear(256, 256), relu(), linear(256, 1))


class Transformer(torch.nn.Module):
    """Two blocks of width 64 over sequences of 64 steps with 32 values each."""

    batch_size, num_steps = 16, 100

    def __init__(self) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(32, 64)
        block = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.leave = torch.nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.blocks(self.enter(x)))


MODELS: dict[str, type[Mlp] | type[Transformer]] = {"mlp": Mlp, "transformer": Transformer}


class RegressionRows:
    """Random inputs and targets of a regression."""

    def __init__(self, num_rows: int, shape: tuple[int, ...]):
        generator = np.random.default_rng(0)
        self.x = generator.standard_normal((num_rows, *shape, 32), np.float32)
        self.y = generator.standard_normal((num_rows, *shape, 1), np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        return {"x": torch.from_numpy(self.x[rows]), "y": torch.from_numpy(self.y[rows])}

    # PyTorch's DataLoader calls `__getitem__` if it has no batch size and the sampler yields batches, else `__getitems__`
    __getitem__ = __getitems__ = gather


class Regression:
    """A recipe with one of `MODELS`, whose optimizer records the time of each step."""

    name, fingerprint, monitor = "regression", "none", "score"
    higher_is_better, output = True, "value"

    def __init__(self, model: str):
        self.inputs: dict[str, Any] = {}
        self.kind = MODELS[model]
        shape = (64,) if self.kind is Transformer else ()
        size = self.kind.batch_size
        self.splits = {"train": RegressionRows(size * self.kind.num_steps, shape), "validation": RegressionRows(size, shape)}
        self.times: list[float] = []
        self.clock = time.perf_counter

    def rows(self, split: str) -> RegressionRows:
        return self.splits[split]

    def model(self) -> torch.nn.Module:
        return self.kind()

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)
        self.times = []
        optimizer.register_step_post_hook(lambda *_: self.times.append(self.clock()))
        return [optimizer]

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        errors = (model(batch["x"]) - batch["y"]) ** 2
        return errors.sum(), torch.tensor(float(errors.numel())), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": model(batch["x"]).flatten(1).mean(dim=1)}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        return {"score": 0.0}

    def describe(self, split: str) -> dict[str, np.ndarray]:
        return {"row_id": np.arange(len(self.rows(split)))}


Loop = Callable[[Regression, TrainConfig, Accelerator], None]
"""A function that trains a recipe from new weights."""


def ours(recipe: Regression, config: TrainConfig, accelerator: Accelerator) -> None:
    loop.train(recipe, config, accelerator)
    accelerator.free_memory()


def start(
    recipe: Regression, config: TrainConfig, device: torch.device | str = "cpu"
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    """A new model, its optimizer, and the learning rate schedule of our loop: linear warm-up, then half a cosine to 0."""
    num_steps = len(recipe.rows("train")) // config.batch_size

    def learning_rate_factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        return 0.5 * (1 + math.cos(math.pi * (step + 1 - config.warmup_steps) / (num_steps - config.warmup_steps)))

    torch.manual_seed(config.seed)
    model = recipe.model().to(device)
    (optimizer,) = recipe.optimizers(model, config.learning_rate, config.weight_decay)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)


def plain(recipe: Regression, config: TrainConfig, accelerator: Accelerator) -> None:
    """The loop that a user would write without this project, on the same ranks and devices.

    It trains the same weights, with the same rows, clipping and schedule. At each step it also sums the losses of the ranks,
    but it writes no log.
    """
    ranks, rank, device = accelerator.num_processes, accelerator.process_index, accelerator.device
    is_gpu, is_bf16 = device.type == "cuda", accelerator.mixed_precision == "bf16"
    rows: Any = recipe.rows("train")
    num_steps = len(rows) // config.batch_size

    model, optimizer, schedule = start(recipe, config, device)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    order = np.random.default_rng([config.seed, 0]).permutation(len(rows)).reshape(num_steps, ranks, -1)
    for batch in torch.utils.data.DataLoader(rows, sampler=order[:, rank], batch_size=None, pin_memory=is_gpu):
        batch = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
            loss_sum, count, _ = recipe.step(model, batch, None)
        loss = loss_sum / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss = loss.detach()
        if ranks > 1:
            torch.distributed.all_reduce(loss)
        assert math.isfinite(loss.item())


@command
def overhead(rounds: int = 10) -> dict[str, Any]:
    """The duration of a step of the training loop relative to a plain PyTorch loop, on one and two ranks; three minutes.

    rounds : blocks of our loop, each between two of the plain one, for each model and number of ranks
    """
    enough(rounds, 3)
    results = {}
    for ranks in (1, 2):
        for model, figures in called(on_rank, __name__, rounds, start=launcher(ranks)).items():
            name = f"{model}, {'1 rank' if ranks == 1 else f'{ranks} ranks'}"
            results[name] = figures
            print(f"{name}: {figures['step']}", flush=True)
    return results


@command
def overhead_gpu(rounds: int = 5) -> dict[str, Any]:
    """The duration of a step of the training loop relative to a plain PyTorch loop, on one GPU in bf16; one minute.

    rounds : as in `overhead`
    """
    enough(rounds, 3)
    if not num_gpus():
        raise UserError("torch finds no GPU on this machine: run this command where nvidia-smi lists one")
    return called(on_rank, __name__, rounds, start=launcher(1, "gpu"))


def measure_rank(accelerator: Accelerator, rounds: int) -> dict[str, Any]:
    """Compare our loop with the plain one for each model. Every launched rank calls this function."""
    return {model: {"step": compare_loops(plain, model, accelerator, rounds)} for model in MODELS}


def compare_loops(other: Loop, model: str, accelerator: Accelerator, rounds: int, name: str = "plain") -> dict[str, Any]:
    """Run blocks of another loop, called `name` in the result, and of ours alternately; return `compared` of their times."""
    recipe = Regression(model)
    other_block, our_block = (partial(block, loop, recipe, accelerator) for loop in (other, ours))
    return compared(*measure_alternating(other_block, our_block, rounds), name)


def block(run: Loop, recipe: Regression, accelerator: Accelerator) -> float:
    """Train a new model with `run`, and return the median duration of a step in milliseconds."""
    return 1e3 * float(np.median(step_seconds(run, recipe, accelerator)))


def step_seconds(run: Loop, recipe: Regression, accelerator: Accelerator) -> np.ndarray:
    """Train a new model with `run`, and return the duration of each step after the warm-up, by the clock of the recipe."""
    with tempfile.TemporaryDirectory() as out:
        config = TrainConfig(
            data="random", out=f"{out}/run", batch_size=recipe.kind.batch_size, max_epochs=1,
            evaluations_per_epoch=1, log_every=10,
        )  # fmt: skip
        run(recipe, config, accelerator)
        accelerator.wait_for_everyone()
    assert len(recipe.times) == recipe.kind.num_steps, "the loop did not take the expected number of steps"
    return np.diff(recipe.times[WARM_UP_STEPS:])


def compared(other_ms: list[float], ours_ms: list[float], other: str = "plain") -> dict[str, Any]:
    """The medians of both loops, the quartiles of `PairedRatios.ratios`, and, as OTHER_by_OTHER, those of `.noise`."""
    paired = paired_ratios(other_ms, ours_ms)
    return {
        f"{other}_ms": round(statistics.median(other_ms), 4),
        "ours_ms": round(statistics.median(ours_ms), 4),
        "ratio": quartiles(paired.ratios),
        f"{other}_by_{other}": quartiles(paired.noise),
    }
