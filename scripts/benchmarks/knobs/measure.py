"""What each speed knob of scripts/train.py is worth: a run with it between two runs without, all through the launcher.

Its samples a second are divided by the mean of its two neighbours', so that a drift of the machine cancels; runs without it
between such runs tell the noise. The first lines of a run's log do not count: they hold the start and the compilation.
"""

import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from benchmarks.runs import by_neighbours, enough, launcher, num_gpus, quartiles, speed
from benchmarks.timing import SCRIPTS, timed

MARKET = ("market.num_products=500", "market.num_reviews=20000")
SMALL = (
    "batch_size=128", "max_epochs=0.5", "evaluations_per_epoch=1", "warmup_steps=5", "log_every=5",
    "recipe.width=128", "recipe.num_layers=4",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Knob:
    """A setting, beside what it is compared with, on a CPU or a GPU."""

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
    """Speed, memory and seconds of a training of hot_sellers with each knob by those without.

    Where there is a compilation, the difference in `wall_s` is its price.
    """
    enough(rounds, 2)
    has_gpu = num_gpus() > 0
    found: dict[str, Any] = {"settings": SMALL}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed([sys.executable, SCRIPTS / "prepare_data.py", f"out={data}", f"raw={folder}/raw", *MARKET])
        for knob in KNOBS:
            if knob.hardware == "gpu" and not has_gpu:
                found[knob.name] = "not measured: no GPU"
                continue
            runs = []
            for number in range(2 * rounds + 1):
                words = (knob.setting if number % 2 else knob.without).split()
                runs.append(_run(knob, data, Path(folder) / f"{knob.name} {number}", words))
                print(f"{' '.join(words) or 'plain'} on {knob.hardware}: {runs[-1]}", flush=True)
            found[knob.name] = {figure: compared([run[figure] for run in runs]) for figure in runs[0]}
    return found


def compared(values: list[float]) -> dict[str, float]:
    """Of values without, with, without, with, …, without: the medians, and the ratios of each to the mean of its neighbours.

    `noise` is the largest distance from 1 of a value without by the two nearest ones without.
    """
    without, with_it = values[::2], values[1::2]
    ratios, noise = by_neighbours(without, with_it)
    ratio = quartiles(ratios)
    return {
        "without": statistics.median(without),
        "with": statistics.median(with_it),
        "ratio": round(ratio["median"], 3),
        "ratio_quartile_1": round(ratio["quartile_1"], 3),
        "ratio_quartile_3": round(ratio["quartile_3"], 3),
        "noise": round(max(abs(ratio - 1) for ratio in noise), 3),
    }


def _run(knob: Knob, data: Path, out: Path, words: list[str]) -> dict[str, float]:
    """One training, one thread a rank: its median speed, and what `timed` says of the whole of it."""
    command = [*launcher(1, knob.hardware), SCRIPTS / "train.py", f"data={data}", f"out={out}", *SMALL, *words]
    used = timed(command)
    return {"samples_per_s": speed(out)[0], **used}
