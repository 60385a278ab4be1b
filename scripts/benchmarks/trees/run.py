"""One process of the tree benchmarks: it loads only what a training of trees loads, and measures its time and memory."""

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trees.settings import TreesRun
from ensemble.trees.settings import TreesConfig

NUM_PREDICTIONS = 5


def run(settings: TreesRun) -> None:
    """Write the measurements to `settings.out`."""
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
            figures = _predict(config, library.FILE)
        else:
            manifest = rows.tree_manifest(settings.data)
            train, validation = (rows.TreeData(settings.data, split, manifest) for split in ("train", "validation"))
            if settings.work == "ours":
                from ensemble.trees.boosting import Training

                figures = measured(lambda: library.train(config, train, validation, Training(page_folder=Path(scratch))))
            else:
                figures = measured(lambda: _train_bare(config, train, validation, Path(scratch)))
    folders.write_json(Path(settings.out), figures)


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Wall and CPU seconds of a call, and its peak memory in MB without mapped files."""
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


def _train_bare(config: TreesConfig, rows: Any, validation: Any, pages: Path) -> None:
    """Train with the library's own function, on the same data and with the same parameters."""
    from ensemble.trees.objective import dataset_of, objective_of

    objective = objective_of(config, rows)
    dataset, held_out_dataset = (dataset_of(objective, split) for split in (rows, validation))
    if config.library == "xgboost":
        import xgboost

        from ensemble.trees import xgb

        parameters = xgb.parameters(config, objective) | {"eval_metric": ["logloss", "aucpr"]}
        if config.threads == 0:
            del parameters["nthread"]
        train, held_out = xgb.matrices(config, dataset, held_out_dataset, pages)
        xgboost.train(parameters, train, config.num_rounds, evals=[(held_out, "validation")], verbose_eval=False)
    else:
        import lightgbm

        from ensemble.trees import lgbm

        parameters = lgbm.parameters(config, objective) | {"metric": ["average_precision", "binary_logloss"]}
        if config.threads == 0:
            del parameters["num_threads"]
        train, held_out = lgbm.datasets(parameters, dataset, held_out_dataset)
        lightgbm.train(parameters, train, config.num_rounds, valid_sets=[held_out])


def _predict(config: TreesConfig, file: str) -> dict[str, Any]:
    """Rows per second of the library's own call on a matrix in memory, and of all that predict.py does for a split."""
    import numpy as np

    from benchmarks.runs import alternately
    from ensemble.trees import rows
    from ensemble.trees import train as member
    from ensemble.trees.predict import TreeMember

    num_trees = member.train(config)["trees"]
    loaded = TreeMember(config.out)
    test = rows.TreeData(config.data, "test", rows.tree_manifest(config.data))
    native = partial(_native(config, Path(config.out) / file), np.concatenate(list(test.batches())))

    def ours() -> np.ndarray:
        return loaded.predict(config.data, "test")["prediction"]

    assert np.array_equal(ours(), native())

    def rows_per_s(predict: Callable[[], Any]) -> int:
        began = time.perf_counter()
        predict()
        return round(len(test) / (time.perf_counter() - began))

    speeds = alternately(partial(rows_per_s, native), partial(rows_per_s, ours), NUM_PREDICTIONS)
    rows_per_second = dict(zip(("native", "ours"), speeds, strict=True))
    return {"threads": config.threads, "trees": num_trees, "rows_per_s": rows_per_second}


def _native(config: TreesConfig, file: Path) -> Callable[[Any], Any]:
    """The library's own prediction from a matrix."""
    if config.library == "xgboost":
        import xgboost

        return xgboost.Booster({"nthread": config.threads}, model_file=file).inplace_predict
    import lightgbm

    return partial(lightgbm.Booster(model_file=file).predict, num_threads=config.threads)
