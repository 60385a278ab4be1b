"""loader=auto: the measurement, and the choice."""

import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ensemble import cores
from ensemble.neural import loader_tuning
from ensemble.neural.loader import BatchPlan
from ensemble.neural.loader_tuning import Setting, candidates, cores_of_this_rank, fewest_workers

PLAN = BatchPlan(40, 4, 0, 1, 0, 0)
SOURCE: Any = None  # the stand-ins below read nothing


@given(cores=st.integers(1, 300))
def test_all_settings_up_to_the_number_of_cores_are_measured(cores: int) -> None:
    """Cores would stay idle, or more processes would start than there are cores."""
    settings = candidates(cores)
    assert len(settings) == len(set(settings))
    workers = {num_workers for num_workers, _ in settings}
    assert workers == {0, *(2**power for power in range(9) if 2**power <= cores)}
    assert {(num_workers, factor) for num_workers in workers - {0} for factor in (2, 4, 8)} == set(settings[1:])


@given(st.dictionaries(st.sampled_from(candidates(8)), st.floats(1, 1000), min_size=1))
def test_the_fewest_workers_within_the_tolerance_are_chosen(speeds: dict[Setting, float]) -> None:
    """Noise of a short measurement would cost processes and memory."""
    chosen = fewest_workers(speeds)
    assert speeds[chosen] >= 0.95 * max(speeds.values())
    assert all(speed < 0.95 * max(speeds.values()) for setting, speed in speeds.items() if setting < chosen)


@pytest.mark.parametrize(
    ("granted", "slurm", "ranks", "share"),
    [(8, "", "2", 4), (8, "", None, 8), (2, "", "4", 1), (7, "", "2", 3), (64, "8", "2", 4), (64, "8", None, 8)],
)
def test_ranks_share_the_available_cores(
    granted: int, slurm: str, ranks: str | None, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a node's ranks would start as many workers as the node, or all ranks together, have cores."""
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(granted)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores_of_this_rank() == share


class Clocked:
    """A mock of `Feed` with a clock: the start takes 30 s, prefetched batches none, each later batch 0.25 s."""

    now = 0.0

    def __init__(self, source: Any, micro_batches: Any, *, device: Any, num_workers: int, prefetch_factor: int):
        self.held = num_workers * prefetch_factor
        self.entered = False
        type(self).now += 30.0

    def __enter__(self) -> "Clocked":
        self.entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self.entered = False

    def __next__(self) -> None:
        assert self.entered
        self.held -= 1
        if self.held < 0:
            type(self).now += 0.25


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, 2), (1, 8), (4, 4)])
def test_start_and_prefetched_batches_are_not_measured(
    num_workers: int, prefetch_factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few workers would win because they start sooner, or large prefetch factors because of the prefetched batches."""
    monkeypatch.setattr(loader_tuning, "Feed", Clocked)
    monkeypatch.setattr(loader_tuning, "time", types.SimpleNamespace(perf_counter=lambda: Clocked.now))
    setting = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
    assert loader_tuning.batches_per_s(SOURCE, PLAN, torch.device("cpu"), **setting, seconds=2.0) == 4.0


def test_the_table_shows_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of the choice would not be visible, or the table would show another one."""
    speeds = {(0, 2): 123.45, (1, 2): 940.0, (1, 4): 960.0, (1, 8): 1000.0, (2, 2): 990.0, (2, 4): 7.0, (2, 8): 8.0}
    budgets = []

    def measured(source: Any, plan: Any, device: Any, num_workers: int, factor: int, *, seconds: float) -> float:
        budgets.append(seconds)
        return speeds[num_workers, factor]

    monkeypatch.setattr(loader_tuning, "cores_of_this_rank", lambda: 3)
    monkeypatch.setattr(loader_tuning, "batches_per_s", measured)
    messages: list[str] = []
    assert loader_tuning.choose(SOURCE, PLAN, torch.device("cpu"), messages.append, budget_s=7.0) == (1, 4)
    assert budgets == [1.0] * 7
    assert messages == [
        "num_workers  prefetch_factor  batches/s\n"
        "          0                –      123.5\n"
        "          1                2      940.0\n"
        "          1                4      960.0  <- chosen\n"
        "          1                8     1000.0\n"
        "          2                2      990.0\n"
        "          2                4        7.0\n"
        "          2                8        8.0"
    ]
