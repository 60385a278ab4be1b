"""The parts of a training step on several ranks: a rank's own work, waiting for the slowest rank, exchange of gradients.

Blocks of steps alternate in the same processes: with the exchange of gradients, as in every training, and without it. The
wait for the sum of the losses is subtracted from every step. So in blocks without the exchange, the duration of a step on a
rank includes no wait for other ranks. The mean of these durations over steps and ranks is the work of a rank. The mean over
steps of the duration on the slowest rank is the duration of a step without the exchange.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.commands import command
from benchmarks.roofline import WARM_UP_STEPS, WORDS, config_of, prepared, set_up
from benchmarks.runs import enough, launcher, on_rank, quartiles, refuse_unknown
from benchmarks.timing import called
from ensemble.neural.accelerator import Accelerator

STEPS = 20
"""The number of steps of a block."""


@command
def exchange(folder: str = "runs/roofline", recipe: str = "hot_sellers", ranks: int = 2, rounds: int = 30) -> dict[str, Any]:
    """The parts of a training step on several ranks: work, waiting for the slowest rank, exchange; three minutes.

    All ranks run on this machine, each with one thread.

    folder : prepared data, which are generated if they are not there
    recipe : the recipe whose network is trained
    ranks : number of ranks; at least 2
    rounds : pairs of blocks of 20 steps with and without the exchange
    """
    enough(rounds, 3)
    enough(ranks, 2, "ranks", "an exchange")
    refuse_unknown("recipe", [recipe], WORDS)
    data = str(prepared(Path(folder), recipe).resolve())
    figures: dict[str, Any] = called(on_rank, __name__, recipe, data, rounds, start=launcher(ranks))
    return {"recipe": recipe, "ranks": ranks, "rounds": rounds, "steps_of_a_block": STEPS, **figures}


def measure_rank(accelerator: Accelerator, recipe: str, data: str, rounds: int) -> dict[str, Any]:
    """Run blocks with and without the exchange alternately, on the ranks that were launched.

    Returns quartiles over the rounds: the milliseconds of a step with the exchange, and its three parts as fractions of it.
    """
    with tempfile.TemporaryDirectory() as out, ExitStack() as stack:
        training = set_up(recipe, config_of(recipe, data, f"{out}/run"), accelerator, stack)
        _block(training, WARM_UP_STEPS)
        assert _num_different_weights(training) == 1, "gradients were not exchanged"
        exchanged, local = [], []
        for _ in range(rounds):
            exchanged.append(_block(training, STEPS))
            with accelerator.no_sync(training.model):
                local.append(_block(training, STEPS))
        assert _num_different_weights(training) == accelerator.num_processes, "gradients were exchanged"
    step_ms, work_ms = (np.mean(blocks, axis=(1, 2)) for blocks in (exchanged, local))
    slowest_ms = np.max(local, axis=1).mean(axis=1)
    return {
        "parameters": training.num_parameters,
        "batch_size": training.plan.batch_size,
        "step_ms": quartiles(step_ms.tolist()),
        "work": quartiles((work_ms / step_ms).tolist()),
        "waiting_for_the_slowest": quartiles(((slowest_ms - work_ms) / step_ms).tolist()),
        "exchange": quartiles(((step_ms - slowest_ms) / step_ms).tolist()),
    }


def _block(training: Any, num_steps: int) -> np.ndarray:
    """The milliseconds of each step on each rank, (num_ranks, num_steps), without the wait for the sum of the losses."""
    import torch
    from accelerate.utils import gather_object

    from ensemble.neural import loop

    waited_s = 0.0

    def all_reduce(*arguments: Any, **named: Any) -> Any:
        reduction = original(*arguments, **named)

        def wait() -> None:
            nonlocal waited_s
            began = time.perf_counter()
            reduction.wait()
            waited_s += time.perf_counter() - began

        return SimpleNamespace(wait=wait)

    original = torch.distributed.all_reduce
    training.accelerator.wait_for_everyone()
    times = [time.perf_counter()]
    with mock.patch("torch.distributed.all_reduce", all_reduce):
        for _ in range(num_steps):
            loop.update(training, loop.step(training))
            times.append(time.perf_counter() - waited_s)
    return 1e3 * np.diff(np.array(gather_object([times])))


def _num_different_weights(training: Any) -> int:
    """The number of different sums of weights on the ranks."""
    from accelerate.utils import gather_object

    return len(set(gather_object([sum(weight.detach().double().sum().item() for weight in training.model.parameters())])))
