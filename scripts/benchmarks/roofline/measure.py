"""A training step of each recipe beside the limits of the machine: how much of it is arithmetic, memory, Python, waiting.

    python scripts/benchmark.py roofline
    make bench-gpu

The limits are a product of two large matrices and a copy of a large array, measured in the same process. Each recipe is
trained by the shared loop with generated data; run.py measures it. On CPUs every process has one thread, and seconds are CPU
seconds, so other load hardly matters; on a GPU they are seconds of the clock.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks.next_item import data as next_item_data
from benchmarks.roofline.settings import Gpu, Roofline
from benchmarks.runs import Commands, num_gpus, refuse_unknown
from benchmarks.timing import ONE_THREAD, script, timed
from ensemble import folders
from ensemble.errors import UserError

PRECISIONS = ("no", "tf32", "bf16", "fp16")
WORDS: dict[str, tuple[str, ...]] = {
    "hot_sellers": (),
    "next_item": ("batch_size=128", "recipe.max_length=50", "recipe.width=64"),
    "table": (),
    "sudoku": ("recipe.variant=trm",),
    "emulator": ("batch_size=1000", "recipe.widths=[64,64,64]", "recipe.jacobian_weight=0.1"),
}
"""By recipe, the settings of train.py that differ from its defaults."""


def roofline(**arguments: Any) -> dict[str, Any]:
    """For each recipe, precision and compilation: seconds of a step, their parts, and the shares of the machine's limits.

    The arguments are those of `Roofline`. Raises `UserError` for unknown names.
    """
    return _measured(Roofline(**arguments))


def gpu(**arguments: Any) -> dict[str, Any]:
    """The same on a GPU; raises `UserError` if there is none."""
    if not num_gpus():
        raise UserError("torch finds no GPU on this machine: run `make bench-gpu` where nvidia-smi lists one")
    return _measured(Gpu(**arguments))


def _measured(settings: Roofline) -> dict[str, Any]:
    refuse_unknown("recipes", settings.recipes, WORDS)
    refuse_unknown("precisions", settings.precisions, PRECISIONS)
    before = {"before": folders.read_json(Path(settings.before))["steps"]} if settings.before else {}
    results: dict[str, Any] = {}
    for recipe in settings.recipes or WORDS:
        data = prepared(Path(settings.folder), recipe)
        for precision in settings.precisions:
            for is_compiled in settings.compiled:
                name = f"{recipe}, {precision}{', compiled' if is_compiled else ''}"
                try:
                    results[name] = _step(recipe, data, precision, is_compiled, settings.seconds)
                except UserError as error:  # a precision or a compiler that this machine lacks
                    results[name] = {"failed": str(error)}
                print(name, results[name], flush=True)
    return {"steps": results, **before}


def _step(recipe: str, data: Path, precision: str, is_compiled: bool, seconds: float) -> dict[str, Any]:
    """The figures of a training in a process of its own."""
    words = [*WORDS[recipe], f"data={data}", f"compile={str(is_compiled).lower()}"]
    words.append(f"precision={'no' if precision == 'tf32' else precision}")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "figures.json"
        options = [f"recipe={recipe}", f"words=[{','.join(map(quoted, words))}]", f"out={out}"]
        options += [f"seconds={seconds}", f"tf32={str(precision == 'tf32').lower()}"]
        timed([*ONE_THREAD, *script("benchmark", "roofline-run", *options)])
        figures: dict[str, Any] = folders.read_json(out)
    return figures


def quoted(word: str) -> str:
    """A word as an element of a list of settings."""
    return "'" + word.replace("'", "''") + "'"


def prepared(folder: Path, recipe: str) -> Path:
    """The prepared data of a recipe in `folder`, generated if they are not there."""
    data = folder / recipe
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            GENERATE[recipe](Path(scratch))
            (Path(scratch) / "prepared").rename(data)
    return data


def _next_item(folder: Path) -> None:
    generator = np.random.default_rng(0)
    next_item_data.write(folder, next_item_data.beauty_lengths(5000, generator), 3000, generator)


def _table(folder: Path) -> None:
    """20,000 rows of 20 numbers and a class that depends on some of them."""
    values = np.random.default_rng(0).standard_normal((20_000, 20)).round(3)
    columns = {f"x{number}": column for number, column in enumerate(values.T)}
    positive = values[:, 0] * values[:, 1] + values[:, 2] > 0
    csv.write_csv(pa.table({**columns, "y": pa.array(positive).cast("string")}), folder / "table.csv")
    Commands("table").prepare(folder / "prepared", f"source=[{folder}/table.csv]", "target=y")


def _hot_sellers(folder: Path) -> None:
    words = (f"raw={folder / 'raw'}", "market.num_products=800", "market.num_reviews=40000")
    Commands("hot_sellers").prepare(folder / "prepared", *words)


def _sudoku(folder: Path) -> None:
    words = ("side=9", "clues=36", "num_train=2000", "num_validation=100", "num_test=100")
    Commands("sudoku").prepare(folder / "prepared", *words)


def _emulator(folder: Path) -> None:
    Commands("emulator").prepare(folder / "prepared")


GENERATE: dict[str, Callable[[Path], None]] = {
    "hot_sellers": _hot_sellers,
    "next_item": _next_item,
    "table": _table,
    "sudoku": _sudoku,
    "emulator": _emulator,
}
"""By recipe, what writes `prepared` into an empty folder."""
