"""One process of the tree benchmarks: it loads nothing but what a training of trees loads, and counts what that took."""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.trees.settings import TreesRun
from ensemble.trees.settings import TreesConfig

TIMES = 5


def run(settings: TreesRun) -> None:
    """Write what was counted to `settings.out`."""
    from ensemble.trees import threads

    num_threads = 0
    if settings.work == "defaults":
        threads.provide_openmp()
    else:
        num_threads = threads.configure()

    from ensemble import folders
    from ensemble.trees import rows
    from ensemble.trees.predict import library_module

    library = library_module(settings.library)
    with tempfile.TemporaryDirectory(dir=Path(settings.out).parent) as scratch:
        config = TreesConfig(
            library=settings.library, data=settings.data, out=str(Path(scratch) / "member"), memory=settings.memory,
            num_rounds=settings.num_trees, early_stopping_rounds=settings.num_trees, threads=num_threads,
        )  # fmt: skip
        if settings.work == "predict":
            found = _predict(config, library.FILE)
        else:
            about = rows.tree_manifest(settings.data)
            train, validation = (rows.TreeData(settings.data, split, about) for split in ("train", "validation"))
            if settings.work == "ours":
                from ensemble.trees.boosting import Training

                found = counted(lambda: library.train(config, train, validation, Training(page_folder=Path(scratch))))
            else:
                bare = _bare_xgboost if settings.library == "xgboost" else _bare_lightgbm
                found = counted(lambda: bare(config, train, validation, Path(scratch)))
    folders.write_json(Path(settings.out), found)


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
    from ensemble.trees.objective import dataset_of, objective_of

    objective = objective_of(config, rows)
    settings = xgb.parameters(config, objective) | {"eval_metric": ["logloss", "aucpr"]}
    if config.threads == 0:
        del settings["nthread"]
    dataset, held_out_dataset = (dataset_of(objective, split) for split in (rows, validation))
    data, held_out = xgb.matrices(config, dataset, held_out_dataset, pages)
    xgboost.train(settings, data, config.num_rounds, evals=[(held_out, "validation")], verbose_eval=False)


def _bare_lightgbm(config: TreesConfig, rows: Any, validation: Any, pages: Path) -> None:
    import lightgbm

    from ensemble.trees import lgbm
    from ensemble.trees.objective import dataset_of, objective_of

    objective = objective_of(config, rows)
    settings = lgbm.parameters(config, objective) | {"metric": ["average_precision", "binary_logloss"]}
    if config.threads == 0:
        del settings["num_threads"]
    dataset, held_out_dataset = (dataset_of(objective, split) for split in (rows, validation))
    data, held_out = lgbm.datasets(settings, dataset, held_out_dataset)
    lightgbm.train(settings, data, config.num_rounds, valid_sets=[held_out])


def _predict(config: TreesConfig, file: str) -> dict[str, Any]:
    """Rows a second, in turn: the library's own call on a matrix in memory, and all that predict.py does for a split."""
    import numpy as np

    from ensemble.trees import rows
    from ensemble.trees import train as member
    from ensemble.trees.predict import TreeMember

    num_trees = member.train(config)["trees"]
    loaded = TreeMember(config.out)
    test = rows.TreeData(config.data, "test", rows.tree_manifest(config.data))
    matrix = np.concatenate(list(test.batches()))
    native = (_native_xgboost if config.library == "xgboost" else _native_lightgbm)(Path(config.out) / file, config.threads)

    def ours() -> np.ndarray:
        return loaded.predict(config.data, "test")["prediction"]

    assert np.array_equal(ours(), native(matrix))
    speeds: dict[str, list[float]] = {"native": [], "ours": []}
    for number in range(2 * TIMES + 1):
        name, work = (("native", lambda: native(matrix)), ("ours", ours))[number % 2]
        began = time.perf_counter()
        work()
        speeds[name].append(round(len(test) / (time.perf_counter() - began)))
    return {"threads": config.threads, "trees": num_trees, "rows_per_s": speeds}


def _native_xgboost(file: Path, num_threads: int) -> Callable[[Any], Any]:
    import xgboost

    booster = xgboost.Booster({"nthread": num_threads}, model_file=file)
    return lambda matrix: booster.inplace_predict(matrix)


def _native_lightgbm(file: Path, num_threads: int) -> Callable[[Any], Any]:
    import lightgbm

    booster = lightgbm.Booster(model_file=file)
    return lambda matrix: booster.predict(matrix, num_threads=num_threads)
