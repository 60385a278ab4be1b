"""What each speed knob of scripts/train.py is worth: a run with it between two runs without, all through the launcher.

Its samples a second are divided by the mean of its two neighbours', so that a drift of the machine cancels; runs without it
between such runs tell the noise. The first lines of a run's log do not count: they hold the start and the compilation.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ensemble.benchmark import ROOT, SCRIPTS, timed

WARM_UP_LINES = 2
MARKET = ("market.num_products=500", "market.num_reviews=20000")
SMALL = (
    "batch_size=128", "max_epochs=0.5", "evaluations_per_epoch=1", "warmup_steps=5", "log_every=5",
    "recipe.width=128", "recipe.num_layers=4",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Knob:
    """A setting, beside what it is compared with, on the hardware of an accelerate YAML."""

    setting: str
    yaml: str = "single_cpu"
    without: str = ""

    @property
    def name(self) -> str:
        return f"{self.setting} on {self.yaml}"


KNOBS = (
    Knob("compile=true"),
    Knob("recipe.gradient_checkpointing=true"),
    Knob("precision=bf16"),
    Knob("compile=true", "single_gpu"),
    Knob("precision=bf16", "single_gpu", "precision=no"),
)


def knobs(rounds: int = 3) -> dict[str, Any]:
    """Speed, memory and seconds of a training of hot_sellers with each knob by those without; `rounds` is 2 or more.

    Where there is a compilation, the difference in `wall_s` is its price.
    """
    found: dict[str, Any] = {"settings": SMALL}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prepared"
        timed([sys.executable, SCRIPTS / "prepare_data.py", f"out={data}", f"raw={folder}/raw", *MARKET])
        for knob in KNOBS:
            if "gpu" in knob.yaml and not _has_gpu():
                found[knob.name] = "not measured: no GPU"
                continue
            runs = []
            for number in range(2 * rounds + 1):
                words = (knob.setting if number % 2 else knob.without).split()
                runs.append(_run(knob.yaml, data, Path(folder) / f"{knob.name} {number}", words))
                print(f"{' '.join(words) or 'plain'} on {knob.yaml}: {runs[-1]}", flush=True)
            found[knob.name] = {figure: compared([run[figure] for run in runs]) for figure in runs[0]}
    return found


def compared(values: list[float]) -> dict[str, float]:
    """Of values without, with, without, with, …, without: the medians, and the ratios of each to the mean of its neighbours.

    `noise` is the largest distance from 1 of a value without by the two nearest ones without.
    """
    without = values[::2]
    ratios, noise = (
        [2 * value / (before + after) for before, value, after in triples]
        for triples in (
            zip(without, values[1::2], without[1:], strict=False),
            zip(without, without[1:], without[2:], strict=False),
        )
    )
    least, median, most = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "without": statistics.median(without),
        "with": statistics.median(values[1::2]),
        "ratio": round(median, 3),
        "ratio_quartile_1": round(least, 3),
        "ratio_quartile_3": round(most, 3),
        "noise": round(max(abs(ratio - 1) for ratio in noise), 3),
    }


def _run(yaml: str, data: Path, out: Path, words: list[str]) -> dict[str, float]:
    """One training, one thread a rank: its median speed, and what `timed` says of the whole of it."""
    launch: list[str | Path] = [Path(sys.executable).with_name("accelerate"), "launch", "--quiet", "--config_file"]
    used = timed(
        ["env", "OMP_NUM_THREADS=1", *launch, ROOT / "accelerate_configs" / f"{yaml}.yaml", SCRIPTS / "train.py",
         f"data={data}", f"out={out}", *SMALL, *words]
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    speeds = [line["samples_per_s"] for line in lines if line["kind"] == "train"][WARM_UP_LINES:]
    return {"samples_per_s": statistics.median(speeds), **used}


def _has_gpu() -> bool:
    """Asked of another process, for torch would count as memory of every one that starts after it."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
