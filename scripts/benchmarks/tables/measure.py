"""`scripts/fit.py`, AutoGluon and plain LightGBM on eleven public tables: loss, seconds, memory.

Every method gets the same train.csv and predicts the same new.csv (`data.py`). The commands run one at a time, each in a
process of its own, on all cores. AutoGluon gets parsed dates, since it reads day-month-year as month-day-year. Seconds are
those of the whole process. On a machine with other load, give AutoGluon more wall time by `rivals_time_limit`; the results
also have the CPU seconds of each method. No setting of the project is chosen by these scores.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import command
from benchmarks.runs import enough, refuse_unknown
from benchmarks.tables import comparison, data, runners
from benchmarks.tables.foreign_run import LIGHTGBM
from ensemble.errors import UserError

ENDED = "ended with"
"""The error of a failed method is stored from these words on. The command before them, with local paths, is only printed."""
COSTS = ("fit_s", "fit_cpu_s", "predict_s", "peak_mb", "disk_mb")
SCORES = ("loss", "accuracy", "roc_auc")


@command
def tables(
    tables: str = "../shared/data/tables",
    python: str = ".venv-autogluon/bin/python",
    folder: str = "runs/tables",
    names: tuple[str, ...] = (),
    methods: tuple[str, ...] = ("ours", "good_quality", "best_quality", "lightgbm"),
    time_limit: float = 60.0,
    rivals_time_limit: float = 0.0,
    seeds: int = 3,
) -> dict[str, Any]:
    """`scripts/fit.py`, AutoGluon and plain LightGBM on eleven public tables; hours without cached results.

    Raises `UserError` for unknown names, a missing table, without AutoGluon, and if all fits fail.

    tables : the folder of the tables, NAME.csv.gz or NAME.csv; ensemble/recipes/table/README.md lists their origins
    python : the interpreter that has AutoGluon; `make bench-tables` installs it
    folder : for the split tables and the results; a result that is stored there is not measured again
    names : the tables to measure; empty for the eleven, [further] for those of further.csv
    methods : ours, presets of AutoGluon, lightgbm. A preset with the suffix _by_time validates in blocks of time, on tables
        with a time; one with _date_parts gets hours and other parts of dates, on tables with dates; _date_parts_by_time
        has both
    time_limit : seconds for a fit
    rivals_time_limit : seconds for a fit of AutoGluon; 0 for `time_limit`. Give more on a machine with other load
    seeds : each method is fitted with the seeds 0, 1, …; lightgbm with 0 only, since its defaults are not random
    """
    enough(seeds, 1, "seeds", "a result")
    names = tuple(data.FURTHER_TABLES) if names == (data.FURTHER,) else names
    refuse_unknown("names", names, data.TABLES, "table ")
    refuse_unknown("methods", methods, runners.METHODS)
    if set(methods) - set(UNLIMITED) and not Path(python).exists():
        raise UserError(f"there is no {python}: `make bench-tables` installs AutoGluon there")
    names = names or tuple(name for name, table in data.TABLES.items() if table.is_default)
    for name in names:
        data.source_files(tables, name)
    rivals_limit = rivals_time_limit or time_limit
    limits = {method: time_limit if method in UNLIMITED else rivals_limit for method in methods}
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        print(name, flush=True)
        facts = data.write(name, tables, Path(folder) / name)
        results[name], failed_here = one_table(name, facts, Path(folder), python, limits, seeds)
        failed |= {f"{name} {method}": error for method, error in failed_here.items()}
    if not any(result["methods"] for result in results.values()):
        raise UserError(f"no method has a result, so none is written: {next(iter(failed.values()), 'none is applicable')}")
    return {
        "time_limit_s": time_limit,
        "rivals_time_limit_s": rivals_limit,
        "seeds": seeds,
        "bootstrap_draws": comparison.NUM_DRAWS,
        "tables": results,
        "against": against(results),
        "failed": failed,
    }


UNLIMITED = (runners.OURS, LIGHTGBM)
"""Methods whose limit is `time_limit`, which plain LightGBM ignores, and not `rivals_time_limit`."""


def one_table(
    name: str, facts: dict[str, Any], folder: Path, python: str, limits: dict[str, float], seeds: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """The results of a table, and the errors of methods that failed on it. `limits` has the time limit of each method."""
    table = data.TABLES[name]
    results: dict[str, dict[str, Any]] = {}
    losses: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for method, limit_s in limits.items():
        if not runners.is_applicable(method, table):
            continue
        by_seed, row_losses = [], []
        for seed in range(1 if method == LIGHTGBM else seeds):
            try:
                costs, file = runners.result(method, name, facts, folder, python, seed, limit_s)
            except UserError as error:
                failed[f"{method} seed {seed}"] = str(error)[max(0, str(error).find(ENDED)) :]
                print(f"  {method} failed with seed {seed}: {error}", flush=True)
                continue
            target, prediction = comparison.read(file, folder / name / "truth.parquet", table.target, table.task)
            by_seed.append({**costs, **comparison.scores(table.task, target, prediction)})
            row_losses.append(comparison.row_losses(table.task, target, prediction))
        if by_seed:
            results[method], losses[method] = _means(by_seed), row_losses
            means = {key: value for key, value in results[method].items() if key != "each"}
            print(f"  {method:>20}  {means}", flush=True)
    ours = losses.pop(runners.OURS, [])
    return {
        **{key: facts[key] for key in ("origin", "sha256", "task", "split", "rows", "columns")},
        "methods": results,
        "against": {
            rival: {
                **comparison.compare(table.task, ours, rival_losses),
                "memory_ratio": results[runners.OURS]["peak_mb"] / results[rival]["peak_mb"],
                "had_our_time": rival == LIGHTGBM or limits[rival] >= results[runners.OURS]["fit_s"],
            }
            for rival, rival_losses in losses.items()
            if ours
        },
    }, failed


def _means(by_seed: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of scores and seconds over seeds, the highest memory, and the scores of each seed."""
    keys = [key for key in (*SCORES, *COSTS) if key in by_seed[0]]
    return {
        **{key: float(np.mean([result[key] for result in by_seed])) for key in keys},
        "peak_mb": max(result["peak_mb"] for result in by_seed),
        "limit_s": by_seed[0]["limit_s"],
        "versions": sorted({result["version"] for result in by_seed if "version" in result}),
        "measured": sorted({result["environment"]["date"] for result in by_seed}),
        "each": [{key: result[key] for key in ("seed", *keys)} for result in by_seed],
    }


def against(results: dict[str, Any]) -> dict[str, Any]:
    """For each rival, over the tables that both finished: our wins and losses, the median relative difference in loss (below
    0 if ours is lower), and ratios of our peak memory to the rival's."""
    summaries = {}
    for rival in dict.fromkeys(rival for result in results.values() for rival in result["against"]):
        comparisons = [result["against"][rival] for result in results.values() if rival in result["against"]]
        ratios = [table["memory_ratio"] for table in comparisons]
        summaries[rival] = {
            "tables": len(comparisons),
            **{verdict: sum(table["verdict"] == verdict for table in comparisons) for verdict in ("win", "level", "loss")},
            "median_relative_difference": float(np.median([table["relative"] for table in comparisons])),
            "memory_ratio": {"median": float(np.median(ratios)), "most": max(ratios)},
            "had_our_time": sum(table["had_our_time"] for table in comparisons),
        }
    return summaries
