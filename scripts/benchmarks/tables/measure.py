"""`scripts/fit.py`, AutoGluon and plain LightGBM on eleven public tables: loss, seconds, memory.

    make bench-tables

Every method gets the same train.csv and predicts the same new.csv (`data.py`), each command in a process of its own, one at
a time, on all cores. AutoGluon gets parsed dates, since it reads day-month-year as month-day-year. Seconds are those of the
whole process. On a machine with other load, give AutoGluon more wall time by `rivals_time_limit`; the results also have the
CPU seconds of each method. No setting of the project is chosen by these scores.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import enough, refuse_unknown
from benchmarks.tables import comparison, data, runners
from benchmarks.tables.foreign_run import LIGHTGBM
from benchmarks.tables.settings import Tables
from ensemble.errors import UserError

ENDED = "ended with"
"""What follows the command in the error of a failed method. The command, with paths of this machine, is only printed."""
COSTS = ("fit_s", "fit_cpu_s", "predict_s", "peak_mb", "disk_mb")
SCORES = ("loss", "accuracy", "roc_auc")


def tables(**arguments: Any) -> dict[str, Any]:
    """For each table the scores and costs of each method, and for each rival our wins and losses.

    The arguments are those of `Tables`. Raises `UserError` for unknown names, a missing table, and without AutoGluon.
    """
    settings = Tables(**arguments)
    enough(settings.seeds, 1, "seeds", "a result")
    selected = data.chosen(settings.names)
    refuse_unknown("methods", settings.methods, runners.METHODS)
    refuse_unknown("again", settings.again, runners.METHODS)
    if set(settings.methods) - set(UNLIMITED) and not Path(settings.python).exists():
        raise UserError(f"there is no {settings.python}: `make bench-tables` installs AutoGluon there")
    for name in selected:
        data.source_files(settings.tables, name)
    rivals_limit = settings.rivals_time_limit or settings.time_limit
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in selected:
        print(name, flush=True)
        results[name], failed_here = _one_table(name, settings, rivals_limit)
        failed |= {f"{name} {which}": why for which, why in failed_here.items()}
    return {
        "time_limit_s": settings.time_limit,
        "rivals_time_limit_s": rivals_limit,
        "seeds": settings.seeds,
        "bootstrap_draws": comparison.NUM_DRAWS,
        "tables": results,
        "against": against(results),
        "failed": failed,
    }


tables_300 = tables
UNLIMITED = (runners.OURS, LIGHTGBM)
"""Methods that get `time_limit`, which plain LightGBM ignores."""


def _one_table(name: str, settings: Tables, rivals_limit: float) -> tuple[dict[str, Any], dict[str, str]]:
    """The results of a table, and the errors of methods that failed on it."""
    table = data.TABLES[name]
    folder = Path(settings.folder)
    facts = data.write(name, settings.tables, folder / name)
    limits = {method: settings.time_limit if method in UNLIMITED else rivals_limit for method in settings.methods}
    used: dict[str, dict[str, Any]] = {}
    losses: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for method, limit_s in limits.items():
        if not runners.fits(method, table):
            continue
        by_seed, row_losses = [], []
        for seed in range(1 if method == LIGHTGBM else settings.seeds):
            try:
                costs, file = runners.result(
                    method, name, facts, folder, settings.python, seed, limit_s, method in settings.again
                )
            except UserError as error:
                failed[f"{method} seed {seed}"] = str(error)[max(0, str(error).find(ENDED)) :]
                print(f"  {method} failed with seed {seed}: {error}", flush=True)
                continue
            target, prediction = comparison.read(file, folder / name / "truth.parquet", table.target, table.task)
            by_seed.append({**costs, **comparison.scores(table.task, target, prediction)})
            row_losses.append(comparison.row_losses(table.task, target, prediction))
        if by_seed:
            used[method], losses[method] = _means(by_seed), row_losses
            print(f"  {method:>20}  { ({key: value for key, value in used[method].items() if key != 'each'}) }", flush=True)
    ours = losses.get(runners.OURS)
    rivals = [method for method in losses if method != runners.OURS] if ours else []
    return {
        **{key: facts[key] for key in ("origin", "sha256", "task", "split", "rows", "columns")},
        "methods": used,
        "against": {
            rival: {
                **comparison.compare(table.task, ours or [], losses[rival]),
                "memory_ratio": used[runners.OURS]["peak_mb"] / used[rival]["peak_mb"],
                "had_our_time": rival == LIGHTGBM or limits[rival] >= used[runners.OURS]["fit_s"],
            }
            for rival in rivals
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
    """For each rival, over the tables that both finished: our wins and losses, and our relative peak memory."""
    summaries = {}
    for rival in dict.fromkeys(rival for result in results.values() for rival in result["against"]):
        comparisons = [result["against"][rival] for result in results.values() if rival in result["against"]]
        ratios = [one["memory_ratio"] for one in comparisons]
        summaries[rival] = {
            **comparison.summary(comparisons),
            "memory_ratio": {"median": float(np.median(ratios)), "most": max(ratios)},
            "had_our_time": sum(one["had_our_time"] for one in comparisons),
        }
    return summaries
