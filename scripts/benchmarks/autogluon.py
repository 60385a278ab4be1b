"""The ensemble, AutoGluon and scikit-learn's stacking: average precision on test, seconds, memory and disk.

Our ensembles have members of `make demo`: the trees alone, the trees in bags on folds forward in time, and the trees with a
linear model and the transformer, which also reads weekly series and words that the table of features does not contain. The
other methods get this table for train, validation and blend together, since they make their own folds. Our trees and linear
models are trained on all of these rows too before they predict test; of a bag, only the last copy is. The transformer is
trained on all of them only on the real datasets, and only if this improves its score on blend. All methods get the same
cores. AutoGluon gets as many seconds as training our members, predicting with them and fitting the ensemble took together,
at least `LEAST_S`; stacking has no time limit. `good_quality_by_week` also gets the weeks, and its folds are blocks of
consecutive weeks. All run with OMP_WAIT_POLICY=PASSIVE, which our scripts set themselves; `benchmark.py threads` measures
its effect.

Prediction is measured as a whole process, since all methods predict a file of new rows in this way. Each method is measured
once on each dataset.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.commands import command
from benchmarks.demo import MEMBERS, SMALL, TREES, real_sets, run_stages, stages_of
from benchmarks.process_tree import watched
from benchmarks.runs import cached, refuse_unknown
from benchmarks.tables.foreign_run import BY_TIME, ROW_ID, STACKING
from benchmarks.tables.runners import foreign_costs
from benchmarks.timing import environment
from ensemble import folders, metrics, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError

MARKETS = {"market_0": ["market.seed=0"], "market_11": ["market.seed=11"]}
FOLDS = 4
OURS = {"trees": TREES, "bagged": TREES, "ensemble": MEMBERS}
"""The folder of each of our ensembles, and its members; those of `bagged` are bags on `FOLDS` folds."""
METHODS = ("good_quality", "good_quality_by_week", "medium_quality", STACKING)
TRAINING_SPLITS = ("train", "validation", "blend")
TARGET, WEEK = "hot", "week"
NUM_DRAWS, LEAST_S = 500, 60.0


@command
def autogluon(
    python: str = ".venv-autogluon/bin/python",
    data: str = "../shared/data",
    folder: str = "runs/beside_autogluon",
    sets: tuple[str, ...] = (),
    methods: tuple[str, ...] = ("good_quality_by_week", "stacking"),
    market: tuple[str, ...] = (),
    training: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The ensemble, AutoGluon and scikit-learn's stacking on the same rows and cores; twenty minutes.

    Raises `UserError` for unknown names, and if `python` does not exist.

    python : the interpreter that has AutoGluon; `make bench-autogluon` installs it
    data : the folder with amazon/ and movielens/; datasets that are not there are left out
    folder : the folder for all files; an interrupted benchmark continues with those of the same settings in it
    sets : the generated markets and real datasets to measure; empty for all
    methods : AutoGluon's good_quality, good_quality_by_week (its folds are blocks of weeks), medium_quality; or stacking
    market : settings of prepare_data.py for generated markets that override the demo's: 'market=[market.num_products=800]'
    training : settings of train.py that override the demo's: 'training=[max_epochs=1]'
    """
    refuse_unknown("methods", methods, METHODS)
    if set(methods) - {STACKING} and not Path(python).exists():
        raise UserError(f"there is no {python}: `make bench-autogluon` installs AutoGluon there")
    known: dict[str, Words] = {name: ([*words, *market], list(training)) for name, words in MARKETS.items()}
    known |= {name: (words, [*SMALL, *training]) for name, words in real_sets(data).items()}
    refuse_unknown("sets", sets, known)
    results = {}
    for name in sets or known:
        print(name, flush=True)
        results[name] = one_set(Path(folder) / name, known[name], python, methods)
    return {"sets": results, "at_least_level": at_least_level(results)}


