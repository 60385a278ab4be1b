"""Growth of the cost of next_item, in CPU seconds of one thread and in peak memory, when one size is doubled repeatedly.

length : a training step and an evaluation of each variant, on 32 sequences of this length over 2,000 items, loss=bce.
items : a training step and an evaluation of SASRec, on 128 sequences of length 50, loss=cross_entropy.
users : preparing the data of users with 20 interactions each.

The exponent is the slope of log cost against log size: 1 if the cost doubles when the size doubles. A part of the cost that
does not depend on the size reduces the exponent, least in the last doubling.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import command
from benchmarks.next_item import data as next_item_data
from benchmarks.next_item.run import NextItemRun, work_of
from benchmarks.runs import enough, picture_of, refuse_unknown
from benchmarks.turns import alone, worker

VARIANTS = {
    "SASRec": NextItemRun(),
    "TiSASRec": NextItemRun(time_aware=True),
    "SASRec with mHC": NextItemRun(num_streams=4),
    "TiSASRec with mHC": NextItemRun(time_aware=True, num_streams=4),
}
AXES = ("length", "items", "users")
FIGURES = {"cpu_s": "CPU seconds", "peak_mb": "peak memory, MB"}
COLOURS = ("#3a6ea5", "#c0504d", "#6a9a4a", "#8064a2")
NUM_SEQUENCES, LENGTH_ITEMS = 32, 2000
ITEMS_SEQUENCES, ITEMS_LENGTH = 128, 50
USERS_LENGTH, USERS_ITEMS = 20, 2000
BEYOND = 3
"""Interactions of a user that are not inputs of training: the target of the last input, and those of validation and test."""


@command
def next_item_growth(
    rounds: int = 5,
    doublings: int = 4,
    axes: tuple[str, ...] = (),
    length: int = 25,
    items: int = 4000,
    users: int = 4000,
    picture: str = "slurm/results/next_item_growth.png",
) -> dict[str, Any]:
    """Growth of the cost of next_item with the length of sequences, the items and the users; five minutes.

    rounds : measurements of each kind of work and size, whose median CPU seconds and largest peak memory are used
    doublings : the number of times that each size is doubled
    axes : the sizes to double, of length, items and users; empty for all
    length, items, users : the smallest value of each size
    picture : the PNG to draw; empty for none
    """
    enough(rounds, 1, purpose="a median")
    enough(doublings, 1, "doublings", "growth")
    refuse_unknown("axes", axes, AXES)
    smallest = {"length": length, "items": items, "users": users}
    results: dict[str, Any] = {"threads": 1}
    with tempfile.TemporaryDirectory() as scratch:
        for axis in axes or AXES:
            sizes = [smallest[axis] << number for number in range(doublings + 1)]
            costs: dict[str, list[dict[str, float]]] = {}
            for name, run, folder in works(axis, sizes, Path(scratch) / axis):
                with worker(work_of, *run, folder=folder) as work:
                    costs.setdefault(name, []).append(alone(work, rounds))
                print(f"{axis} {sizes[len(costs[name]) - 1]}, {name}: {costs[name][-1]}", flush=True)
            results[axis] = {name: _growth(sizes, by_size) for name, by_size in costs.items()}
    if picture:
        draw(results, Path(picture))
    return results


def works(axis: str, sizes: list[int], scratch: Path) -> Iterator[tuple[str, NextItemRun, Path]]:
    """For each size, in ascending order, and each kind of work: its name, its settings and the folder with its data."""
    generator = np.random.default_rng(0)
    for size in sizes:
        folder = scratch / str(size)
        if axis == "length":
            folder = scratch  # one dataset for all lengths, since a model uses only the newest `max_length` items
            if not folder.exists():
                lengths = np.full(max(NUM_SEQUENCES, LENGTH_ITEMS // 50), max(sizes) + BEYOND)
                num_items = min(LENGTH_ITEMS, int(lengths.sum()) // next_item_data.TIMES_EACH)
                next_item_data.write(folder, lengths, num_items, generator)
            for variant, run in VARIANTS.items():
                sized = run._replace(max_length=size, num_sequences=NUM_SEQUENCES)
                yield f"{variant}, step", sized, folder
                yield f"{variant}, evaluate", sized._replace(work="evaluate"), folder
        elif axis == "items":
            lengths = np.full(max(ITEMS_SEQUENCES, size // 8), ITEMS_LENGTH + BEYOND)
            next_item_data.write(folder, lengths, size, generator)
            run = NextItemRun(max_length=ITEMS_LENGTH, num_sequences=ITEMS_SEQUENCES, loss="cross_entropy")
            yield "SASRec, step", run, folder
            yield "SASRec, evaluate", run._replace(work="evaluate"), folder
        else:
            num_items = min(USERS_ITEMS, size * USERS_LENGTH // next_item_data.TIMES_EACH)
            next_item_data.write(folder, np.full(size, USERS_LENGTH), num_items, generator)
            yield "prepare", NextItemRun(work="prepare", time_aware=True), folder


def _growth(sizes: list[int], costs: list[dict[str, float]]) -> dict[str, Any]:
    """The sizes, the costs, and their exponents: `all` from the first to the last size, `last` in the last doubling."""
    growth: dict[str, Any] = {"sizes": sizes}
    for figure in FIGURES:
        growth[figure] = [cost[figure] for cost in costs]
        slopes = np.diff(np.log2(np.maximum(growth[figure], 1e-9)))
        growth[f"{figure}_exponent"] = {"all": round(float(slopes.mean()), 2), "last": round(float(slopes[-1]), 2)}
    return growth


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw CPU seconds above and memory below, a column for each axis; grey lines grow with the size and with its square."""
    from matplotlib.ticker import LogLocator, NullFormatter

    drawn = [axis for axis in AXES if axis in results]
    with picture_of(file, (4.6 * len(drawn), 7), 2, len(drawn), squeeze=False) as grid:
        for (row, cost), (column, axis) in itertools.product(enumerate(FIGURES), enumerate(drawn)):
            axes, sizes = grid[row, column], next(iter(results[axis].values()))["sizes"]
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
            axes.set_xlabel({"length": "items of a sequence"}.get(axis, axis))
            if row == 0:
                place = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
                axes.legend(frameon=False, fontsize=7, ncols=2, handlelength=3.5, **place)


def _draw_guides(axes: Any, costs: list[list[float]], sizes: list[int]) -> None:
    start = min(min(cost) for cost in costs)
    for exponent in (1, 2):
        heights = [start * (size / sizes[0]) ** exponent for size in sizes]
        axes.plot(sizes, heights, color="#bbbbbb", linewidth=0.8, zorder=0)
        axes.annotate(f"× {2**exponent}", (sizes[-1], heights[-1]), color="#999999", fontsize=7)
