"""The ensemble beside AutoGluon and scikit-learn's stacking: average precision on test, seconds, memory and disk.

    make bench-autogluon

Ours are the commands of `make demo`: the trees alone, the trees in bags on folds forward in time, and the trees with the
transformer, which also reads the weekly series and the words that no table of features holds. The others get that table for
train, validation and blend together, since they make folds of their own: their models so learn from later weeks than our
members do, the last copies of the bags excepted. AutoGluon gets the cores that ours had and as many seconds as the trees and
the transformer took together, or `least_s`; its `good_quality_by_week` is told what the weeks are, and makes blocks of them
instead of folds. All find OMP_WAIT_POLICY=PASSIVE, which our scripts would set
themselves: what that is worth beside a busy neighbour is told by `benchmark.py threads`, and is no part of this.

Prediction is timed as a whole process from its start, since that is what both do for a file of new rows; `warm_s` is the
call alone. Each set, and on each each method, is measured once, and kept in `folder`.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.autogluon.foreign_run import ROW_ID, STACKING, TARGET, WEEK
from benchmarks.demo.measure import MEMBERS, SMALL, TREES, real_sets, stages_of
from benchmarks.process_tree import watched
from benchmarks.timing import environment
from ensemble import folders, metrics, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError

MARKETS = {"market_0": ["market.seed=0"], "market_11": ["market.seed=11"]}
FOLDS = 4
OURS = {"trees": TREES, "bagged": TREES, "ensemble": MEMBERS}
"""The folder of each of our ensembles, and its members; those of `bagged` are bags on so many folds."""
METHODS = ("good_quality", "good_quality_by_week", "medium_quality", STACKING)
LEARNED_FROM = ("train", "validation", "blend")
FOREIGN_RUN = Path(__file__).with_name("foreign_run.py")
NUM_DRAWS = 500


def autogluon(
    python: str,
    data: str,
    folder: str,
    sets: Sequence[str],
    methods: Sequence[str],
    least_s: float,
    market: Sequence[str],
    training: Sequence[str],
) -> dict[str, Any]:
    """For each set what each method scored and took, and on how many sets ours was at least level with each of the others.

    Raises `UserError` for what it does not know, and without AutoGluon.
    """
    for method in methods:
        if method not in METHODS:
            raise UserError(f"methods={list(methods)}: there is no '{method}', there are {', '.join(METHODS)}")
    if set(methods) - {STACKING} and not Path(python).exists():
        raise UserError(f"there is no {python}: `make bench-autogluon` installs AutoGluon there")
    known = {name: ([*words, *market], list(training)) for name, words in MARKETS.items()}
    known |= {name: (words, [*SMALL, *training]) for name, words in real_sets(data).items()}
    for name in sets:
        if name not in known:
            raise UserError(f"sets={list(sets)}: there is no '{name}', there are {', '.join(known)}")
    found = {}
    for name in sets or known:
        print(name, flush=True)
        found[name] = _one_set(Path(folder) / name, *known[name], methods, python, least_s)
    return {"sets": found, "at_least_level": at_least_level(found)}


def at_least_level(found: dict[str, Any]) -> dict[str, str]:
    """For each of ours and each other method: on how many of the sets that both scored ours was not behind."""
    counts = {}
    for ours in OURS:
        for method in METHODS:
            gains = [of["gains"][ours][method]["value"] for of in found.values() if method in of["gains"].get(ours, {})]
            if gains:
                counts[f"{ours} beside {method}"] = f"{sum(gain >= 0 for gain in gains)} of {len(gains)}"
    return counts


def _one_set(
    folder: Path, prepare: list[str], training: list[str], methods: Sequence[str], python: str, least_s: float
) -> dict[str, Any]:
    ours = _once(folder / "ours.json", partial(_ours, folder, prepare, training))
    limit_s = max(least_s, round(ours["total_s"], 1))
    others, failed = {}, dict(ours["failed"])
    for method in methods:
        interpreter = sys.executable if method == STACKING else python
        try:
            others[method] = _once(folder / f"{method}.json", partial(_other, folder, method, interpreter, limit_s))
        except UserError as error:
            failed[method] = str(error)
            print(f"  {method} failed: {error}", flush=True)
    test = predictions.read(folder / "ensemble" / "test.parquet")
    order = np.argsort(test.row_id)
    target, group, cluster = test.target[order], test.group[order], test.cluster[order]
    forecast = {name: _forecast(folder / name / "test.parquet", test.row_id[order]) for name in ours["used"]}
    forecast |= {name: _forecast(folder / f"{name}.parquet", test.row_id[order]) for name in others}
    used, scored = {**ours["used"], **others}, {}
    for name, prediction in forecast.items():
        of = metrics.bootstrap_scores(
            target, prediction, group, cluster, num_draws=NUM_DRAWS, generator=np.random.default_rng(0)
        )
        scored[name] = {metric: of[metric]._asdict() for metric in ("average_precision", "log_loss")}
        scored[name] |= {**used[name], "test_rows_per_s": round(len(target) / used[name]["predict_s"])}
        told = scored[name]["average_precision"]
        print(
            f"  {name:>22}  {told['value']:.4f} [{told['low']:.4f}, {told['high']:.4f}]  fit {used[name]['fit_s']:.0f} s",
            f" predict {used[name]['predict_s']:.1f} s  peak {used[name]['peak_mb']:.0f} MB",
            f" disk {used[name]['disk_mb']:.1f} MB",
            flush=True,
        )
    gains: dict[str, dict[str, Any]] = {name: {} for name in ours["used"]}
    for name in ours["used"]:
        for other in others:
            difference = metrics.bootstrap_difference(
                target, forecast[name], forecast[other], group, cluster,
                num_draws=NUM_DRAWS, generator=np.random.default_rng(0),
            )  # fmt: skip
            gains[name][other] = difference["average_precision"]._asdict()
    return {
        "environment": ours["environment"],
        "prepared_by": prepare,
        "rows": ours["rows"],
        "base_rate": float(target.mean()),
        "time_limit_s": limit_s,
        "methods": scored,
        "gains": gains,
        "failed": failed,
    }


def _once(file: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if not file.exists():
        folders.write_json(file, measure())
    return folders.read_json(file)


def _ours(folder: Path, prepare: list[str], training: list[str]) -> dict[str, Any]:
    """Our commands from raw files to the ensembles, then test once more from a cold start; and the rows for the others."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    taken: dict[str, dict[str, float]] = {}
    failed = {}
    try:
        commands = stages_of(folder, [*prepare, f"panel.folds={FOLDS}"], training)
        taken |= _run({"prepare": commands.pop("prepare")})
        commands |= _stages_of_bags(folder, commands)
    except UserError as error:
        failed["bagged"] = str(error)
        print(f"  bagged failed: {error}", flush=True)
        commands = stages_of(folder, prepare, training)
    commands["trees"] = [*_with_out(commands["ensemble"], folder / "trees"), f"members=[{','.join(TREES)}]"]
    for member in MEMBERS:
        commands[f"test {member}"] = [*_with_out(commands[f"predict {member}"], folder / "again"), "splits=[test]"]
    taken |= _run(commands)
    _hand_over(folder)
    about = folders.read_manifest(folder / "prepared")
    used = {name: _used(taken, folder, name) for name in OURS if name not in failed}
    return {
        "environment": environment(),
        "rows": {split: facts["rows"] for split, facts in about["splits"].items()},
        "total_s": used["ensemble"]["fit_s"],
        "used": used,
        "failed": failed,
        "stages": taken,
    }