def at_least_level(results: dict[str, Any]) -> dict[str, str]:
    """For each of our ensembles and each other method: on how many datasets with both scores our score is not lower."""
    counts = {}
    for ours in OURS:
        for method in METHODS:
            by_set = [result["gains"].get(ours, {}) for result in results.values()]
            gains = [by_method[method]["value"] for by_method in by_set if method in by_method]
            if gains:
                counts[f"{ours} beside {method}"] = f"{sum(gain >= 0 for gain in gains)} of {len(gains)}"
    return counts


Words = tuple[list[str], list[str]]
"""Settings of prepare_data.py and train.py for a dataset."""


def one_set(folder: Path, words: Words, python: str, methods: Sequence[str]) -> dict[str, Any]:
    """Measure our ensembles and the methods on one dataset; results that are in the folder are not measured again."""
    settings = {"prepared_by": words[0], "trained_by": words[1]}
    ours = cached(folder, settings, partial(_ours, words))
    limit_s = max(LEAST_S, round(ours["total_s"], 1))
    others, failed = {}, dict(ours["failed"])
    for method in methods:
        interpreter = sys.executable if method == STACKING else python
        try:
            foreign_method = method.replace("_by_week", BY_TIME)
            other = partial(foreign_costs, foreign_method, interpreter, folder, seed=0, limit_s=limit_s)
            others[method] = cached(folder / method, {"limit_s": limit_s}, other)
        except UserError as error:
            failed[method] = str(error)
            print(f"  {method} failed: {error}", flush=True)
    test = predictions.read(folder / "ensemble" / "test.parquet")
    predicted = {name: predictions_of(folder / name / "test.parquet", test.row_id) for name in ours["used"]}
    predicted |= {name: predictions_of(folder / name / "predictions.parquet", test.row_id, "1") for name in others}
    draws = {
        name: metrics.bootstrap_draws(
            test.target, prediction, test.group, test.cluster, num_draws=NUM_DRAWS, generator=np.random.default_rng(0)
        )
        for name, prediction in predicted.items()
    }

    def intervals(draws: metrics.Draws) -> dict[str, Any]:
        by_metric = metrics.score_intervals("binary", draws)
        return {metric: by_metric[metric]._asdict() for metric in ("average_precision", "log_loss")}

    scored = {}
    for name, costs in {**ours["used"], **others}.items():
        rows_per_s = round(len(test.target) / costs["predict_s"])
        scored[name] = {**intervals(draws[name]), **costs, "test_rows_per_s": rows_per_s}
        print(f"  {name:>22}  {scored[name]}", flush=True)
    gains = {
        name: {other: intervals(draws[name].minus(draws[other]))["average_precision"] for other in others}
        for name in ours["used"]
    }
    return {
        "environment": ours["environment"],
        "rows": ours["rows"],
        "base_rate": float(test.target.mean()),
        "time_limit_s": limit_s,
        "methods": scored,
        "gains": gains,
        "failed": failed,
    }


def _ours(words: Words, folder: Path) -> dict[str, Any]:
    """Run our commands from raw files to the ensembles, predict test from a cold start, and write rows for other methods."""
    prepare, training = words
    usage: dict[str, dict[str, float]] = {}
    failed = {}
    try:
        commands = stages_of_ours(folder, [*prepare, f"panel.folds={FOLDS}"], training, with_bags=True)
        usage |= run_stages({"prepare": commands.pop("prepare")}, watched)
    except UserError as error:
        failed["bagged"] = str(error)
        print(f"  bagged failed: {error}", flush=True)
        commands = stages_of_ours(folder, prepare, training, with_bags=False)
    usage |= run_stages(commands, watched)
    write_rows(folder)
    splits = folders.read_manifest(folder / "prepared")["splits"]
    used = {name: _costs(usage, folder, name) for name in OURS if name not in failed}
    return {
        "environment": environment(),
        "rows": {split: facts["rows"] for split, facts in splits.items()},
        "total_s": used["ensemble"]["fit_s"],
        "used": used,
        "failed": failed,
        "stages": usage,
    }


