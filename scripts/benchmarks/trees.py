"""Trees of this project compared with those of the bare libraries: thread settings, memory, CPU time, predictions.

Every training is a process of its own, which loads only the modules that a training of trees needs. Each training of ours is
between two of the other kind. `trees` has `PairedRatios` of CPU seconds; `threads` compares medians.
"""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import command
from benchmarks.runs import columns, enough, measure_alternating, paired_ratios, quartiles
from benchmarks.timing import NO_OPENMP_SETTINGS, called, meanwhile, memory_mb
from ensemble import folders
from ensemble.task import Task
from ensemble.trees.settings import TreesConfig

LIBRARIES = ("xgboost", "lightgbm")
NUM_FEATURES = 50
FEATURES = [f"feature_{number}" for number in range(NUM_FEATURES)]
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product")
ROWS_AT_ONCE = 1 << 17
NUM_PREDICTIONS = 5
"""Measured predictions of this project, each between two of the library."""


@command
def threads(rounds: int = 3, num_rows: int = 100_000) -> dict[str, Any]:
    """The effect of our OpenMP settings while another process is busy, for each tree library; five minutes on two cores.

    rounds : trainings with our settings, each between two with the libraries' defaults; at least 2
    num_rows : generated rows
    """
    enough(rounds, 2)
    num_trees = 20
    results: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder, _busy_neighbour():
        data = Path(folder) / "data"
        write_data(data, num_rows)
        for library in LIBRARIES:
            first, second = (partial(run_one, data, library, work, "in_core", num_trees) for work in ("defaults", "bare"))
            defaults, ours = ([run["wall_s"] for run in runs] for runs in measure_alternating(first, second, rounds))
            median_s = {"defaults": statistics.median(defaults), "ours": statistics.median(ours)}
            results[library] = {
                "median_s": median_s,
                "times_faster": round(median_s["defaults"] / median_s["ours"], 2),
                "times_faster_least": round(min(defaults) / max(ours), 2),
            }
    return results


@command
def trees(rounds: int = 3, num_rows: int = 1_000_000, num_trees: int = 20) -> dict[str, Any]:
    """Memory and CPU seconds of training trees, rows predicted per second, compared with the bare libraries; ten minutes.

    rounds : trainings of this project, each between two of the bare library; at least 2
    num_rows : generated rows of 50 features, and a tenth as many for validation
    num_trees : trees of each training; the model whose predictions are measured has at most five times as many
    """
    enough(rounds, 2)
    results: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder:
        data, to_predict = Path(folder) / "data", Path(folder) / "to_predict"
        write_data(data, num_rows)
        write_data_to_predict(to_predict, data, num_rows)
        for library in LIBRARIES:
            results[library] = {}
            for memory in ("in_core", "low"):
                first, second = (partial(run_one, data, library, work, memory, num_trees) for work in ("bare", "ours"))
                bare, ours = map(columns, measure_alternating(first, second, rounds))
                paired = paired_ratios(bare["cpu_s"], ours["cpu_s"])
                results[library][memory] = {
                    "bare_peak_mb": quartiles(bare["peak_mb"]),
                    **{name: quartiles(values) for name, values in ours.items()},
                    "cpu_by_bare": quartiles(paired.ratios),
                    "noise": paired.largest_noise,
                }
            run = run_one(to_predict, library, "predict", "in_core", 5 * num_trees)
            rows_per_s = run["rows_per_s"]
            paired = paired_ratios(rows_per_s["native"], rows_per_s["ours"])
            results[library]["predict"] = {
                "trees": run["trees"],
                "threads": run["threads"],
                "rows_per_s": quartiles(rows_per_s["ours"]),
                "by_native": quartiles(paired.ratios),
                "noise": paired.largest_noise,
            }
    return results


def run_one(data: Path, library: str, work: str, memory: str, num_trees: int) -> dict[str, Any]:
    """Call `process` in a new process without OpenMP settings in its environment."""
    figures = called(process, str(data), library, work, memory, num_trees, start=[*NO_OPENMP_SETTINGS, sys.executable])
    print(library, memory, work, figures, flush=True)
    return figures


