"""Launch trainings, read their speed, and compare measurements that were taken alternately."""

import dataclasses
import functools
import importlib
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from benchmarks.timing import ONE_THREAD, ROOT, script, timed
from ensemble import folders
from ensemble.errors import UserError

WARM_UP_STEPS = 10
"""Log lines of a training up to this step are ignored, since they include the start, and the compilation if there is one."""

Measurement = TypeVar("Measurement")


def launcher(
    ranks: int, hardware: Literal["cpu", "gpu"] = "cpu", configuration: str = "", threads: int = 1
) -> list[str | Path]:
    """The words before a script that launch it on `ranks` local ranks, by default with the YAML file of the hardware."""
    yaml = configuration or ROOT / "accelerate_configs" / f"{'single' if ranks == 1 else 'multi'}_{hardware}.yaml"
    accelerate = Path(sys.executable).with_name("accelerate-launch")  # does not import Accelerate's other commands
    return ["env", f"OMP_NUM_THREADS={threads}", accelerate, "--quiet", "--config_file", yaml, "--num_processes", str(ranks)]


def on_rank(module: str, *arguments: Any) -> Any:
    """Call `measure_rank` of a module, imported after `launch.start`, on each rank; the main process returns the result."""
    from ensemble.neural import launch
    from ensemble.neural.settings import TrainConfig

    accelerator = launch.start(TrainConfig())
    result = importlib.import_module(module).measure_rank(accelerator, *arguments)
    return result if accelerator.is_main_process else None


@dataclasses.dataclass(frozen=True)
class Commands:
    """The commands of a recipe, each run on one thread."""

    recipe: str

    def prepare(self, data: Path, *words: str) -> dict[str, float]:
        """Prepare data; returns the costs as `timed` does."""
        return timed([*ONE_THREAD, *script("prepare_data", "--recipe", self.recipe, *words, f"out={data}")])

    def train(self, preset: str, data: Path, member: Path, *words: str) -> dict[str, float]:
        """Train with a preset and other settings; returns the costs as `timed` does, including imports."""
        file = ROOT / "ensemble" / "recipes" / self.recipe / "presets" / f"{preset}.yaml"
        options = ("--recipe", self.recipe, "--config", file, f"data={data}", f"out={member}")
        return timed([*ONE_THREAD, *script("train", *options, *words)])

    def examine(self, member: Path, data: Path, *words: str) -> dict[str, Any]:
        """The scores of a member on test, as examine.py of the recipe computes them."""
        out = member.with_name(f"{member.name}.scores")
        module = [sys.executable, "-m", f"ensemble.recipes.{self.recipe}.examine"]
        timed([*ONE_THREAD, *module, f"member={member}", f"data={data}", f"out={out}", *words, "overwrite=true"])
        scores: dict[str, Any] = folders.read_json(out / "scores.json")
        return scores


@contextmanager
def picture_of(file: Path, size: tuple[float, float], *shape: int, **options: Any) -> Iterator[Any]:
    """The axes of a new figure of this size in inches, which is written to the PNG file when the block ends."""
    from matplotlib.figure import Figure

    figure = Figure(size, layout="constrained")
    yield figure.subplots(*shape, **options)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


