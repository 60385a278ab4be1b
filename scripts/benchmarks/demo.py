"""The scripts that users call: the duration of --help, and the scores of the pipeline on generated and on real data."""

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runs import enough, launcher
from benchmarks.timing import SCRIPTS, script, timed
from ensemble import folders
from ensemble.errors import UserError

TREES = ("xgboost", "lightgbm")
MEMBERS, BASELINE = ("transformer", *TREES, "linear"), "momentum"

# For short or sparse data the horizon is shorter, or a larger share of products counts as hot
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
SMALL = ["max_epochs=10", "batch_size=256", "evaluations_per_epoch=1", "refit_epochs=1"]
"""The training of the transformer on real sets, which have few rows, as in scripts/fit.py."""


@command
def help_times() -> dict[str, Any]:
    """The duration of --help of each script, the median of five runs."""
    results = {}
    for path in sorted(SCRIPTS.glob("*.py")):
        seconds = [timed(script(path.stem, "--help"))["wall_s"] for _ in range(5)]
        results[path.name] = {"median_s": statistics.median(seconds)}
    return results


def stages_of(folder: Path, prepare: Sequence[str], train: Sequence[str]) -> dict[str, list[str | Path]]:
    """The commands of the stages of `make demo`, from raw reviews to an ensemble in `folder`, by the names of the stages.

    prepare, train : further settings of prepare_data.py and train.py.
    """
    data, members = f"data={folder / 'prepared'}", folder / "members"
    launch = launcher(1, threads=os.cpu_count() or 1)
    stages: dict[str, list[str | Path]] = {
        "prepare": script("prepare_data", f"out={folder / 'prepared'}", f"raw={folder / 'raw'}", *prepare),
        "transformer": [*launch, SCRIPTS / "train.py", data, f"out={members / 'transformer'}", *train],
    }
    for library in MEMBERS[1:]:
        settings = ("num_refits=3",) if library in TREES else ()
        stages[library] = script(
            "train_trees", f"library={library}", "refit=true", data, f"out={members / library}", *settings
        )
    predictions = folder / "predictions"
    for member in (*MEMBERS, BASELINE):
        source = member if member == BASELINE else members / member
        stages[f"predict {member}"] = script("predict", f"member={source}", data, f"out={predictions}")
    words = ("fit", f"predictions={predictions}", data, f"out={folder / 'ensemble'}")
    return {**stages, "ensemble": script("ensemble_predictor", *words)}


def run_stages(
    stages: Mapping[str, list[str | Path]], measure: Callable[[list[str | Path]], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """The costs of each command by its name, as `measure` returns them."""
    usage = {}
    for stage, words in stages.items():
        usage[stage] = measure(words)
        print(f"  {stage}: {usage[stage]['wall_s']:.1f} s", flush=True)
    return usage


def pipeline(folder: Path, prepare: Sequence[str], train: Sequence[str]) -> dict[str, Any]:
    """Prepare, train the members, predict, fit: the seconds of each stage, and the scores on test."""
    usage = run_stages(stages_of(folder, prepare, train), timed)
    scores = folders.read_json(folder / "ensemble" / "scores.json")
    splits = folders.read_manifest(folder / "prepared")["splits"]
    metrics = ("average_precision", "log_loss", "lift_at_5pct")
    return {
        "seconds": {stage: used["wall_s"] for stage, used in usage.items()},
        "rows": {split: facts["rows"] for split, facts in splits.items()},
        **{key: scores[key] for key in ("base_rate", "weights", "combiner")},
        **{metric: {name: by_metric[metric] for name, by_metric in scores["scores"].items()} for metric in metrics},
        "gain_over_best_member": scores["gain_over_best_member"]["average_precision"],
    }


@command
def seeds(num_seeds: int = 5, first_seed: int = 0) -> dict[str, Any]:
    """The demo on several generated datasets: average precision relative to the base rate; three minutes each.

    num_seeds : number of seeds, each of a market and of initial weights
    first_seed : the first one; scores on seeds that were not used to choose a setting are unbiased
    """
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
        run["average_precision"]["ensemble"]["value"] - max(run["average_precision"][member]["value"] for member in members)
        for run in runs
    ]
    return {
        "average_precision_by_base_rate": summary,
        "gain_over_best_member": {"mean": statistics.mean(gains), "deviation": statistics.stdev(gains), "each": gains},
        "runs": runs,
    }


@command
def real(data: str = "../shared/data") -> dict[str, Any]:
    """The duration and the scores of the demo's commands on real review files, with those of the baseline.

    data : the folder with amazon/ and movielens/; sets that are not there are left out
    """
    results = {}
    if not (sets := real_sets(data)):
        raise UserError(f"data={data} has none of these sets: name the folder with amazon/ and movielens/")
    for name, words in sets.items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            results[name] = {"settings": REAL_SETS[name], **pipeline(Path(folder), words, SMALL)}
    return results


def real_sets(data: str) -> dict[str, list[str]]:
    """The settings of prepare_data.py for each set whose files are in `data`; a line is printed for each of the others."""
    words_of = {}
    for name, settings in REAL_SETS.items():
        files = {key: Path(data) / value for key, value in settings.items() if key in ("source", "metadata")}
        missing = [str(file) for file in files.values() if not file.exists()]
        if missing:
            print(f"{name}: left out, {', '.join(missing)} is not there")
            continue
        words = [f"{key}={value}" for key, value in settings.items() if key not in files]
        words_of[name] = [*(f"{key}=[{file}]" for key, file in files.items()), *words]
    return words_of
