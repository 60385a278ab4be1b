"""The training loop relative to a plain PyTorch loop that holds all rows as tensors and indexes them by a permutation.

Both train the same network (14 inputs, three layers of width 64, one output), alternately in one process with one thread.
Blocks are compared by `PairedRatios`. A step lasts from one `optimizer.step` to the next, in CPU seconds of the process,
without evaluation and checkpoints. The plain loop has no learning-rate schedule, no log, and no check of the loss or the
gradient norm.
"""

import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.overhead import WARM_UP_STEPS, compared
from benchmarks.runs import measure_alternating, paired_ratios, quartiles
from ensemble.neural import loop
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.settings import config_class
from ensemble.recipes.emulator import training
from ensemble.recipes.emulator.settings import RecipeConfig

BATCHES = {1_000: 300, 10_000: 50}
"""For each batch size the number of steps of a block."""


class Timed(training.Emulation):
    """The recipe with an optimizer that records the CPU time of each step."""

    times: list[float]

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        (optimizer,) = super().optimizers(model, learning_rate, weight_decay)
        self.times = []
        optimizer.register_step_post_hook(lambda *_: self.times.append(time.process_time()))
        return [optimizer]


def measure_rank(accelerator: Accelerator, rounds: int, folder: str) -> dict[str, Any]:
    """By batch size, milliseconds of a step, and our throughput relative to the plain loop's; `folder` has prepared data."""
    figures, numbers, out = {}, itertools.count(), Path(folder)

    def block(is_ours: bool, batch_size: int, num_steps: int) -> float:
        recipe = Timed(RecipeConfig(), out / "prepared")
        if is_ours:
            _ours(recipe, batch_size, num_steps, out / str(next(numbers)), accelerator)
        else:
            _plain(recipe, batch_size, num_steps)
        return 1e3 * float(np.median(np.diff(recipe.times[WARM_UP_STEPS:])))

    for batch_size, num_steps in BATCHES.items():
        plain, ours = (partial(block, is_ours, batch_size, num_steps) for is_ours in (False, True))
        plain_ms, ours_ms = measure_alternating(plain, ours, rounds)
        throughput = quartiles([1 / ratio for ratio in paired_ratios(plain_ms, ours_ms).ratios])
        figures[str(batch_size)] = {**compared(plain_ms, ours_ms), "throughput": throughput}
    return figures


def _ours(recipe: Timed, batch_size: int, num_steps: int, out: Path, accelerator: Accelerator) -> None:
    epochs = num_steps / -(-len(recipe.rows("train")) // batch_size)
    settings: Any = config_class("emulator")(
        data="sea ice", out=str(out), recipe=recipe.config, batch_size=batch_size, max_epochs=epochs, trackers=()
    )
    loop.train(recipe, settings, accelerator)
    accelerator.free_memory()


def _plain(recipe: Timed, batch_size: int, num_steps: int) -> None:
    """The same network, optimizer and loss; an incomplete last batch is left out."""
    columns = recipe.rows("train").columns
    inputs, outputs = (torch.from_numpy(columns[name].all().copy()) for name in ("inputs", "outputs"))
    torch.manual_seed(0)
    model = recipe.model()
    (optimizer,) = recipe.optimizers(model, 1e-3, 0.0)
    scale = float(recipe.statistics[1].deviation[0])
    num_batches = len(inputs) // batch_size
    epochs = (torch.randperm(len(inputs))[: num_batches * batch_size].split(batch_size) for _ in itertools.count())
    for rows in itertools.islice(itertools.chain.from_iterable(epochs), num_steps):
        loss = (((model(inputs[rows]) - outputs[rows]) / scale) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
