"""loader=auto: measure the speed of the DataLoader with each number of workers and prefetch factor, and choose one pair."""

import itertools
import os
import time
from collections.abc import Callable

import torch

from ensemble import cores
from ensemble.neural.loader import BatchPlan, Feed, Rows

PREFETCH_FACTORS = (2, 4, 8)
TOLERANCE = 0.95
"""A setting with at least this share of the highest speed counts as equally fast, since short measurements are noisy."""

Setting = tuple[int, int]
"""num_workers and prefetch_factor."""


def choose(
    source: Rows, plan: BatchPlan, device: torch.device, log: Callable[[str], None], budget_s: float = 5.0
) -> Setting:
    """The fewest workers, then the smallest prefetch_factor, among the settings within 5 % of the fastest.

    `log` is called with a table of all settings. Measuring takes `budget_s` seconds, and the time to start the workers.
    Ranks may get different results: use that of the main process on all of them.
    """
    settings = candidates(cores_of_this_rank())
    speeds = {
        setting: batches_per_s(source, plan, device, *setting, seconds=budget_s / len(settings)) for setting in settings
    }
    chosen = fewest_workers(speeds)
    log(table(speeds, chosen))
    return chosen


def cores_of_this_rank() -> int:
    """The cores available to this process, divided by the number of ranks on this machine; at least 1."""
    return max(1, cores.granted() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def candidates(num_cores: int) -> list[Setting]:
    """No worker, where prefetch_factor has no effect; then 1, 2, 4, … workers up to `num_cores`, each with every factor."""
    numbers_of_workers = [2**power for power in range(num_cores.bit_length())]
    return [(0, PREFETCH_FACTORS[0]), *itertools.product(numbers_of_workers, PREFETCH_FACTORS)]


def batches_per_s(
    source: Rows, plan: BatchPlan, device: torch.device, num_workers: int, prefetch_factor: int, seconds: float
) -> float:
    """Micro-batches per second on the device, after the workers have started and the prefetched batches are used up."""
    endless = plan.micro_batches(0, 10**12)
    with Feed(source, endless, device=device, num_workers=num_workers, prefetch_factor=prefetch_factor) as feed:
        for _ in range(max(1, num_workers * prefetch_factor)):
            next(feed)
        began, number, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < seconds:
            next(feed)
            number, elapsed = number + 1, time.perf_counter() - began
    return number / elapsed


def fewest_workers(speeds: dict[Setting, float]) -> Setting:
    """The fewest workers, then the smallest prefetch_factor, whose speed is at least `TOLERANCE` × that of the fastest."""
    fastest = max(speeds.values())
    return min(setting for setting, speed in speeds.items() if speed >= TOLERANCE * fastest)


def table(speeds: dict[Setting, float], chosen: Setting) -> str:
    """One line per setting: workers, prefetch factor, batches per second, and a mark at the chosen setting."""
    lines = ["num_workers  prefetch_factor  batches/s"]
    for (num_workers, prefetch_factor), speed in speeds.items():
        factor = prefetch_factor if num_workers else "–"
        mark = "  <- chosen" if (num_workers, prefetch_factor) == chosen else ""
        lines.append(f"{num_workers:11}  {factor:>15}  {speed:9.1f}{mark}")
    return "\n".join(lines)
