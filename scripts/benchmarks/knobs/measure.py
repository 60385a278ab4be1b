"""The effect of each speed setting of scripts/train.py: a run with it between two runs without, all through the launcher.

    python scripts/benchmark.py knobs

The samples per second of a run with the setting are relative to the mean of the runs before and after it, so that a drift of
the machine cancels. Runs without it, relative to their neighbours, give the noise. The first lines of a log, with start and
compilation, do not count.
"""

import dataclasses
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.runs import alternately, by_neighbours, enough, launcher, num_gpus, quartiles, speed
from benchmarks.timing import SCRIPTS, script, timed

MARKET = ("market.num_products=500", "market.num_reviews=20000")
SMALL = (
    "batch_size=128", "max_epochs=0.5", "evaluations_per_epoch=1", "warmup_steps=5", "log_every=5",
    "recipe.width=128", "recipe.num_layers=4",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Knob:
    """A setting, the setting that it is compared with, and the hardware, a CPU or a GPU."""

    setting: str
    hardware: Literal["cpu", "gpu"] = "cpu"
    without: str = ""

    @property
    def name(self) -> str:
        return f"{self.setting} on single_{self.hardware}"


KNOBS = (
    Knob("compile=true"),
    Knob("recipe.gradient_checkpointing=true"),
    Knob("precision=bf16"),
    Knob("compile=true", "gpu"),
    Knob("precision=bf16", "gpu", "precision=no"),
)


def knobs(rounds: int = 3) -> dict[str, Any]:
    """Speed, memory and seconds of a training of hot_sellers with each setting, relative to those without.

    With a compilation, the difference in `wall_s` contains its duration.
    """
    enough(rounds, 2)
    has_gpu = num_gpus() > 0
    results: dict[str, Any] = {"settings": SMALL}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed(script("prepare_data", f"out={data}", f"raw={folder}/raw", *MARKET))

        def run(knob: Knob, setting: str) -> dict[str, float]:
            """One training on one thread: its median speed, and the seconds and memory of the whole command."""
            with tempfile.TemporaryDirectory(dir=folder) as out:
                words = [f"data={data}", f"out={out}/run", *SMALL, *setting.split()]
                usage = timed([*launcher(1, knob.hardware), SCRIPTS / "train.py", *words])
                figures = {"samples_per_s": speed(Path(out) / "run")[0], **usage}
            print(f"{setting or 'plain'} on {knob.hardware}: {figures}", flush=True)
            return figures

        for knob in KNOBS:
            if knob.hardware == "gpu" and not has_gpu:
                results[knob.name] = "not measured: no GPU"
                continue
            without, with_it = alternately(partial(run, knob, knob.without), partial(run, knob, knob.setting), rounds)
            results[knob.name] = {
                figure: compared(*([measured[figure] for measured in side] for side in (without, with_it)))
                for figure in without[0]
            }
    return results


def compared(without: list[float], with_it: list[float]) -> dict[str, float]:
    """The medians, the ratios of values with the setting to the mean of their neighbours, and the largest noise."""
    neighbours = by_neighbours(without, with_it)
    ratio, quartile_1, quartile_3 = (round(value, 3) for value in quartiles(neighbours.ratios).values())
    return {
        "without": statistics.median(without),
        "with": statistics.median(with_it),
        "ratio": ratio,
        "ratio_quartile_1": quartile_1,
        "ratio_quartile_3": quartile_3,
        "noise": neighbours.largest_noise,
    }