def _stages_of_bags(folder: Path, commands: dict[str, list[str | Path]]) -> dict[str, list[str | Path]]:
    """Of the commands those that make an ensemble of bags of trees instead, and a prediction of test from a cold start."""
    stages, said = {}, folder / "bag_predictions"
    for member in TREES:
        bag = folder / "bags" / member
        stages[f"bag of {member}"] = [*_with_out(commands[member], bag), "folds=true"]
        predict = [f"member={bag}" if str(word).startswith("member=") else word for word in commands[f"predict {member}"]]
        stages[f"predict bag of {member}"] = _with_out(predict, said)
        stages[f"test bag of {member}"] = [*_with_out(predict, folder / "again"), "splits=[test]"]
    fit = [f"predictions={said}" if str(word).startswith("predictions=") else word for word in commands["ensemble"]]
    stages["bagged"] = [*_with_out(fit, folder / "bagged"), "on=oof"]
    return stages


def _with_out(command: Sequence[str | Path], out: Path) -> list[str | Path]:
    return [f"out={out}" if str(word).startswith("out=") else word for word in command]


def _run(commands: dict[str, list[str | Path]]) -> dict[str, dict[str, float]]:
    taken = {}
    for stage, command in commands.items():
        taken[stage] = watched(command)
        print(f"  {stage}: {taken[stage]['wall_s']:.1f} s", flush=True)
    return taken


