"""How long a small job takes to start: from the command to the first step of train.py, and to the end of the other commands.

Each command runs alternately with minimal scripts, A B A B. Those for train.py have the same launcher: `empty` only creates
an `Accelerator`, `one_step` makes a step with one linear layer. Like train.py both end by `os._exit`, since the exit of
Python would take a second. For another command, `empty` only imports the libraries of the command. A ratio is computed for
each pair. CPU seconds are those of all processes, including the launcher, and depend little on other load.
"""

import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.counts import MARKET, commands_of_job
from benchmarks.data import prepared_market
from benchmarks.runs import enough, in_turn, launcher, quartiles
from benchmarks.timing import ONE_THREAD, ROOT, SCRIPTS, timed

ENDING = Path(__file__).with_name("recorders") / "startup"
"""The folder of a sitecustomize.py that ends train.py after its first step."""
EMPTY = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
ONE_STEP = f"""{EMPTY}
import torch
model = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.backward(model(torch.ones(16, 8)).sum())
optimizer.step()
"""
END = "import os\naccelerator.wait_for_everyone()\nos._exit(0)\n"
"""The end of the scripts that train.py is compared with. `ENDING` ends train.py in the same way."""
LIBRARIES = {
    "train_trees.py": "import xgboost, matplotlib.figure",
    "predict.py": "import xgboost",
    "ensemble_predictor.py fit": "import numpy, pyarrow.parquet, scipy.optimize, huggingface_hub",
    "report.py": "import numpy, pyarrow.parquet, polars, jinja2, matplotlib.figure",
}
"""For each command, the import of the libraries that it needs, as in a script of a user."""


@command
def startup(pairs: int = 5) -> dict[str, Any]:
    """Seconds from a command to its first step, or to its end, compared with minimal scripts; ten minutes.

    pairs : runs of each command, each followed by its minimal scripts; at least 2
    """
    enough(pairs, 2, "pairs")
    with tempfile.TemporaryDirectory() as folder:
        sides = prepare(Path(folder))

        def run(by_side: dict[str, list[str | Path]]) -> dict[str, Any]:
            return {side: measured(words, Path(folder)) for side, words in by_side.items()}

        runs = in_turn({name: partial(run, by_side) for name, by_side in sides.items()}, pairs)
    return {"pairs": pairs, "commands": {name: compared(runs_of_command) for name, runs_of_command in runs.items()}}


def prepare(folder: Path) -> dict[str, dict[str, list[str | Path]]]:
    """Generate the files that the commands read. Returns the words of each command and of its minimal scripts."""
    for name, code in (("empty", EMPTY), ("one_step", ONE_STEP)):
        (folder / f"{name}.py").write_text(code + END, encoding="utf-8")
    sides: dict[str, dict[str, list[str | Path]]] = {}
    for name, words in commands_of_job(prepared_market(folder, *MARKET), folder):
        again = [*words, f"out={folder / 'new'}"]
        if name.startswith("train.py"):
            launch = launcher(2 if name.endswith("2 ranks") else 1)
            beside = {side: [*launch, folder / f"{side}.py"] for side in ("empty", "one_step")}
            sides[name] = {"ours": [*launch, *again[again.index(SCRIPTS / "train.py") :]], **beside}
            continue
        timed(words)  # the commands after it read the result
        if (command := name.removesuffix(" xgboost")) in LIBRARIES:
            sides[command] = {"ours": again, "empty": [sys.executable, "-c", LIBRARIES[command]]}
    return sides


def measured(words: list[str | Path], folder: Path) -> dict[str, float]:
    """Wall and CPU seconds of a command with one thread in each process; train.py ends after its first step."""
    path = f"PYTHONPATH={ENDING}:{SCRIPTS}:{ROOT}"
    used = timed(["env", path, "CUDA_VISIBLE_DEVICES=", *ONE_THREAD[1:], *words])
    new = folder / "new"  # deleted, so that the command can run again
    shutil.rmtree(new, ignore_errors=True)
    new.unlink(missing_ok=True)
    return {unit: used[unit] for unit in ("wall_s", "cpu_s")}


def compared(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The medians of our command and of its minimal scripts, and for each of these quartiles of ratios of CPU seconds."""
    sides: dict[str, Any] = {}
    for side in runs[0]:
        sides[side] = {unit: round(statistics.median(run[side][unit] for run in runs), 3) for unit in ("wall_s", "cpu_s")}
        if side != "ours":
            sides[side]["cpu_ratio"] = quartiles([run["ours"]["cpu_s"] / run[side]["cpu_s"] for run in runs])
    return sides
