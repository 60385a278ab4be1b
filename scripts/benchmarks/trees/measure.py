"""Growing trees beside the bare libraries: what our threads, our memory and our predictions are worth.

Every training is a process of its own. One of ours stands between two of the other kind, by whose mean its seconds are
divided, so that a drift of the machine cancels.
"""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.runs import by_neighbours, enough, quartiles
from benchmarks.timing import AS_FOUND, SCRIPTS, timed
from ensemble import folders
from ensemble.arrow import TableWriter, join
from ensemble.task import Task

LIBRARIES = ("xgboost", "lightgbm")
NUM_FEATURES = 50
FEATURES = [f"feature_{number}" for number in range(NUM_FEATURES)]
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product")
BATCH = 1 << 17


def threads(rounds: int = 3, num_rows: int = 100_000, num_trees: int = 20) -> dict[str, Any]:
    """Seconds of a training with our settings of OpenMP by those with the libraries' defaults, beside a busy process."""
    enough(rounds, 2)
    found: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder, _busy_neighbour():
        data = Path(folder) / "data"
        _write_data(data, num_rows)
        for library in LIBRARIES:
            words = [f"library={library}", f"num_trees={num_trees}"]
            runs = [_run(data, [*words, f"work={'bare' if number % 2 else 'defaults'}"]) for number in range(2 * rounds + 1)]
            seconds = [run["wall_s"] for run in runs]
            found[library] = {
                "defaults_s": seconds[::2],
                "ours_s": seconds[1::2],
                "median_s": {"defaults": statistics.median(seconds[::2]), "ours": statistics.median(seconds[1::2])},
                "times_faster": round(statistics.median(seconds[::2]) / statistics.median(seconds[1::2]), 2),
                "times_faster_least": round(min(seconds[::2]) / max(seconds[1::2]), 2),
            }
    return found


def trees(rounds: int = 3, num_rows: int = 1_000_000, num_trees: int = 20) -> dict[str, Any]:
    """Peak memory beside the mapped rows, CPU seconds by the bare library's on the same path, rows predicted a second."""
    enough(rounds, 2)
    found: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder:
        data, to_predict = Path(folder) / "data", Path(folder) / "to_predict"
        _write_data(data, num_rows)
        _write_data_to_predict(to_predict, data, num_rows)
        for library in LIBRARIES:
            found[library] = {}
            for memory in ("in_core", "low"):
                words = [f"library={library}", f"memory={memory}", f"num_trees={num_trees}"]
                runs = [_run(data, [*words, f"work={'ours' if number % 2 else 'bare'}"]) for number in range(2 * rounds + 1)]
                cpu = [run["cpu_s"] for run in runs]
                ratios, noise = by_neighbours(cpu[::2], cpu[1::2])
                found[library][memory] = {
                    "peak_mb": quartiles([run["peak_mb"] for run in runs[1::2]]),
                    "bare_peak_mb": quartiles([run["peak_mb"] for run in runs[::2]]),
                    "wall_s": quartiles([run["wall_s"] for run in runs[1::2]]),
                    "cpu_s": quartiles(cpu[1::2]),
                    "cpu_by_bare": quartiles(ratios),
                    "noise": round(max(abs(ratio - 1) for ratio in noise), 3),
                }
            run = _run(to_predict, [f"library={library}", "work=predict", f"num_trees={5 * num_trees}"])
            speeds = run["rows_per_s"]
            ratios, noise = by_neighbours(speeds["native"], speeds["ours"])
            found[library]["predict"] = {
                "trees": run["trees"],
                "threads": run["threads"],
                "rows_per_s": quartiles(speeds["ours"]),
                "by_native": quartiles(ratios),
                "noise": round(max(abs(ratio - 1) for ratio in noise), 3),
            }
    return found


def _run(data: Path, words: list[str]) -> dict[str, Any]:
    """One training in a process of its own, whose environment says nothing of threads."""
    out = data.parent / "run.json"
    timed([*AS_FOUND, sys.executable, SCRIPTS / "benchmark.py", "trees-run", f"data={data}", f"out={out}", *words])
    found = folders.read_json(out)
    print(*words, found, flush=True)
    return found


class _busy_neighbour:
    """A process that keeps one core busy while this is entered."""

    def __enter__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def _write_data(folder: Path, num_rows: int) -> None:
    """Prepared data: normal numbers, a fiftieth of them missing; a noisy sum of them decides the target, 1 in 20 is hot."""
    generator = np.random.default_rng(0)
    weights = generator.standard_normal(NUM_FEATURES).astype(np.float32) / 4
    fields = [*(pa.field(name, pa.float32()) for name in FEATURES), pa.field("hot", pa.bool_())]
    schema = pa.schema([*fields, *(pa.field(name, pa.int64()) for name in ("row_id", "week", "product"))])
    for split, rows in (("train", num_rows), ("validation", num_rows // 10)):
        with TableWriter(folder / "rows" / split, schema) as writer:
            for start in range(0, rows, BATCH):
                features = generator.standard_normal((min(BATCH, rows - start), NUM_FEATURES), dtype=np.float32)
                hot = features @ weights + 2 * generator.standard_normal(len(features)) > 4
                features[generator.random(features.shape) < 0.02] = np.nan
                row_id = np.arange(start, start + len(features))
                writer.write(pa.table([*features.T, hot, row_id, row_id // 1000, row_id], schema=schema))
    _describe(folder, {"train": num_rows, "validation": num_rows // 10})


def _write_data_to_predict(folder: Path, data: Path, num_rows: int) -> None:
    """The same rows with other names: a model learns quickly from the few, and is asked for the many."""
    for split, source in (("train", "validation"), ("validation", "validation"), ("test", "train")):
        join(folder / "rows" / split, [data / "rows" / source])
    _describe(folder, {"train": num_rows // 10, "validation": num_rows // 10, "test": num_rows})


def _describe(folder: Path, num_rows_of: dict[str, int]) -> None:
    about = {
        "recipe": "trees",
        "task": dataclasses.asdict(TASK),
        "features": [{"name": name} for name in FEATURES],
        "splits": {split: {"rows": rows} for split, rows in num_rows_of.items()},
        "alike": {},
    }
    folders.write_manifest(folder, about)
