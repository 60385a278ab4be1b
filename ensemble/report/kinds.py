"""What the report draws of values, classes and orders: title, caption, label and painter of each picture.

Each function takes the run, and how each candidate is drawn; a painter fills matplotlib's axes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.predictor.fit import ENSEMBLE
from ensemble.report.run import Run

Described = tuple[str, str, str, Callable[[Any], None]]
NUM_BINS = 20
NUM_DECILES = 10
NUM_SIZES = 6
NUM_PLACES = 10
MUTED = "#000001"  # the page's `muted`, as report_pictures has it


def values(run: Run, series: dict[str, Any]) -> list[Described]:
    """Of numbers: what was seen where a value was said, and how far off it was."""
    target, said = run.test.target, run.candidates[ENSEMBLE]

    def observed(axes: Any) -> None:
        bins = _equal_bins(said, NUM_BINS)
        middle = np.array([np.median(said[bins == number]) for number in np.unique(bins)])
        low, quarter, half, three, high = np.array(
            [np.quantile(target[bins == number], (0.05, 0.25, 0.5, 0.75, 0.95)) for number in np.unique(bins)]
        ).T
        colour = series[ENSEMBLE]["color"]
        axes.fill_between(middle, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.fill_between(middle, quarter, three, color=colour, alpha=0.3, linewidth=0)
        axes.plot(middle, half, **series[ENSEMBLE])
        ends = [middle.min(), middle.max()]
        axes.plot(ends, ends, color=MUTED, linewidth=1)
        axes.set(xlabel="said by the ensemble", ylabel="seen")
        _plain_numbers(axes.xaxis, axes.yaxis)

    def error_by_decile(axes: Any) -> None:
        bins = _equal_bins(said, NUM_DECILES)
        places = np.unique(bins)
        for name, candidate in run.candidates.items():
            errors = [np.abs(candidate - target)[bins == number].mean() for number in places]
            axes.plot(places + 1, errors, marker="o", markersize=3.5, **series[name])
        axes.set_xticks(range(1, NUM_DECILES + 1))
        axes.set(ylim=(0, None), xlabel="tenth of the rows, by what the ensemble said", ylabel="mean absolute error")
        _plain_numbers(axes.yaxis)

    return [
        (
            "Predicted and observed",
            "Half of the rows lie in the dark band, nine of ten in the pale one; the line is their middle. On the grey line "
            "a value means what it says.",
            "Quantiles of what was seen against the value that the ensemble said.",
            observed,
        ),
        (
            "Error by decile",
            "Whether small values or large ones are hard: rows in tenths, from the lowest forecast to the highest.",
            "Mean absolute error in each tenth of the rows.",
            error_by_decile,
        ),
    ]


def classes(run: Run, series: dict[str, Any]) -> list[Described]:
    """Of classes: whether a probability means what it says."""

    def reliability(axes: Any) -> None:
        for name, candidate in run.candidates.items():
            right = candidate.argmax(axis=1) == run.test.target
            curve = metrics.reliability(right.astype(float), candidate.max(axis=1), NUM_DECILES)
            axes.plot(curve.prediction, curve.observed, marker="o", markersize=3.5, **series[name])
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1)
        least = 1 / len(run.task.classes)
        axes.set(
            xlim=(0.9 * least, 1),
            ylim=(0, 1),
            xlabel="said: probability of the likeliest class",
            ylabel="seen: it came true",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, position: f"{100 * value:.0f}\u202f%")

    caption = "On the grey line the probability of the likeliest class means what it says. Rows in tenths."
    return [
        ("Reliability", caption, "The share that came true against the probability of the likeliest class.", reliability)
    ]


def orders(run: Run, series: dict[str, Any]) -> list[Described]:
    """Of orders: how good they are in small and large groups, and what stands in each place."""
    target, group = run.test.target, run.test.group
    _, number, size_of = np.unique(group, return_inverse=True, return_counts=True)
    size = size_of[number]

    def by_size(axes: Any) -> None:
        ends = np.unique(np.quantile(size_of, np.linspace(0, 1, NUM_SIZES + 1)[1:], method="higher"))
        bins = np.searchsorted(ends, size)
        ndcg = metrics.METRIC_FUNCTIONS["ndcg_at_10"].function
        for name, candidate in run.candidates.items():
            scores = [
                ndcg(target[bins == place], candidate[bins == place], group[bins == place]) for place in range(len(ends))
            ]
            axes.plot(range(len(ends)), scores, marker="o", markersize=3.5, **series[name])
        begins = [int(size_of.min()), *(ends[:-1] + 1)]
        words = [f"{begin}" if begin == end else f"{begin}–{end}" for begin, end in zip(begins, ends, strict=True)]
        axes.set_xticks(range(len(ends)), words)
        axes.set(xlabel="rows of the group", ylabel="NDCG@10")

    def by_place(axes: Any) -> None:
        for name, candidate in run.candidates.items():
            order = np.lexsort((-candidate, number))
            place = np.arange(len(order)) - (np.cumsum(size_of) - size_of)[number[order]]
            means = [target[order][place == each].mean() for each in range(min(NUM_PLACES, int(size_of.max())))]
            axes.plot(np.arange(len(means)) + 1, means, marker="o", markersize=3.5, **series[name])
        axes.axhline(target.mean(), color=MUTED, linewidth=1)
        axes.set_xticks(range(1, NUM_PLACES + 1))
        axes.set(xlabel="place in its group", ylabel="mean relevance")

    return [
        (
            "NDCG by group size",
            "Whether large groups are harder to order: groups of like size together.",
            "NDCG at 10 by the number of rows of the group.",
            by_size,
        ),
        (
            "Relevance by place",
            "What stands in each place; grey is the mean of all rows, which no order would give.",
            "Mean relevance in each of the first places.",
            by_place,
        ),
    ]


def _equal_bins(values: np.ndarray, num_bins: int) -> np.ndarray:
    """For each value the number of its bin, of as many rows each; equal values stay together."""
    _, block, size = np.unique(values, return_inverse=True, return_counts=True)
    middle = (np.cumsum(size) - size / 2) / len(values)
    return np.minimum((middle * num_bins).astype(int), num_bins - 1)[block]


def _plain_numbers(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(lambda value, position: f"{value:,.6g}".replace("-", "−"))
