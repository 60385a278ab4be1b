"""The user's commands: how fast --help answers, and what the whole pipeline scores on generated markets and real files."""

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import enough, launcher
from benchmarks.timing import SCRIPTS, timed
from ensemble import folders

TREES = ("xgboost", "lightgbm")
MEMBERS, BASELINE = ("transformer", *TREES), "momentum"

# Short or sparse data: a shorter horizon, or a larger part of each week called hot
REAL_SETS: dict[str, dict[str, str]] = {
    "Gift_Cards_5": {
        "source": "amazon/Gift_Cards_5.json.gz",
        "metadata": "amazon/meta_Gift_Cards.json.gz",
        "panel.top_fraction": "0.2",
    },
    "AMAZON_FASHION_5": {
        "source": "amazon/AMAZON_FASHION_5.json.gz",
        "panel.top_fraction": "0.5",
        "panel.horizon_weeks": "4",
    },
    "ratings_Beauty": {"source": "amazon/ratings_Beauty.csv.gz"},
    "ml-100k": {"source": "movielens/ml-100k.inter.gz", "panel.horizon_weeks": "3"},
}
SMALL = ["max_epochs=10", "batch_size=256", "evaluations_per_epoch=1"]
"""The transformer's training on real sets, which have few rows."""


def help_times(runs: int = 5) -> dict[str, Any]:
    """Seconds of each script's --help, best and median."""
    found = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        seconds = [timed([sys.executable, script, "--help"])["wall_s"] for _ in range(runs)]
        found[script.name] = {"best_s": min(seconds), "median_s": statistics.median(seconds)}
    return found


def stages_of(folder: Path, prepare: Sequence[str], train: Sequence[str] = ()) -> dict[str, list[str | Path]]:
    """The commands from raw reviews to an ensemble in `folder`, by their names, as `make demo` runs them."""
    python, data = sys.executable, folder / "prepared"
    launch = launcher(1, threads=os.cpu_count() or 1)
    stages: dict[str, list[str | Path]] = {
        "prepare": [python, SCRIPTS / "prepare_data.py", f"out={data}", f"raw={folder / 'raw'}", *prepare],
        "transformer": [*launch, SCRIPTS / "train.py", f"data={data}", f"out={folder / 'members/transformer'}", *train],
    }
    for library in TREES:
        stages[library] = [
            python, SCRIPTS / "train_trees.py", f"library={library}", "refit=true",
            f"data={data}", f"out={folder / 'members' / library}",
        ]  # fmt: skip
    for member in (*MEMBERS, BASELINE):
        source = member if member == BASELINE else folder / "members" / member
        stages[f"predict {member}"] = [
            python, SCRIPTS / "predict.py", f"member={source}", f"data={data}", f"out={folder / 'predictions'}"
        ]  # fmt: skip
    stages["ensemble"] = [
        python, SCRIPTS / "ensemble_predictor.py", "fit",
        f"predictions={folder / 'predictions'}", f"data={data}", f"out={folder / 'ensemble'}",
    ]  # fmt: skip
    return stages


def pipeline(folder: Path, prepare: Sequence[str], train: Sequence[str] = ()) -> dict[str, Any]:
    """Prepare, train the three members, predict, fit: each stage's seconds, and the scores on test."""
    seconds = {}
    for stage, command in stages_of(folder, prepare, train).items():
        seconds[stage] = timed(command)["wall_s"]
        print(f"  {stage}: {seconds[stage]:.1f} s", flush=True)
    scores = folders.read_json(folder / "ensemble" / "scores.json")
    about = folders.read_manifest(folder / "prepared")
    return {
        "seconds": seconds,
        "rows": {split: facts["rows"] for split, facts in about["splits"].items()},
        "base_rate": scores["base_rate"],
        "weights": scores["weights"],
        "combiner": scores["combiner"],
        "average_precision": {name: of["average_precision"] for name, of in scores["scores"].items()},
        "log_loss": {name: of["log_loss"] for name, of in scores["scores"].items()},
        "lift_at_5pct": {name: of["lift_at_5pct"] for name, of in scores["scores"].items()},
        "gain_over_best_member": scores["gain_over_best_member"]["average_precision"],
    }


def seeds(num_seeds: int = 5, first_seed: int = 0) -> dict[str, Any]:
    """The demo on `num_seeds` generated markets: every member's average precision by the base rate, and the ensemble's."""
    enough(num_seeds, 2, "num_seeds", "a deviation")
    runs = []
    for seed in range(first_seed, first_seed + num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            print(f"seed {seed}", flush=True)
            runs.append({"seed": seed, **pipeline(Path(folder), [f"market.seed={seed}"], [f"seed={seed}"])})
    names = [name for name in runs[0]["average_precision"] if name != "base rate"]
    lifts = {name: [run["average_precision"][name]["value"] / run["base_rate"] for run in runs] for name in names}
    summary = {
        name: {
            "mean": round(statistics.mean(values), 3),
            "deviation": round(statistics.stdev(values), 3),
            "least": min(values),
        }
        for name, values in lifts.items()
    }
    members = [name for name in names if name in runs[0]["weights"]]
    gains = [
        run["average_precision"]["ensemble"]["value"] - max(run["average_precision"][m]["value"] for m in members)
        for run in runs
    ]
    return {
        "average_precision_by_base_rate": summary,
        "gain_over_best_member": {"mean": statistics.mean(gains), "deviation": statistics.stdev(gains), "each": gains},
        "runs": runs,
    }


def real(data: str) -> dict[str, Any]:
    """Real review files, where they are at hand: prepare, members, ensemble, scores beside the baselines."""
    found = {}
    for name, words in real_sets(data).items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {"settings": REAL_SETS[name], **pipeline(Path(folder), words, SMALL)}
    return found


def real_sets(data: str) -> dict[str, list[str]]:
    """For each set whose files are under `data`, what prepare_data.py is told; the others are named and left out."""
    found = {}
    for name, settings in REAL_SETS.items():
        files = {key: Path(data) / value for key, value in settings.items() if key in ("source", "metadata")}
        missing = [str(file) for file in files.values() if not file.exists()]
        if missing:
            print(f"{name}: left out, {', '.join(missing)} is not there")
            continue
        words = [f"{key}={value}" for key, value in settings.items() if key not in files]
        found[name] = [*(f"{key}=[{file}]" for key, file in files.items()), *words]
    return found
