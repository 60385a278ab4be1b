"""Training trees compared with the bare libraries: the effect of our thread settings, our memory and our predictions.

    python scripts/benchmark.py threads
    python scripts/benchmark.py trees

Every training is a process of its own. One of ours is between two of the other kind, and its seconds are relative to their
mean, so that a drift of the machine cancels.
"""

import dataclasses
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.runs import alternately, by_neighbours, enough, quartiles
from benchmarks.timing import AS_FOUND, script, timed
from ensemble import folders
from ensemble.arrow import TableWriter, join
from ensemble.task import Task

LIBRARIES = ("xgboost", "lightgbm")
NUM_FEATURES = 50
FEATURES = [f"feature_{number}" for number in range(NUM_FEATURES)]
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product")
ROWS_AT_ONCE = 1 << 17


def threads(rounds: int = 3, num_rows: int = 100_000, num_trees: int = 20) -> dict[str, Any]:
    """Seconds of a training with the libraries' default OpenMP settings and with ours, while another process is busy."""
    enough(rounds, 2)
    results: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder, _busy_neighbour():
        data = Path(folder) / "data"
        _write_data(data, num_rows)
        for library in LIBRARIES:
            runs = _alternately(data, ["defaults", "bare"], rounds, f"library={library}", f"num_trees={num_trees}")
            defaults, ours = ([run["wall_s"] for run in side] for side in runs)
            median_s = {"defaults": statistics.median(defaults), "ours": statistics.median(ours)}
            results[library] = {
                "defaults_s": defaults,
                "ours_s": ours,
                "median_s": median_s,
                "times_faster": round(median_s["defaults"] / median_s["ours"], 2),
                "times_faster_least": round(min(defaults) / max(ours), 2),
            }
    return results


def trees(rounds: int = 3, num_rows: int = 1_000_000, num_trees: int = 20) -> dict[str, Any]:
    """Peak memory beside the mapped rows, CPU seconds relative to the bare library's, and rows predicted per second."""
    enough(rounds, 2)
    results: dict[str, Any] = {"rows": num_rows, "features": NUM_FEATURES, "trees": num_trees}
    with tempfile.TemporaryDirectory() as folder:
        data, to_predict = Path(folder) / "data", Path(folder) / "to_predict"
        _write_data(data, num_rows)
        _write_data_to_predict(to_predict, data, num_rows)
        for library in LIBRARIES:
            results[library] = {}
            for memory in ("in_core", "low"):
                words = [f"library={library}", f"memory={memory}", f"num_trees={num_trees}"]
                bare, ours = _alternately(data, ["bare", "ours"], rounds, *words)
                neighbours = by_neighbours(*([run["cpu_s"] for run in side] for side in (bare, ours)))
                results[library][memory] = {
                    "peak_mb": quartiles([run["peak_mb"] for run in ours]),
                    "bare_peak_mb": quartiles([run["peak_mb"] for run in bare]),
                    "wall_s": quartiles([run["wall_s"] for run in ours]),
                    "cpu_s": quartiles([run["cpu_s"] for run in ours]),
                    "cpu_by_bare": quartiles(neighbours.ratios),
                    "noise": neighbours.largest_noise,
                }
            run = _run(to_predict, [f"library={library}", "work=predict", f"num_trees={5 * num_trees}"])
            neighbours = by_neighbours(run["rows_per_s"]["native"], run["rows_per_s"]["ours"])
            results[library]["predict"] = {
                "trees": run["trees"],
                "threads": run["threads"],
                "rows_per_s": quartiles(run["rows_per_s"]["ours"]),
                "by_native": quartiles(neighbours.ratios),
                "noise": neighbours.largest_noise,
            }
    return results


def _alternately(data: Path, works: list[str], rounds: int, *words: str) -> tuple[list[dict[str, Any]], ...]:
    first, second = (partial(_run, data, [*words, f"work={work}"]) for work in works)
    return alternately(first, second, rounds)


def _run(data: Path, words: list[str]) -> dict[str, Any]:
    """One training in a process of its own, without OpenMP settings in its environment."""
    out = data.parent / "run.json"
    timed([*AS_FOUND, *script("benchmark", "trees-run", f"data={data}", f"out={out}", *words)])
    figures = folders.read_json(out)
    print(*words, figures, flush=True)
    return figures


class _busy_neighbour:
    """A context in which another process keeps one core busy."""

    def __enter__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def _write_data(folder: Path, num_rows: int) -> None:
    """Prepared data: normal features, 2 % of them missing; the target is whether a noisy sum of them exceeds 4."""
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


def _write_data_to_predict(folder: Path, data: Path, num_rows: int) -> None:
    """The same rows with the splits exchanged: a model is trained quickly on the small one, and predicts the large one."""
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
