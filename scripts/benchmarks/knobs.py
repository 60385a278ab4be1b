"""The effect of settings of scripts/train.py on speed and memory. Each run with a setting is between two runs without it.

All runs are started by accelerate-launch on one rank, and are compared by `PairedRatios` of runs.py.
"""

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.data import prepared_market
from benchmarks.runs import columns, enough, launcher, measure_alternating, paired_ratios, quartiles, shown, speed
from benchmarks.timing import SCRIPTS, timed

MARKET = ("market.num_products=500", "market.num_reviews=20000")
SMALL = (
    "batch_size=128", "max_epochs=0.5", "evaluations_per_epoch=1", "warmup_steps=5", "log_every=5",
    "recipe.width=128", "recipe.num_layers=4",
)  # fmt: skip
"""Settings of all trainings: a small network, trained for half an epoch."""

KNOBS = ("compile=true", "recipe.gradient_checkpointing=true", "precision=bf16")
"""The settings that are compared with the defaults."""


@command
def knobs(rounds: int = 3) -> dict[str, Any]:
    """The effect of settings of train.py on a CPU: speed, memory and seconds; ten minutes.

    For compile=true, the difference in `wall_s` contains the duration of the compilation.

    rounds : trainings with each setting, each between two without it; at least 2
    """
    enough(rounds, 2)
    results: dict[str, Any] = {"settings": SMALL}
    with tempfile.TemporaryDirectory() as folder:
        data = prepared_market(folder, *MARKET)

        def run(setting: str) -> dict[str, float]:
            """One training on one thread: its median speed, and the seconds and memory of the whole command."""
            with tempfile.TemporaryDirectory(dir=folder) as out:
                words = [f"data={data}", f"out={out}/run", *SMALL, *setting.split()]
                usage = timed([*launcher(1), SCRIPTS / "train.py", *words])
                figures = {"samples_per_s": speed(Path(out) / "run")[0], **usage}
            return shown(setting or "plain", figures)

        for setting in KNOBS:
            without, with_it = map(columns, measure_alternating(partial(run, ""), partial(run, setting), rounds))
            results[f"{setting} on single_cpu"] = {figure: compared(without[figure], with_it[figure]) for figure in without}
    return results


def compared(without: list[float], with_it: list[float]) -> dict[str, float]:
    """The medians without and with the setting; and the median, the quartiles and the largest noise of `PairedRatios`."""
    paired = paired_ratios(without, with_it)
    ratio, quartile_1, quartile_3 = (round(value, 3) for value in quartiles(paired.ratios).values())
    return {
        "without": statistics.median(without),
        "with": statistics.median(with_it),
        "ratio": ratio,
        "ratio_quartile_1": quartile_1,
        "ratio_quartile_3": quartile_3,
        "noise": paired.largest_noise,
    }