@functools.cache
def num_gpus() -> int:
    """The number of GPUs, from a subprocess: importing torch here would raise the reported peak memory of later ones."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def speed(run: Path) -> tuple[float, float]:
    """The median samples per second of a run, and its mean share of time spent waiting for data, after the warm-up.

    Raises `UserError` for a run that ended during the warm-up.
    """
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    warm = [line for line in lines if line["kind"] == "train" and line["step"] > WARM_UP_STEPS]
    if not warm:
        raise UserError(
            f"a training of {max((line['step'] for line in lines), default=0)} steps is too short to measure, since the "
            f"first {WARM_UP_STEPS} do not count: raise max_epochs, or lower batch_size or log_every"
        )
    return statistics.median(line["samples_per_s"] for line in warm), statistics.mean(line["data_wait"] for line in warm)


def enough(rounds: int, least: int, name: str = "rounds", purpose: str = "quartiles") -> None:
    """Raise `UserError` if there are fewer than `least` rounds, the number that `purpose` needs. name : the setting."""
    if rounds < least:
        raise UserError(f"{name}={rounds} is impossible: for {purpose} it must be {least} or more")


def refuse_unknown(setting: str, names: Sequence[str], known: Iterable[str], kind: str = "") -> None:
    """Raise `UserError` if a name in the list of a setting is not known; `kind` precedes the name in the error."""
    for name in names:
        if name not in known:
            raise UserError(f"{setting}={list(names)}: {kind}'{name}' is unknown, choose from {', '.join(known)}")


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of at least two values."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(median, 4), "quartile_1": round(low, 4), "quartile_3": round(high, 4)}


def spread(values: Sequence[float], digits: int | None = None) -> dict[str, float]:
    """Median, minimum and maximum, rounded to `digits` if given."""
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return figures if digits is None else {name: round(value, digits) for name, value in figures.items()}


def cached(out: Path, settings: dict[str, Any], measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The figures in out/result.json. If it is missing or has other settings, `out` is emptied and they are measured anew.

    Raises `UserError` if `out` has files but no result, and there is no mark of an interrupted measurement beside `out`.
    """
    file, mark = out / "result.json", out.with_name(f".{out.name}.measuring")
    if not (file.is_file() and settings.items() <= folders.read_json(file).items()):
        if out.exists() and any(out.iterdir()) and not (file.is_file() or mark.is_file()):
            raise UserError(f"{out} has files that no benchmark wrote, so it is not emptied: give another folder=…")
        out.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        folders.write_json(file, {**settings, **measure(out)})  # last: it marks the folder as complete
        mark.unlink()
    return folders.read_json(file)


def columns(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """For each figure of the runs, the list of its values."""
    return {name: [run[name] for run in runs] for name in runs[0]}


def measure_alternating(
    reference: Callable[[], Measurement], candidate: Callable[[], Measurement], rounds: int
) -> tuple[list[Measurement], list[Measurement]]:
    """Measure reference, candidate, reference, …, reference: `rounds` candidates, each between two references."""
    measurements = [(reference, candidate)[number % 2]() for number in range(2 * rounds + 1)]
    return measurements[::2], measurements[1::2]


def shown(name: str, figures: Measurement) -> Measurement:
    """Print figures after their name, as progress of a benchmark, and return them."""
    print(f"{name}: {figures}", flush=True)
    return figures


def in_turn(tasks: Mapping[str, Callable[[], Measurement]], rounds: int) -> dict[str, list[Measurement]]:
    """Measure several tasks one after the other, `rounds` times: A B C A B C …"""
    measured: dict[str, list[Measurement]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            measured[name].append(shown(f"round {number + 1}, {name}", task()))
    return measured


class PairedRatios(NamedTuple):
    """Ratios of measurements that were taken alternately, which cancels a drift in speed."""

    ratios: list[float]
    """Each candidate relative to the mean of the references before and after it."""
    noise: list[float]
    """Each reference, except the first and the last, relative to the mean of the references before and after it."""

    @property
    def times_faster(self) -> dict[str, float]:
        """How many times faster the candidate is, from ratios of seconds."""
        return {"median": round(1 / statistics.median(self.ratios), 2), "least": round(1 / max(self.ratios), 2)}

    @property
    def largest_noise(self) -> float:
        """The largest deviation of `noise` from 1; it needs at least two candidates."""
        return round(max(abs(ratio - 1) for ratio in self.noise), 3)


def paired_ratios(reference: Sequence[float], candidate: Sequence[float]) -> PairedRatios:
    """Ratios of the measurements that `measure_alternating` returned."""
    pairs = zip(reference, candidate, reference[1:], strict=False)
    triples = zip(reference, reference[1:], reference[2:], strict=False)
    return PairedRatios(*([2 * value / (before + after) for before, value, after in three] for three in (pairs, triples)))
