"""Run the commands of each method, which fit train.csv and predict new.csv. Their costs are measured and cached.

A result is stored in FOLDER/TABLE/METHOD.seedS.limitL/: result.json (seconds, CPU seconds, peak memory, versions) and
predictions.parquet (row_id and `prediction`, or one column for each class). A result from another train.csv or
new.csv is replaced.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.process_tree import watched
from benchmarks.runs import cached
from benchmarks.tables.data import Table
from benchmarks.tables.foreign_run import BY_TIME, DATE_PARTS, LIGHTGBM
from benchmarks.timing import environment, script
from ensemble import folders

OURS = "ours"
AUTOGLUON = ("best_quality", "good_quality", "best_quality_v150", "high_quality", "medium_quality")
SUFFIXES = (BY_TIME, DATE_PARTS, DATE_PARTS + BY_TIME)
METHODS = (OURS, LIGHTGBM, *AUTOGLUON, *(f"{preset}{suffix}" for suffix in SUFFIXES for preset in AUTOGLUON))
METRIC = {"binary": "log_loss", "multiclass": "multiclass_log_loss", "regression": "root_mean_squared_error"}
"""For each task, the metric by which methods are compared, and which every method optimises."""
PROBABILITY_OF = "probability of "
"""The beginning of the names of columns with probabilities in our forecast.csv."""
FOREIGN_RUN = Path(__file__).with_name("foreign_run.py")


def is_applicable(method: str, table: Table) -> bool:
    """Whether a method can be used for a table: validation by time needs a time column, and parts of dates need dates."""
    if DATE_PARTS in method:
        return bool(table.time_format)
    return bool(table.time) or not method.endswith(BY_TIME)


def result(
    method: str, name: str, facts: dict[str, Any], folder: Path, python: str, seed: int, limit_s: float
) -> tuple[dict[str, Any], Path]:
    """The costs of a method and the file of its predictions, both from the cache, or measured now."""
    table = folder / name
    out = table / f"{method}.seed{seed}.limit{limit_s:g}"

    def measure(out: Path) -> dict[str, Any]:
        if method == OURS:
            costs = _ours(table, facts, out, seed, limit_s)
        else:
            costs = foreign_costs(method, sys.executable if method == LIGHTGBM else python, table, out, seed, limit_s)
            shutil.rmtree(out / "model")  # up to hundreds of MB
        return {**costs, "new_sha256": facts["new_sha256"], "environment": environment()}

    settings = {"method": method, "seed": seed, "limit_s": limit_s, "train_sha256": facts["train_sha256"]}
    if (out / "result.json").is_file() and "new_sha256" in folders.read_json(out / "result.json"):  # older results lack it
        settings["new_sha256"] = facts["new_sha256"]
    return cached(out, settings, measure), out / "predictions.parquet"


def _ours(table: Path, facts: dict[str, Any], out: Path, seed: int, limit_s: float) -> dict[str, Any]:
    """Run the two commands of a user of this project, one to fit and one to predict."""
    run = out / "run"
    words = [f"source=[{table / 'train.csv'}]", f"target={facts['target']}", f"out={run}", f"time_limit={limit_s:g}"]
    words += [f"task={facts['task']}", f"metric={METRIC[facts['task']]}", f"seed={seed}"] + (
        [f"time={facts['time']}"] if facts["time"] else []
    )
    fit = watched(script("fit", *words))
    source = (f"source=[{table / 'new.csv'}]", f"out={out / 'new'}")
    predict = watched(script("ensemble_predictor", "predict", f"ensemble={run / 'ensemble'}", *source))
    forecast = pl.read_csv(out / "new" / "forecast.csv", infer_schema_length=None)
    targets = pl.read_csv(table / "train.csv", columns=[facts["target"]], infer_schema=False)[facts["target"]]
    our_predictions(forecast, facts["task"], targets).write_parquet(out / "predictions.parquet")
    return _costs(fit, predict, run)


def our_predictions(forecast: pl.DataFrame, task: str, target: pl.Series) -> pl.DataFrame:
    """The columns of forecast.csv in the form of predictions.parquet. `target` has the classes of training rows as text."""
    named = [column for column in forecast.columns if column.startswith(PROBABILITY_OF)]
    if named:
        return forecast.select("row_id", *(pl.col(column).alias(column.removeprefix(PROBABILITY_OF)) for column in named))
    if task == "regression":
        return forecast.select("row_id", "prediction")
    no, yes = target.drop_nulls().unique().sort().to_list()
    return forecast.select("row_id", (1 - pl.col("prediction")).alias(no), pl.col("prediction").alias(yes))


def foreign_costs(method: str, python: str, table: Path, out: Path, seed: int, limit_s: float) -> dict[str, Any]:
    """Fit and predict by foreign_run.py with the interpreter `python`. Returns the costs, and the facts that it wrote."""
    words: list[str | Path] = [method, table, out, str(seed), f"{limit_s:g}"]
    fit, predict = (watched([python, "-P", FOREIGN_RUN, work, *words]) for work in ("fit", "predict"))
    return {**_costs(fit, predict, out / "model"), **folders.read_json(out / "fit.json")}


def _costs(fit: dict[str, float], predict: dict[str, float], model: Path) -> dict[str, Any]:
    return {
        "fit_s": round(fit["wall_s"], 1),
        "fit_cpu_s": round(fit["cpu_s"], 1),
        "predict_s": round(predict["wall_s"], 2),
        "peak_mb": max(fit["peak_mb"], predict["peak_mb"]),
        "disk_mb": round(sum(file.stat().st_size for file in model.rglob("*") if file.is_file()) / 1e6, 2),
    }
