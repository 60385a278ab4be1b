"""Growth of CPU seconds and peak memory with the size of a job, over at least four doublings (ranks: two).

    python scripts/benchmark.py growth

reviews    : preparing generated reviews with text (hot_sellers)
rows       : preparing a table, and growing 20 trees on 50 features out of core (memory=low)
parameters : a training step of a network whose width grows
ranks      : a training step of all ranks together, for the same global batch
The growth of next_item with length, items and users is in next_item_growth.json, to which exponents are fitted here too.

An exponent is the slope of a least-squares line through log cost against log size: 1 if the cost doubles with the size.
Costs that do not depend on the size, such as imports, reduce it. CPU seconds are used since other load changes them little.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.measure import prepare_market
from benchmarks.growth.settings import Growth
from benchmarks.runs import enough, launcher, refuse_unknown
from benchmarks.timing import ONE_THREAD, ROOT, SCRIPTS, script, timed
from benchmarks.trees import measure as trees
from ensemble import folders

Costs = dict[str, Any]
"""`size`, `cpu_s` and `peak_mb` of one point."""
NUMBERS, TEXTS = 20, 4
"""Columns of the table that is prepared."""


def growth(**arguments: Any) -> dict[str, Any]:
    """Costs and exponents of each kind of work along each axis; the arguments are those of `Growth`."""
    settings = Growth(**arguments)
    refuse_unknown("axes", settings.axes, AXES, "axis ")
    results: dict[str, Any] = {}
    for axis in settings.axes or AXES:
        sizes = settings.widths if axis == "parameters" else getattr(settings, axis)
        enough(len(sizes), 2, f"sizes of {axis}", "an exponent")
        points: dict[str, list[Costs]] = {}
        for size in sizes:
            with tempfile.TemporaryDirectory() as scratch:
                for work, costs in AXES[axis](size, Path(scratch)):
                    points.setdefault(work, []).append({"size": size, **costs})
                    print(f"{axis}, {work}: {points[work][-1]}", flush=True)
        results[axis] = {work: fitted(each) for work, each in points.items()}
    return {**results, "next_item": next_item()}


def fitted(points: Sequence[Costs]) -> dict[str, Any]:
    """The costs in columns, and the exponent of each."""
    columns = {name: [point[name] for point in points] for name in ("size", "cpu_s", "peak_mb")}
    return {**columns, **exponents(*columns.values())}


def exponents(sizes: Sequence[float], cpu_s: Sequence[float], peak_mb: Sequence[float]) -> dict[str, float]:
    slopes = (np.polyfit(np.log(sizes), np.log(cost), 1)[0] for cost in (cpu_s, peak_mb))
    return dict(zip(("cpu_s_exponent", "peak_mb_exponent"), (round(float(slope), 2) for slope in slopes), strict=True))


def next_item() -> dict[str, Any]:
    """The exponents of the points in next_item_growth.json."""
    found = folders.read_json(ROOT / "slurm/results/next_item_growth.json")
    return {
        axis: {work: exponents(*(of[name] for name in ("sizes", "cpu_s", "peak_mb"))) for work, of in found[axis].items()}
        for axis in ("length", "items", "users")
    }


def _reviews(size: int, scratch: Path) -> Iterator[tuple[str, Costs]]:
    yield "prepare", prepare_market(size, size // 100)


def _rows(size: int, scratch: Path) -> Iterator[tuple[str, Costs]]:
    table = _write_table(scratch / "table.parquet", size)
    words = ["--recipe", "table", f"source=[{table}]", "target=y", f"out={scratch / 'prepared'}"]
    yield "prepare", timed([*ONE_THREAD, *script("prepare_data", *words)])
    trees._write_data(scratch / "data", size)
    for library in trees.LIBRARIES:
        out = scratch / "run.json"
        words = [f"data={scratch / 'data'}", f"out={out}", f"library={library}", "memory=low"]
        timed([*ONE_THREAD, *script("benchmark", "trees-run", *words)])
        yield f"{library}, low", folders.read_json(out)


def _write_table(file: Path, num_rows: int) -> Path:
    """A table of numbers and texts, 1,000 different ones at most, and a target that depends on them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    names = [*(f"x{number}" for number in range(NUMBERS)), *(f"t{number}" for number in range(TEXTS)), "y"]
    words = np.array([f"word {number}" for number in range(1000)])
    writer = None
    for start in range(0, num_rows, trees.ROWS_AT_ONCE):
        rows = min(trees.ROWS_AT_ONCE, num_rows - start)
        numbers = generator.standard_normal((NUMBERS, rows), dtype=np.float32)
        texts = [words[generator.zipf(1.5, rows) % len(words)] for _ in range(TEXTS)]
        y = numbers[:4].sum(0) + generator.standard_normal(rows)
        batch = pa.table([*numbers, *texts, y], names=names)
        writer = writer or pq.ParquetWriter(file, batch.schema)
        writer.write_table(batch)
    assert writer
    writer.close()
    return file


def _step(ranks: int, width: int, scratch: Path) -> Costs:
    out = scratch / f"{ranks}-{width}.json"
    timed([*launcher(ranks), SCRIPTS / "benchmark.py", "growth-run", f"width={width}", f"out={out}"])
    return folders.read_json(out)


def _parameters(width: int, scratch: Path) -> Iterator[tuple[str, Costs]]:
    costs = _step(1, width, scratch)
    yield "step", {"size": costs["parameters"], **costs}


def _ranks(ranks: int, scratch: Path) -> Iterator[tuple[str, Costs]]:
    yield "step", _step(ranks, 724, scratch)


AXES: dict[str, Callable[[int, Path], Iterator[tuple[str, Costs]]]] = {
    "reviews": _reviews,
    "rows": _rows,
    "parameters": _parameters,
    "ranks": _ranks,
}
