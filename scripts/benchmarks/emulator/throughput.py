"""The training loop beside a plain PyTorch loop that holds all rows as tensors and indexes them by a permutation.

Both train the 14 → 3 × 64 → 1 network in one process with one thread, in turn: a block of ours stands between two plain
ones, by whose mean it is divided. A step is from one `optimizer.step` to the next, in CPU seconds of the process; evaluation
and checkpoints do not count, since the median of the steps is taken. The plain loop has no schedule, log, check of the loss
or gradient norm.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.runs import by_neighbours, quartiles
from ensemble import folders
from ensemble.neural import loop
from ensemble.neural.settings import config_class
from ensemble.recipes.emulator import training
from ensemble.recipes.emulator.settings import RecipeConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCHES = {1_000: 300, 10_000: 50}
"""Batch size: steps of a block."""
WARM_UP_STEPS = 20


class Timed(training.Emulation):
    """The recipe, whose optimizer writes down the CPU time of each step."""

    times: list[float]

    def optimizers(self, model: torch.nn.Module, learning_rate: float, weight_decay: float) -> list[torch.optim.Optimizer]:
        (optimizer,) = super().optimizers(model, learning_rate, weight_decay)
        self.times = []
        optimizer.register_step_post_hook(lambda *_: self.times.append(time.process_time()))
        return [optimizer]


def of_rank(accelerator: "Accelerator", rounds: int, out: Path) -> None:
    """Write found.json into `out`: for each batch size, milliseconds of a step, and our throughput by the plain loop's."""
    found = {}
    for batch_size, num_steps in BATCHES.items():
        blocks: tuple[list[float], list[float]] = ([], [])
        for number in range(2 * rounds + 1):
            recipe = Timed(RecipeConfig(), out / "prepared")
            if number % 2:
                _ours(recipe, batch_size, num_steps, out / f"{batch_size}-{number}", accelerator)
            else:
                _plain(recipe, batch_size, num_steps)
            blocks[number % 2].append(1e3 * float(np.median(np.diff(recipe.times[WARM_UP_STEPS:]))))
        ratios, noise = by_neighbours(*blocks)
        found[str(batch_size)] = {
            "plain_ms": round(float(np.median(blocks[0])), 4),
            "ours_ms": round(float(np.median(blocks[1])), 4),
            "throughput": quartiles([1 / ratio for ratio in ratios]),
            "plain_by_plain": quartiles(noise),
        }
    folders.write_json(out / "found.json", found)


def _ours(recipe: Timed, batch_size: int, num_steps: int, out: Path, accelerator: "Accelerator") -> None:
    epochs = num_steps / -(-len(recipe.rows("train")) // batch_size)
    settings: Any = config_class("emulator")(
        data="sea ice", out=str(out), recipe=recipe.config, batch_size=batch_size, max_epochs=epochs, trackers=()
    )
    loop.train(recipe, settings, accelerator)
    accelerator.free_memory()


def _plain(recipe: Timed, batch_size: int, num_steps: int) -> None:
    """The same network, optimizer and loss; batches that would be shorter are left out."""
    columns = recipe.rows("train").columns
    inputs, outputs = (torch.from_numpy(columns[name].all().copy()) for name in ("inputs", "outputs"))
    torch.manual_seed(0)
    model = recipe.model()
    (optimizer,) = recipe.optimizers(model, 1e-3, 0.0)
    scale = float(recipe.statistics()[1].deviation[0])
    step = 0
    while step < num_steps:
        order = torch.randperm(len(inputs))
        for begin in range(0, len(inputs) - batch_size + 1, batch_size):
            rows = order[begin : begin + batch_size]
            loss = (((model(inputs[rows]) - outputs[rows]) / scale) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == num_steps:
                break
