"""Counts of what the commands of a small job start, import, write and communicate; they are equal on any machine.

CI counts again (tests/scripts/benchmarks/test_counts.py) and compares with slurm/results/counts.json: a larger count than
`MARGINS` allows fails. `python scripts/benchmark.py counts` writes that file. If a larger count is intended, commit the new
file with the change. CPU seconds are compared as shares of the CPU seconds of all commands, and a larger share only warns.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.data import prepared_market
from benchmarks.runs import launcher
from benchmarks.timing import ROOT, SCRIPTS, script, timed

RECORDER = Path(__file__).with_name("recorders") / "counts"
MARKET = ("market.num_products=150", "market.num_reviews=12000", "market.num_weeks=110", "panel.top_fraction=0.1")
TRAINING = (
    "batch_size=1024", "max_epochs=2", "evaluations_per_epoch=1", "log_every=1", "recipe.width=8", "recipe.num_layers=1",
    "recipe.num_reviews=2",
)  # fmt: skip
MARGINS = {
    "processes": 0.0, "programs": 0.0, "modules": 0.04, "written_files": 0.0, "files": 0.0, "bytes": 0.2,
    "collectives": 0.0, "batches": 0.0,
}  # fmt: skip
"""The share by which a count may exceed the committed one."""
LARGE_PACKAGE = 30
"""Packages with at least this number of imported modules are recorded by name, so that a failure names new ones."""
SHARE_OF_TIME = 0.4
"""The relative increase of a command's share of the CPU seconds above which there is a warning."""


@command
def counts() -> dict[str, Any]:
    """Processes, modules, files, bytes, collectives and batches of the commands on a small dataset; half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        return counts_of_commands(prepared_market(folder, *MARKET), Path(folder) / "work")


def counts_of_commands(data: Path, work: Path) -> dict[str, Any]:
    """The counts of each command on prepared data; the commands write to `work`, a new folder."""
    work.mkdir()
    counts_of = {name: counted(words, work) for name, words in commands_of_job(data, work)}
    total = sum(figures["cpu_s"] for figures in counts_of.values())
    for figures in counts_of.values():
        figures["share_of_cpu"] = round(figures.pop("cpu_s") / total, 3)
    return {"margins": MARGINS, "commands": counts_of}


def commands_of_job(data: Path, work: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """The names and commands of a small job, in the order in which they must run: each reads files of earlier ones."""
    trees, predictions, ensemble = work / "xgboost", work / "predictions", work / "ensemble"
    starts: dict[str, list[str | Path]] = {"train.py, 1 rank": [sys.executable], "train.py, 2 ranks": launcher(2)}
    for name, start in starts.items():
        yield name, [*start, SCRIPTS / "train.py", f"data={data}", f"out={work / name.replace(', ', '_')}", *TRAINING]
    yield "train_trees.py", script("train_trees", f"data={data}", f"out={trees}", "num_rounds=5", "threads=1")
    for member in (trees, Path("momentum")):
        words = [f"member={member}", f"data={data}", f"out={predictions}", "threads=1"]
        yield f"predict.py {member.name}", script("predict", *words)
    words = [f"predictions={predictions}", f"data={data}", f"out={ensemble}", "num_draws=20"]
    yield "ensemble_predictor.py fit", script("ensemble_predictor", "fit", *words)
    words = [f"ensemble={ensemble}", f"data={data}", f"predictions={predictions}", f"out={work / 'report.html'}"]
    yield "report.py", script("report", *words)


def counted(words: list[str | Path], work: Path) -> dict[str, Any]:
    """Run a command, and return its counts, summed over all of its processes."""
    before = sizes(work)
    with tempfile.TemporaryDirectory() as records:
        environment = {
            "PYTHONPATH": f"{RECORDER}:{SCRIPTS}:{ROOT}", "COUNTS_FOLDER": records, "COUNTS_ROOT": str(work),
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        used = timed(["env", *(f"{name}={value}" for name, value in environment.items()), *words])
        num_processes = len(list(Path(records).glob("*.started")))
        processes = [json.loads(path.read_text(encoding="utf-8")) for path in Path(records).glob("*.json")]
    after = sizes(work)
    new = [path for path in after if after[path] != before.get(path)]
    return {
        "processes": num_processes,
        "programs": sum(process["programs"] for process in processes),
        "modules": sum(len(process["modules"]) for process in processes),
        "packages": sorted({name for process in processes for name in large_packages(process["modules"])}),
        "written_files": sum(process["files"] for process in processes),
        "files": len(new),
        "bytes": sum(after[path][0] for path in new),
        "collectives": sum(process["collectives"] for process in processes),
        "batches": sum(process["batches"] for process in processes),
        "cpu_s": used["cpu_s"],
    }


def large_packages(modules: list[str]) -> set[str]:
    numbers = Counter(name.split(".")[0] for name in modules)
    return {name for name, number in numbers.items() if number >= LARGE_PACKAGE}


def sizes(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and modification time of each file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def excesses(committed: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """A sentence for each count that exceeds the committed one by more than its margin, and for each new large package."""
    sentences = []
    for name, now in measured["commands"].items():
        before = committed["commands"].get(name)
        if before is None:
            sentences.append(f"{name} is not in counts.json")
            continue
        for count, margin in MARGINS.items():
            if now[count] > before[count] * (1 + margin):
                allowed = f", at most {margin:.0%} more are allowed" if margin else ""
                sentences.append(f"{name}: {count} {now[count]:,} instead of {before[count]:,}{allowed}")
        if new := sorted(set(now["packages"]) - set(before["packages"])):
            sentences.append(f"{name} imports {', '.join(new)}")
    return sentences


def slower(committed: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """A sentence for each command whose share of the CPU seconds has grown by a factor of more than 1 + `SHARE_OF_TIME`."""
    return [
        f"{name} takes {now['share_of_cpu']:.1%} of the CPU seconds of all commands instead of {before['share_of_cpu']:.1%}"
        for name, now in measured["commands"].items()
        if (before := committed["commands"].get(name)) and now["share_of_cpu"] > before["share_of_cpu"] * (1 + SHARE_OF_TIME)
    ]
