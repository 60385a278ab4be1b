"""Growth of the cost of next_item, in CPU seconds of one thread and peak memory, while one size is doubled repeatedly.

    python scripts/benchmark.py next_item_growth

length : a training step and an evaluation of each variant, on 32 full sequences of 2,000 items, loss=bce.
items : the same for SASRec, on 128 sequences of 50, loss=cross_entropy.
users : preparing the data of users with 20 interactions each.

The exponent is the slope of log cost against log size: 1 if the cost doubles with the size. Costs that do not depend on the
size reduce it, least in the last doubling.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.next_item import data as next_item_data
from benchmarks.next_item_growth.settings import NextItemGrowth
from benchmarks.runs import enough
from benchmarks.turns import alone, worker
from ensemble.errors import UserError

VARIANTS = {
    "SASRec": ["time_aware=false", "num_streams=0"],
    "TiSASRec": ["time_aware=true", "num_streams=0"],
    "SASRec with mHC": ["time_aware=false", "num_streams=4"],
    "TiSASRec with mHC": ["time_aware=true", "num_streams=4"],
}
AXES = ("length", "items", "users")
FIGURES = {"cpu_s": "CPU seconds", "peak_mb": "peak memory, MB"}
COLOURS = ("#3a6ea5", "#c0504d", "#6a9a4a", "#8064a2")
NUM_SEQUENCES, LENGTH_ITEMS = 32, 2000
ITEMS_SEQUENCES, ITEMS_LENGTH = 128, 50
USERS_LENGTH, USERS_ITEMS = 20, 2000
BEYOND = 3
"""Interactions of a user after the inputs of training: the last target, and the targets of validation and test."""


def next_item_growth(**arguments: Any) -> dict[str, Any]:
    """Costs and exponents of each kind of work along each axis; the arguments are those of `NextItemGrowth`."""
    settings = NextItemGrowth(**arguments)
    enough(settings.rounds, 1, what="a median")
    enough(settings.doublings, 1, "doublings", "growth")
    if unknown := set(settings.axes) - set(AXES):
        raise UserError(f"axes={min(unknown)} is unknown: there are {', '.join(AXES)}")
    results: dict[str, Any] = {"threads": 1}
    with tempfile.TemporaryDirectory() as scratch:
        for axis in settings.axes or AXES:
            sizes = [getattr(settings, axis) << number for number in range(settings.doublings + 1)]
            costs: dict[str, list[dict[str, float]]] = {}
            for name, words, folder in _works(axis, sizes, Path(scratch) / axis):
                with worker(["next-item-run", "side=ours", *words], folder) as work:
                    costs.setdefault(name, []).append(alone(work, settings.rounds))
                print(f"{axis} {sizes[len(costs[name]) - 1]}, {name}: {costs[name][-1]}", flush=True)
            results[axis] = {name: _growth(sizes, by_size) for name, by_size in costs.items()}
    if settings.picture:
        draw(results, Path(settings.picture))
    return results


def _works(axis: str, sizes: list[int], scratch: Path) -> Iterator[tuple[str, list[str], Path]]:
    """The name, the settings and the folder of each kind of work and size; sizes with the same name in ascending order."""
    generator = np.random.default_rng(0)
    for size in sizes:
        folder = scratch / str(size)
        if axis == "length":
            folder = scratch  # the newest part of long sequences is used
            if not folder.exists():
                lengths = np.full(max(NUM_SEQUENCES, LENGTH_ITEMS // 50), max(sizes) + BEYOND)
                num_items = min(LENGTH_ITEMS, int(lengths.sum()) // next_item_data.TIMES_EACH)
                next_item_data.write(folder, lengths, num_items, generator)
            for variant, words in VARIANTS.items():
                for work in ("step", "evaluate"):
                    sequences = [f"max_length={size}", f"num_sequences={NUM_SEQUENCES}"]
                    yield f"{variant}, {work}", [f"work={work}", *sequences, *words], folder
        elif axis == "items":
            lengths = np.full(max(ITEMS_SEQUENCES, size // 8), ITEMS_LENGTH + BEYOND)
            next_item_data.write(folder, lengths, size, generator)
            for work in ("step", "evaluate"):
                words = [f"max_length={ITEMS_LENGTH}", f"num_sequences={ITEMS_SEQUENCES}", "loss=cross_entropy"]
                yield f"SASRec, {work}", [f"work={work}", *words], folder
        else:
            num_items = min(USERS_ITEMS, size * USERS_LENGTH // next_item_data.TIMES_EACH)
            next_item_data.write(folder, np.full(size, USERS_LENGTH), num_items, generator)
            yield "prepare", ["work=prepare", "time_aware=true"], folder


def _growth(sizes: list[int], costs: list[dict[str, float]]) -> dict[str, Any]:
    """The costs in columns, and the exponent of each over all sizes and over the last two."""
    growth: dict[str, Any] = {"sizes": sizes}
    for figure in FIGURES:
        growth[figure] = [cost[figure] for cost in costs]
        slopes = np.diff(np.log2(np.maximum(growth[figure], 1e-9)))
        growth[f"{figure}_exponent"] = {"all": round(float(slopes.mean()), 2), "last": round(float(slopes[-1]), 2)}
    return growth


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw seconds above and memory below, a column for each axis; grey lines grow 2 and 4 times with each doubling."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    axes_drawn = [axis for axis in AXES if axis in results]
    figure, grid = plt.subplots(2, len(axes_drawn), figsize=(4.6 * len(axes_drawn), 7), layout="constrained", squeeze=False)
    for column, axis in enumerate(axes_drawn):
        sizes = next(iter(results[axis].values()))["sizes"]
        for row, cost in enumerate(FIGURES):
            axes = grid[row, column]
            colours: dict[str, str] = {}
            for name, growth in results[axis].items():
                colour = colours.setdefault(name.split(",")[0], COLOURS[len(colours) % len(COLOURS)])
                style = "--" if name.endswith("evaluate") else "-"
                axes.plot(sizes, growth[cost], style, marker="o", markersize=3.5, color=colour, label=name)
            _draw_guides(axes, [growth[cost] for growth in results[axis].values()], sizes)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylabel(FIGURES[cost])
            axes.set_xlabel({"length": "items of a sequence", "items": "items", "users": "users"}[axis])
        grid[0, column].legend(frameon=False, fontsize=7, ncols=2, handlelength=3.5, loc="lower left", bbox_to_anchor=(0, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _draw_guides(axes: Any, costs: list[list[float]], sizes: list[int]) -> None:
    start = min(min(cost) for cost in costs)
    for exponent in (1, 2):
        heights = [start * (size / sizes[0]) ** exponent for size in sizes]
        axes.plot(sizes, heights, color="#bbbbbb", linewidth=0.8, zorder=0)
        axes.annotate(f"× {2**exponent}", (sizes[-1], heights[-1]), color="#999999", fontsize=7)