def stages_of_ours(folder: Path, prepare: list[str], training: list[str], with_bags: bool) -> dict[str, list[str | Path]]:
    """The commands of all our ensembles, by name. Those named `test …` predict the test split only, to be timed."""
    commands = stages_of(folder, prepare, training)
    if with_bags:
        commands |= _stages_of_bags(folder, commands)
    commands["trees"] = [*commands["ensemble"], f"out={folder / 'trees'}", f"members=[{','.join(TREES)}]"]
    for member in MEMBERS:
        commands[f"test {member}"] = [*commands[f"predict {member}"], f"out={folder / 'again'}", "splits=[test]"]
    return commands


def _stages_of_bags(folder: Path, commands: dict[str, list[str | Path]]) -> dict[str, list[str | Path]]:
    """The commands for an ensemble of bags of trees, and for a prediction of test from a cold start.

    Each is one of `commands` followed by other values of some settings, the last of which counts.
    """
    stages, predictions_of_bags = {}, folder / "bag_predictions"
    for member in TREES:
        bag = folder / "bags" / member
        predict = [*commands[f"predict {member}"], f"member={bag}"]
        stages[f"bag of {member}"] = [*commands[member], f"out={bag}", "folds=true"]
        stages[f"predict bag of {member}"] = [*predict, f"out={predictions_of_bags}"]
        stages[f"test bag of {member}"] = [*predict, f"out={folder / 'bags_again'}", "splits=[test]"]
    fit = (f"predictions={predictions_of_bags}", f"out={folder / 'bagged'}", "on=oof")
    return {**stages, "bagged": [*commands["ensemble"], *fit]}


def _costs(usage: dict[str, dict[str, float]], folder: Path, name: str) -> dict[str, float]:
    """Seconds, memory and disk of one of our ensembles: its members, their predictions, and the fit of the ensemble."""
    kind, where = ("bag of ", "bags") if name == "bagged" else ("", "members")
    members = [f"{kind}{member}" for member in OURS[name]]
    stages = [*members, *(f"predict {member}" for member in members), name]
    return {
        "fit_s": round(sum(usage[stage]["wall_s"] for stage in stages), 1),
        "predict_s": round(sum(usage[f"test {member}"]["wall_s"] for member in members), 2),
        "peak_mb": max(usage[stage]["peak_mb"] for stage in stages),
        "disk_mb": round(sum(_megabytes(folder / where / member) for member in OURS[name]), 2),
    }


def write_rows(folder: Path) -> None:
    """Write the features of the rows that our members are trained on, and of test, for foreign_run.py."""
    prepared = folder / "prepared"
    names = [feature["name"] for feature in folders.read_manifest(prepared)["features"]]
    rows = {split: open_table(prepared / "rows" / split) for split in (*TRAINING_SPLITS, "test")}
    training = pa.concat_tables([rows[split].select([*names, WEEK, TARGET]) for split in TRAINING_SPLITS])
    training = training.set_column(len(names) + 1, TARGET, training[TARGET].cast("int8"))
    pq.write_table(training, folder / "train.parquet")
    pq.write_table(rows["test"].select([ROW_ID, *names, WEEK]), folder / "test.parquet")
    task = {"target": TARGET, "task": "binary", "metric": "average_precision"}
    time = {"time": WEEK, "time_format": "", "time_is_feature": False}
    folders.write_json(folder / "table.json", {**task, **time, "fit": "train.parquet", "predict": "test.parquet"})


def _megabytes(folder: Path) -> float:
    """The size of the files that prediction needs; of the transformer only the best checkpoint."""
    folder = folder / "best" if (folder / "best").is_dir() else folder
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def predictions_of(file: Path, row_ids: np.ndarray, column: str = "prediction") -> np.ndarray:
    """The predictions in a file, in the order of `row_ids`, which must be the ids of the rows in the file."""
    prediction_of = dict(zip(*pq.read_table(file, columns=[ROW_ID, column]).to_pydict().values(), strict=True))
    assert prediction_of.keys() == set(row_ids.tolist()), f"{file} has other rows"
    return np.array([prediction_of[row_id] for row_id in row_ids.tolist()], np.float64)
