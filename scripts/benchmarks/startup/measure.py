"""How long a small job takes to start: from the command to the first step of train.py, and to the end of the other commands.

Each command runs in turn with empty scripts, A B A B: under the same launcher a script that only creates an `Accelerator`,
and one that takes a step of one linear layer; beside the others a script that imports the libraries of the command. Ratios
are taken pair by pair. CPU seconds are those of all processes, launcher included, and depend little on other load.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.counts.measure import MARKET, TRAINING
from benchmarks.runs import enough, quartiles
from benchmarks.timing import ROOT, SCRIPTS, timed

MARKS = Path(__file__).with_name("marks")
EMPTY = "from accelerate import Accelerator\nAccelerator()\n"
ONE_STEP = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.backward(model(torch.ones(16, 8)).sum())
optimizer.step()
"""
LIBRARIES = {
    "train_trees.py": "import xgboost, matplotlib.figure",
    "predict.py": "import xgboost",
    "ensemble_predictor.py fit": "import numpy, pyarrow.parquet, scipy.optimize, huggingface_hub",
    "report.py": "import numpy, pyarrow.parquet, polars, jinja2, matplotlib.figure",
}
"""The import of the libraries that a command needs, as a script of a user has it."""
LARGEST = 10
"""Packages in the list of imports."""
IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s*([\w.]+)")