def process(data: str, library: Any, work: str, memory: Any, num_trees: int) -> dict[str, Any]:
    """Run one piece of work in this process, and return its costs, or for `predict` the rows predicted per second.

    work : `ours` trains with this project; `bare` with the library alone, but our OpenMP settings; `defaults` with the
        library alone and its own OpenMP settings; `predict` predicts with both, with a model trained by this project
    """
    from ensemble.trees import threads

    num_threads = 0  # the default of both libraries
    if work == "defaults":
        threads.provide_openmp()
    else:
        num_threads = threads.configure()

    from ensemble.trees import rows
    from ensemble.trees.predict import library_module

    module = library_module(library)
    with tempfile.TemporaryDirectory() as scratch:
        config = TreesConfig(
            library=library, data=data, out=f"{scratch}/member", memory=memory, num_rounds=num_trees,
            early_stopping_rounds=num_trees, threads=num_threads,
        )  # fmt: skip
        if work == "predict":
            return _predict(config, module.FILE)
        manifest = rows.tree_manifest(data)
        train, validation = (rows.TreeData(data, split, manifest) for split in ("train", "validation"))
        if work == "ours":
            from ensemble.trees.boosting import Training

            return measured(lambda: module.train(config, train, validation, Training(page_folder=Path(scratch))))
        return measured(lambda: _train_bare(config, train, validation, Path(scratch)))


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Wall and CPU seconds of a call, and the peak memory in MB that it adds, without mapped files."""
    base, peak = memory_mb("RssAnon"), [0.0]

    def sample() -> None:
        peak[0] = max(peak[0], memory_mb("RssAnon") - base)

    with meanwhile(sample, 0.003):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        seconds = {"wall_s": round(time.perf_counter() - began, 3), "cpu_s": round(time.process_time() - cpu, 3)}
    return {**seconds, "peak_mb": round(peak[0], 1)}


def _train_bare(config: TreesConfig, train_rows: Any, validation_rows: Any, pages: Path) -> None:
    """Train with the library's own function, on the same data and with the same parameters as this project."""
    from ensemble.trees.objective import dataset_of, objective_of

    objective = objective_of(config, train_rows)
    dataset, held_out_dataset = (dataset_of(objective, rows) for rows in (train_rows, validation_rows))
    if config.library == "xgboost":
        import xgboost

        from ensemble.trees import xgb

        parameters = xgb.parameters(config, objective) | {"eval_metric": ["logloss", "aucpr"]}
        train, held_out = xgb.matrices(config, dataset, held_out_dataset, pages)
        xgboost.train(parameters, train, config.num_rounds, evals=[(held_out, "validation")], verbose_eval=False)
    else:
        import lightgbm

        from ensemble.trees import lgbm

        parameters = lgbm.parameters(config, objective) | {"metric": ["average_precision", "binary_logloss"]}
        train, held_out = lgbm.datasets(parameters, dataset, held_out_dataset)
        lightgbm.train(parameters, train, config.num_rounds, valid_sets=[held_out])


def _predict(config: TreesConfig, file: str) -> dict[str, Any]:
    """Rows per second of the library's own call on a matrix in memory, and of predicting a split as predict.py does."""
    import numpy as np

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

    speeds = measure_alternating(partial(rows_per_s, native), partial(rows_per_s, ours), NUM_PREDICTIONS)
    rows_per_second = dict(zip(("native", "ours"), speeds, strict=True))
    return {"threads": config.threads, "trees": num_trees, "rows_per_s": rows_per_second}


def _native(config: TreesConfig, file: Path) -> Callable[[Any], Any]:
    """The library's own function that predicts the rows of a matrix with the model in `file`."""
    if config.library == "xgboost":
        import xgboost

        return xgboost.Booster({"nthread": config.threads}, model_file=file).inplace_predict
    import lightgbm

    return partial(lightgbm.Booster(model_file=file).predict, num_threads=config.threads)


@contextmanager
def _busy_neighbour() -> Iterator[None]:
    """Keep one core busy with another process until the block ends."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def write_data(folder: Path, num_rows: int) -> None:
    """Write prepared data: normal features, 2 % of them missing; the target is whether a noisy weighted sum exceeds 4."""
    import numpy as np
    import pyarrow as pa

    from ensemble.arrow import TableWriter

    generator = np.random.default_rng(0)
    weights = generator.standard_normal(NUM_FEATURES).astype(np.float32) / 4
    fields = [*(pa.field(name, pa.float32()) for name in FEATURES), pa.field("hot", pa.bool_())]
    schema = pa.schema([*fields, *(pa.field(name, pa.int64()) for name in ("row_id", "week", "product"))])
    num_rows_of = {"train": num_rows, "validation": num_rows // 10}
    for split, rows in num_rows_of.items():
        with TableWriter(folder / "rows" / split, schema) as writer:
            for start in range(0, rows, ROWS_AT_ONCE):
                features = generator.standard_normal((min(ROWS_AT_ONCE, rows - start), NUM_FEATURES), dtype=np.float32)
                hot = features @ weights + 2 * generator.standard_normal(len(features)) > 4
                features[generator.random(features.shape) < 0.02] = np.nan
                row_id = np.arange(start, start + len(features))
                writer.write(pa.table([*features.T, hot, row_id, row_id // 1000, row_id], schema=schema))
    _write_manifest(folder, num_rows_of)


def write_data_to_predict(folder: Path, data: Path, num_rows: int) -> None:
    """Write the same rows with other splits: a model is trained quickly on the small split, and predicts the large one."""
    from ensemble.arrow import join

    for split, source in (("train", "validation"), ("validation", "validation"), ("test", "train")):
        join(folder / "rows" / split, [data / "rows" / source])
    _write_manifest(folder, {"train": num_rows // 10, "validation": num_rows // 10, "test": num_rows})


def _write_manifest(folder: Path, num_rows_of: dict[str, int]) -> None:
    manifest = {
        "recipe": "trees",
        "task": dataclasses.asdict(TASK),
        "features": [{"name": name} for name in FEATURES],
        "splits": {split: {"rows": rows} for split, rows in num_rows_of.items()},
        "alike": {},
    }
    folders.write_manifest(folder, manifest)
