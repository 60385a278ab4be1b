"""What the benchmarks of trainings share: how one is launched, how fast it went, what its speed is compared with."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks.timing import ROOT
from ensemble.errors import UserError

WARM_UP_STEPS = 10
"""A training's log up to this step does not count: it holds a cold start, and the compilation if there is one."""


def launcher(
    ranks: int, hardware: Literal["cpu", "gpu"] = "cpu", configuration: str = "", threads: int = 1
) -> list[str | Path]:
    """The words before a script that start so many ranks on this machine, by the YAML `configuration` or the hardware's."""
    yaml = configuration or ROOT / "accelerate_configs" / f"{'single' if ranks == 1 else 'multi'}_{hardware}.yaml"
    accelerate = Path(sys.executable).with_name("accelerate")
    words = ["--quiet", "--config_file", yaml, "--num_processes", str(ranks)]
    return ["env", f"OMP_NUM_THREADS={threads}", accelerate, "launch", *words]


def num_gpus() -> int:
    """Asked of another process, for torch would count as memory of every one that starts after it."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def speed(run: Path) -> tuple[float, float]:
    """A run's median samples a second, and its mean share of time waited for data, once it is warm.

    Raises `UserError` for a run that was too short to be warm.
    """
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    warm = [line for line in lines if line["kind"] == "train" and line["step"] > WARM_UP_STEPS]
    if not warm:
        raise UserError(
            f"a training of {max((line['step'] for line in lines), default=0)} steps is too short to measure, for the first "
            f"{WARM_UP_STEPS} do not count: raise max_epochs, or lower batch_size or log_every"
        )
    return statistics.median(line["samples_per_s"] for line in warm), statistics.mean(line["data_wait"] for line in warm)


def enough(rounds: int, least: int, name: str = "rounds", what: str = "quartiles") -> None:
    """Raise `UserError` for fewer rounds than what will be told of them needs."""
    if rounds < least:
        raise UserError(f"{name}={rounds} is impossible: for {what} it must be {least} or more")


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of two values or more."""
    least, median, most = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(median, 4), "quartile_1": round(least, 4), "quartile_3": round(most, 4)}


def by_neighbours(without: Sequence[float], with_it: Sequence[float]) -> tuple[list[float], list[float]]:
    """Ratios of what was measured in turn, without, with, without, …, without, to the mean of its two neighbours.

    A drift of the machine cancels. The second list is the noise: each value without, by the nearest two without.
    """
    ratios = [2 * value / (before + after) for before, value, after in zip(without, with_it, without[1:], strict=False)]
    noise = [2 * value / (before + after) for before, value, after in zip(without, without[1:], without[2:], strict=False)]
    return ratios, noise