def startup(pairs: int) -> dict[str, Any]:
    """Seconds of each command, and of the scripts that it is compared with, in turn."""
    enough(pairs, 2, "pairs")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        sides = prepare(Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for number in range(pairs):
            for name, commands in sides.items():
                runs[name].append({side: measured(words, Path(folder)) for side, words in commands.items()})
                shown = {side: of["cpu_s"] for side, of in runs[name][-1].items()}
                print(f"pair {number + 1}, {name}: CPU seconds {shown}", flush=True)
        imports = {name: imported(words["ours"], Path(folder)) for name, words in sides.items() if "2 ranks" not in name}
    return {
        "pairs": pairs,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "commands": {name: compared(of) for name, of in runs.items()},
        "imports": imports,
    }


def prepare(folder: Path) -> dict[str, dict[str, list[str | Path]]]:
    """Generate the market, and everything that a command reads; the words of each command, and of the scripts beside it."""
    python, data, trees, predictions = sys.executable, folder / "prepared", folder / "trees", folder / "predictions"
    for name, code in (("empty", EMPTY), ("one_step", ONE_STEP)):
        (folder / f"{name}.py").write_text(code, encoding="utf-8")

    def script(name: str, *words: str) -> list[str | Path]:
        file, *command = name.split()
        return [python, SCRIPTS / file, *command, *words]

    timed(script("prepare_data.py", f"out={data}", f"raw={folder}/raw", *MARKET))
    timed(script("train_trees.py", f"data={data}", f"out={trees}", "num_rounds=5", "threads=1"))
    for member in (trees, "momentum"):
        timed(script("predict.py", f"member={member}", f"data={data}", f"out={predictions}"))
    fit = [f"predictions={predictions}", f"data={data}"]
    timed(script("ensemble_predictor.py fit", *fit, f"out={folder}/ensemble"))
    sides: dict[str, dict[str, list[str | Path]]] = {}
    for ranks, yaml in ((1, "single_cpu.yaml"), (2, "multi_cpu.yaml")):
        launcher, configuration = Path(python).with_name("accelerate-launch"), ROOT / "accelerate_configs" / yaml
        launch: list[str | Path] = [launcher, "--quiet", "--config_file", configuration]
        train: list[str | Path] = [SCRIPTS / "train.py", f"data={data}", f"out={folder}/new", *TRAINING]
        sides[f"train.py, {ranks} rank{'s' * (ranks > 1)}"] = {
            "ours": [*launch, *train],
            "empty": [*launch, folder / "empty.py"],
            "one_step": [*launch, folder / "one_step.py"],
        }
    words = {
        "train_trees.py": [f"data={data}", f"out={folder}/new", "num_rounds=5", "threads=1"],
        "predict.py": [f"member={trees}", f"data={data}", f"out={folder}/new", "threads=1"],
        "ensemble_predictor.py fit": [*fit, f"out={folder}/new"],
        "report.py": [f"ensemble={folder}/ensemble", f"data={data}", f"predictions={predictions}", f"out={folder}/new"],
    }
    for name, of in words.items():
        sides[name] = {"ours": script(name, *of), "empty": [python, "-c", LIBRARIES[name]]}
    return sides


def measured(words: list[str | Path], folder: Path) -> dict[str, Any]:
    """Seconds and CPU seconds of a command, one thread in each process; train.py ends after its first step."""
    with tempfile.TemporaryDirectory() as marks:
        began = time.time()
        used = timed(["env", *environment(marks), *words])
        parts = parts_of(Path(marks), began)
    delete(folder / "new")
    return {"wall_s": used["wall_s"], "cpu_s": used["cpu_s"], **({"parts": parts} if parts else {})}


def environment(marks: str) -> list[str]:
    return [
        f"PYTHONPATH={MARKS}:{SCRIPTS}:{ROOT}", f"STARTUP_FOLDER={marks}", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE",
        "CUDA_VISIBLE_DEVICES=",
    ]  # fmt: skip


def delete(path: Path) -> None:
    """Delete what a command wrote, so that it can run again."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def imported(words: list[str | Path], folder: Path) -> dict[str, Any]:
    """Milliseconds of the imports of a command, the largest packages, in one process without a launcher."""
    script = next(place for place, word in enumerate(words) if str(word).endswith(".py"))
    with tempfile.TemporaryDirectory() as marks:
        command = ["env", *environment(marks), sys.executable, "-X", "importtime", *words[script:]]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    delete(folder / "new")
    microseconds: Counter[str] = Counter()
    for line in lines:
        if found := IMPORT.match(line):
            microseconds[found[2].split(".")[0]] += int(found[1])
    largest = {name: round(number / 1e3) for name, number in microseconds.most_common(LARGEST)}
    return {"modules": sum(1 for line in lines if IMPORT.match(line)), "all": round(microseconds.total() / 1e3), **largest}


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of all sides, and the ratios of each pair; and where the time of a rank went, by parts in their order."""
    found: dict[str, Any] = {}
    for side in runs[0]:
        found[side] = {unit: round(statistics.median(run[side][unit] for run in runs), 3) for unit in ("wall_s", "cpu_s")}
        if side != "ours":
            for unit in ("wall", "cpu"):
                ratios = [run["ours"][f"{unit}_s"] / run[side][f"{unit}_s"] for run in runs]
                found[side][f"{unit}_ratio"] = quartiles(ratios)
    if "parts" in runs[0]["ours"]:
        for part in runs[0]["ours"]["parts"]:
            values = [run["ours"]["parts"][part] for run in runs]
            found.setdefault("parts", {})[part] = {
                unit: round(statistics.median(value[unit] for value in values), 3) for unit in values[0]
            }
        in_ranks = sum(part["cpu_s"] for part in found["parts"].values())
        found["parts"]["launcher"] = {"cpu_s": round(found["ours"]["cpu_s"] - in_ranks, 3)}
    return found


def parts_of(marks: Path, began: float) -> dict[str, dict[str, float]]:
    """Wall seconds of the last rank and CPU seconds of all ranks, for each part that was marked, in order."""
    parts: dict[str, dict[str, float]] = {}
    for file in sorted(marks.glob("*.jsonl")):
        time_s, cpu_s = began, 0.0
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            part = parts.setdefault(line["part"], {"wall_s": 0.0, "cpu_s": 0.0})
            part["wall_s"] = line["time_s"] - time_s
            part["cpu_s"] += line["cpu_s"] - cpu_s
            time_s, cpu_s = line["time_s"], line["cpu_s"]
    return parts