def _used(taken: dict[str, dict[str, float]], folder: Path, name: str) -> dict[str, float]:
    """Seconds, memory and disk of one of our ensembles: its members, their predictions, and the stage that joins them."""
    kind, where = ("bag of ", "bags") if name == "bagged" else ("", "members")
    stages = [*(f"{kind}{member}" for member in OURS[name]), *(f"predict {kind}{member}" for member in OURS[name]), name]
    return {
        "fit_s": round(sum(taken[stage]["wall_s"] for stage in stages), 1),
        "predict_s": round(sum(taken[f"test {kind}{member}"]["wall_s"] for member in OURS[name]), 2),
        "peak_mb": max(taken[stage]["peak_mb"] for stage in stages),
        "disk_mb": round(sum(_megabytes(folder / where / member) for member in OURS[name]), 2),
    }


def _hand_over(folder: Path) -> None:
    """The features of what ours learned from, and of test, as Parquet."""
    prepared = folder / "prepared"
    names = [feature["name"] for feature in folders.read_manifest(prepared)["features"]]
    rows = {split: open_table(prepared / "rows" / split) for split in (*LEARNED_FROM, "test")}
    learned = pa.concat_tables([rows[split].select([*names, WEEK, TARGET]) for split in LEARNED_FROM])
    pq.write_table(learned, folder / "train.parquet")
    pq.write_table(rows["test"].select([ROW_ID, *names, WEEK]), folder / "test.parquet")


def _other(folder: Path, method: str, python: str, limit_s: float) -> dict[str, Any]:
    shutil.rmtree(folder / method, ignore_errors=True)
    run: list[str | Path] = [python, "-P", FOREIGN_RUN]
    fit = watched([*run, "fit", method, folder, str(limit_s)])
    predict = watched([*run, "predict", method, folder])
    return {
        "fit_s": round(fit["wall_s"], 1),
        "predict_s": round(predict["wall_s"], 2),
        **folders.read_json(folder / f"{method}.predict.json"),
        "peak_mb": max(fit["peak_mb"], predict["peak_mb"]),
        "disk_mb": round(_megabytes(folder / method), 2),
        **folders.read_json(folder / f"{method}.fit.json"),
    }


def _megabytes(folder: Path) -> float:
    """What prediction needs: of the transformer its best checkpoint, which is one of several."""
    folder = folder / "best" if (folder / "best").is_dir() else folder
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def _forecast(file: Path, row_ids: np.ndarray) -> np.ndarray:
    """The predictions of a file in the order of `row_ids`, which must be its own."""
    table = pq.read_table(file, columns=[ROW_ID, "prediction"])
    order = np.argsort(table[ROW_ID].to_numpy())
    assert np.array_equal(table[ROW_ID].to_numpy()[order], row_ids), f"{file} is of other rows"
    return table["prediction"].to_numpy()[order].astype(np.float64)
