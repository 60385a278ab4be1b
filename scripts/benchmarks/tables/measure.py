"""`scripts/fit.py` beside AutoGluon and plain LightGBM on eleven public tables: loss, seconds, memory.

    make bench-tables

Every method gets the same train.csv and predicts the same new.csv (`data.py`), each command in a process of its own, one
at a time, on all cores. AutoGluon gets dates already parsed, since it takes day-month-year for month-day-year. Seconds are
those of the whole process. On a machine that others use, give AutoGluon more wall time by `rivals_time_limit`; the CPU
seconds that each method used stand beside its wall seconds. No choice of the project is made by these scores.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import enough
from benchmarks.tables import comparison, data, runners
from benchmarks.tables.foreign_run import LIGHTGBM
from ensemble.errors import UserError

ENDED = "ended with"
"""What follows the command in the error of one that failed; the command, with paths of this machine, is only printed."""
TAKEN = ("fit_s", "fit_cpu_s", "predict_s", "peak_mb", "disk_mb")


def tables(
    tables: str,
    python: str,
    folder: str,
    names: Sequence[str],
    methods: Sequence[str],
    time_limit: float,
    rivals_time_limit: float,
    seeds: int,
    again: Sequence[str],
) -> dict[str, Any]:
    """Each table with what each method scored and took, and for each rival our wins and losses.

    Raises `UserError` for unknown names, a table that is not there, and without AutoGluon.
    """
    enough(seeds, 1, "seeds", "a result")
    selected = data.chosen(names)
    _check(methods, again, python)
    for name in selected:
        data.source_files(tables, name)
    limits = {method: time_limit if method in UNLIMITED else rivals_time_limit or time_limit for method in methods}
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in selected:
        print(name, flush=True)
        found[name], failed_here = _one_table(name, tables, Path(folder), python, limits, seeds, again)
        failed |= {f"{name} {which}": why for which, why in failed_here.items()}
    return {
        "time_limit_s": time_limit,
        "rivals_time_limit_s": rivals_time_limit or time_limit,
        "seeds": seeds,
        "bootstrap_draws": comparison.NUM_DRAWS,
        "tables": found,
        "against": against(found),
        "failed": failed,
    }


tables_300 = tables
UNLIMITED = (runners.OURS, LIGHTGBM)
"""Methods that get `time_limit` itself; plain LightGBM does not look at it."""


def _check(names: Sequence[str], again: Sequence[str], python: str) -> None:
    for setting, given in (("methods", names), ("again", again)):
        for name in given:
            if name not in runners.METHODS:
                raise UserError(f"{setting}={list(given)}: there is no '{name}', there are {', '.join(runners.METHODS)}")
    if set(names) - set(UNLIMITED) and not Path(python).exists():
        raise UserError(f"there is no {python}: `make bench-tables` installs AutoGluon there")


def _one_table(
    name: str, source: str, folder: Path, python: str, limits: dict[str, float], seeds: int, again: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The entry of a table, and why methods failed on it."""
    table = data.TABLES[name]
    about = data.write(name, source, folder / name)
    used: dict[str, dict[str, Any]] = {}
    losses: dict[str, list[np.ndarray]] = {}
    failed: dict[str, str] = {}
    for method, limit_s in limits.items():
        if not runners.fits(method, table):
            continue
        each, of_rows = [], []
        for seed in range(1 if method == LIGHTGBM else seeds):
            try:
                one, file = runners.result(method, name, about, folder, python, seed, limit_s, method in again)
            except UserError as error:
                failed[f"{method} seed {seed}"] = str(error)[max(0, str(error).find(ENDED)) :]
                print(f"  {method} failed with seed {seed}: {error}", flush=True)
                continue
            target, prediction = comparison.read(file, folder / name / "truth.parquet", table.target, table.task)
            each.append({**one, **comparison.scores(table.task, target, prediction)})
            of_rows.append(comparison.row_losses(table.task, target, prediction))
        if each:
            used[method], losses[method] = _told(each), of_rows
            print(_line(method, used[method]), flush=True)
    ours = losses.get(runners.OURS)
    rivals = [method for method in losses if method != runners.OURS] if ours else []
    found = {
        **{key: about[key] for key in ("origin", "sha256", "task", "split", "rows", "columns")},
        "methods": used,
        "against": {
            rival: {
                **comparison.compare(table.task, ours or [], losses[rival]),
                "memory_ratio": used[runners.OURS]["peak_mb"] / used[rival]["peak_mb"],
                "had_our_time": rival == LIGHTGBM or limits[rival] >= used[runners.OURS]["fit_s"],
            }
            for rival in rivals
        },
    }
    return found, failed


def _told(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of scores and seconds over seeds, the highest memory, and the scores of each seed."""
    scored = [key for key in ("loss", "accuracy", "roc_auc") if key in each[0]]
    return {
        **{key: float(np.mean([one[key] for one in each])) for key in (*scored, *TAKEN)},
        "peak_mb": max(one["peak_mb"] for one in each),
        "limit_s": each[0]["limit_s"],
        "versions": sorted({one["version"] for one in each if "version" in one}),
        "measured": sorted({one["environment"]["date"] for one in each}),
        "each": [{key: one[key] for key in ("seed", *scored, *TAKEN)} for one in each],
    }


def _line(method: str, used: dict[str, Any]) -> str:
    scored = "  ".join(f"{key} {used[key]:.5g}" for key in ("loss", "accuracy", "roc_auc") if key in used)
    return (
        f"  {method:>20}  {scored}  fit {used['fit_s']:.0f} s ({used['fit_cpu_s']:.0f} CPU s)"
        f"  predict {used['predict_s']:.1f} s  peak {used['peak_mb']:.0f} MB"
    )


def against(found: dict[str, Any]) -> dict[str, Any]:
    """For each rival: our wins and losses over the tables that both finished, and our peak memory relative to its."""
    summaries = {}
    for rival in dict.fromkeys(rival for one in found.values() for rival in one["against"]):
        each = [one["against"][rival] for one in found.values() if rival in one["against"]]
        summaries[rival] = {
            **comparison.summary(each),
            "memory_ratio": {
                "median": float(np.median([one["memory_ratio"] for one in each])),
                "most": max(one["memory_ratio"] for one in each),
            },
            "had_our_time": sum(one["had_our_time"] for one in each),
        }
    return summaries
