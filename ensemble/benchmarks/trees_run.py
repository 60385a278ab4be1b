"""One process of the tree benchmarks: it loads nothing but what a training of trees loads, and counts what that took."""

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble.benchmarks.config import TreesRun
from ensemble.trees.config import TreesConfig

NUM_FEATURES = 50
ABOUT: dict[str, Any] = {
    "splits": {"train": {}, "validation": {}},
    "features": [{"name": f"feature_{number}"} for number in range(NUM_FEATURES)],
}
TIMES = 3


def run(settings: TreesRun) -> None:
    """Write what was counted to `settings.out`."""
    from ensemble.trees import threads

    num_threads = 0
    if settings.work == "defaults":
        threads.provide_openmp()
    else:
        num_threads = threads.settle()

    from ensemble.data import manifest
    from ensemble.trees.prediction import MODULES, module_of
    from ensemble.trees.rows import TreeData

    assert settings.library in MODULES
    library = module_of(settings.library)
    rows, validation = (TreeData(settings.data, split, ABOUT) for split in ("train", "validation"))
    config = TreesConfig(
        library=settings.library, memory=settings.memory, num_rounds=settings.num_trees, threads=num_threads,
        early_stopping_rounds=settings.num_trees,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=Path(settings.out).parent) as pages:
        if settings.work == "predict":
            found = _predict(library, config, rows, validation)
        elif settings.work == "ours":
            from ensemble.trees.boosting import Training

            found = counted(lambda: library.train(config, rows, validation, Training(pages=Path(pages))))
        else:
            bare = _bare_xgboost if settings.library == "xgboost" else _bare_lightgbm
            found = counted(lambda: bare(config, rows, validation, Path(pages)))
    manifest.write_json(Path(settings.out), found)


def counted(work: Callable[[], Any]) -> dict[str, float]:
    """Wall and CPU seconds, and the most memory in MB that was taken beside mapped files."""
    base, peak, done = _anonymous_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.003):
            peak.append(max(peak.pop(), _anonymous_mb() - base))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        work()
    finally:
        done.set()
    seconds = {"wall_s": round(time.perf_counter() - began, 3), "cpu_s": round(time.process_time() - cpu, 3)}
    watcher.join()
    return {**seconds, "peak_mb": round(peak[0], 1)}


def _anonymous_mb() -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def _bare_xgboost(config: TreesConfig, rows: Any, validation: Any, pages: Path) -> None:
    import xgboost

    from ensemble.trees import xgb

    settings = xgb.parameters(config) | {"eval_metric": ["logloss", "aucpr"]}
    if config.threads == 0:
        del settings["nthread"]
    data = xgb.matrix(config, rows, pages, "rows")
    held_out = xgb.matrix(config, validation, pages, "validation", data)
    xgboost.train(settings, data, config.num_rounds, evals=[(held_out, "validation")], verbose_eval=False)


def _bare_lightgbm(config: TreesConfig, rows: Any, validation: Any, pages: Path) -> None:
    import lightgbm

    from ensemble.trees import lgbm

    settings = lgbm.parameters(config)
    if config.threads == 0:
        del settings["num_threads"]
    data = lightgbm.Dataset(lgbm.table_of(rows), label=rows.column("hot"), params=settings)
    held_out = data.create_valid(lgbm.table_of(validation), label=validation.column("hot"), params=settings)
    lightgbm.train(settings, data, config.num_rounds, valid_sets=[held_out])


def _predict(library: Any, config: TreesConfig, rows: Any, validation: Any) -> dict[str, Any]:
    """Rows a second, in turn: the library's own call on a matrix that is in memory, and ours on the mapped table."""
    import numpy as np

    booster, _, _ = library.train(dataclasses.replace(config, memory="in_core"), validation, validation)
    matrix = np.concatenate([features for features, _ in rows.batches()])

    def ours() -> Any:
        return np.concatenate([library.predict(booster, features) for features, _ in rows.batches()])

    def native() -> Any:
        return library.predict(booster, matrix)

    assert np.array_equal(ours(), native())
    speeds: dict[str, list[float]] = {"native": [], "ours": []}
    for number in range(2 * TIMES + 1):
        name, work = (("native", native), ("ours", ours))[number % 2]
        began = time.perf_counter()
        work()
        speeds[name].append(round(len(rows) / (time.perf_counter() - began)))
    return {"threads": int(os.environ["OMP_NUM_THREADS"]), "rows_per_s": speeds}
