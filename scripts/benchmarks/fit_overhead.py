"""The seconds of `scripts/fit.py` on a small table, without those in which the libraries train.

The time in which at least one thread is in a training call of LightGBM, XGBoost or CatBoost, which bins the rows and adds
trees, is measured within the process of the fit. The time of steps and evaluations of the network is read from its
summary.json. This project spends the other seconds: on start, reading, folds, encodings, predictions, combination, report,
and the launcher.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import command
from benchmarks.runs import shown
from benchmarks.timing import NO_OPENMP_SETTINGS, called
from ensemble import configuration, folders

TREES = ("lightgbm", "catboost", "xgboost")
NETWORK = "tabm"
NUM_FITS, NUM_ROWS, NUM_COLUMNS = 3, 10_000, 20


@command
def fit_overhead() -> dict[str, Any]:
    """Seconds of a fit of a generated table, without those in which a library trains; three minutes."""
    results = {}
    for name, members in {"trees": TREES, "trees and network": (*TREES, NETWORK)}.items():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "table.csv"
            _write_table(source)
            fits = []
            for run in range(NUM_FITS):
                out, began = Path(folder) / str(run), time.perf_counter()
                training_s = called(_fit, str(source), str(out), members, start=[*NO_OPENMP_SETTINGS, sys.executable])
                total_s = time.perf_counter() - began
                if NETWORK in members:
                    training_s += folders.read_json(out / "members" / NETWORK / "summary.json")["seconds"]
                fits.append(shown(name, {"total_s": round(total_s, 1), "rest_s": round(total_s - training_s, 1)}))
        results[name] = {"rest_s": statistics.median(fit["rest_s"] for fit in fits), "each": fits}
    return {"rows": NUM_ROWS, "columns": NUM_COLUMNS, **results}


def _write_table(file: Path) -> None:
    """Write a table with one of two classes as its target, and with few values in half of its columns."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(NUM_ROWS, NUM_COLUMNS))
    values[:, ::2] = np.round(values[:, ::2])
    is_positive = values @ rng.normal(size=NUM_COLUMNS) + 3 * rng.normal(size=NUM_ROWS) > 0
    header = ",".join([*(f"x{column}" for column in range(NUM_COLUMNS)), "y"])
    np.savetxt(file, np.column_stack([values, is_positive]), "%.6g", ",", header=header, comments="")


def _fit(source: str, out: str, members: list[str]) -> float:
    """Fit as scripts/fit.py does. Returns the seconds in which a library for trees was training."""
    from ensemble.pipeline import run
    from ensemble.pipeline.budget import Budget
    from ensemble.pipeline.settings import config_class
    from ensemble.trees import threads

    threads.configure(quiet=True)  # before the libraries are imported, as in a fit
    import catboost

    from ensemble.trees import lgbm, xgb  # which import less of the libraries than a program of a user would

    lightgbm, xgboost = lgbm.lightgbm, xgb.xgboost
    threads.is_openmp_loaded = lambda: False  # otherwise the fit, which configures threads again, would fail
    calls: list[tuple[float, float]] = []
    for kind, method in (
        (lightgbm.Dataset, "construct"),
        (lightgbm.Booster, "update"),
        (xgboost.QuantileDMatrix, "__init__"),
        (xgboost.Booster, "update"),
        (catboost.CatBoost, "_fit"),  # also bins the rows
    ):
        setattr(kind, method, _recorded(calls)(getattr(kind, method)))
    settings = {"source": (source,), "target": "y", "out": out, "time_limit": 0.0, "members": tuple(members)}
    run.fit(configuration.from_dict(config_class("table"), settings), "table", False, Budget(0.0))
    return covered_s(calls)


@contextmanager
def _recorded(calls: list[tuple[float, float]]) -> Iterator[None]:
    """Append the times at which the block, or a call of the decorated function, begins and ends."""
    began = time.perf_counter()
    try:
        yield
    finally:
        calls.append((began, time.perf_counter()))


def covered_s(calls: Iterable[tuple[float, float]]) -> float:
    """The seconds in which at least one of the calls was running."""
    covered_s = last_end = 0.0
    for begin, end in sorted(calls):
        covered_s += max(0.0, end - max(begin, last_end))
        last_end = max(last_end, end)
    return covered_s
