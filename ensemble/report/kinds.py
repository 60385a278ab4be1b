"""The pictures of the scored rows, by kind of task.

Each function takes the run and the line style of each candidate (`svg.series_style`), and returns the pictures.
"""

from functools import partial
from typing import Any

import numpy as np

from ensemble import metrics
from ensemble.metrics.blocks import starts_of
from ensemble.metrics.weighting import relative_weights, weight_of, weighted_mean
from ensemble.predictor.fit import ENSEMBLE
from ensemble.predictor.used_rows import place
from ensemble.report.run import Run
from ensemble.report.svg import Picture, colour, format_numbers, format_percent

NUM_BINS = 20
NUM_DECILES = 10
NUM_SIZES = 6
LARGE_GROUP = 1000
NUM_PLACES = 10
RARE = 0.2
"""If the share of positive rows is lower, the reliability diagram has square-root scales."""


def binary(run: Run, styles: dict[str, Any]) -> list[Picture]:
    """Precision against recall, and the reliability of the probabilities."""
    is_rare = run.scores["base_rate"] < RARE
    caption = "With a lower threshold, recall rises, and precision usually falls."
    label = f"Precision against recall on {place(run.scores)}."
    curve = "Precision and recall", caption, label, partial(_precision_recall, run, styles)
    caption = "On the grey line, predicted probabilities equal observed frequencies."
    caption += " Square-root scales." if is_rare else ""
    label = f"The share that {run.words.became_yes} against the predicted probability."
    return [curve, ("Reliability", caption, label, partial(_reliability, run, styles, is_rare))]


def _precision_recall(run: Run, styles: dict[str, Any], axes: Any) -> None:
    for name, probability in run.candidates.items():
        curve = metrics.binary.precision_recall(run.test.target, probability, weight=run.test.weight)
        axes.plot(curve.recall, curve.precision, **styles[name])
    axes.axhline(run.scores["base_rate"], color=colour("muted"), linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    # A recipe's words may contain `$`, which starts no formula
    axes.set_xlabel(f"recall: predicted, of all {run.words.positives}", parse_math=False)
    axes.set_ylabel(f"precision: {run.words.yes}, of all predicted", parse_math=False)
    format_percent(axes.xaxis, axes.yaxis)


def _reliability(run: Run, styles: dict[str, Any], is_rare: bool, axes: Any) -> None:
    target, weight = run.test.target, run.test.weight
    curves = {name: metrics.binary.reliability(target, each, weight=weight) for name, each in run.candidates.items()}
    top = max(max(curve.prediction.max(), curve.observed.max()) for curve in curves.values())
    top = min(1.0, np.ceil(20 * top + 0.2) / 20)
    axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1)
    for name, curve in curves.items():
        axes.plot(curve.prediction, curve.observed, marker="o", markersize=3.5, **styles[name])
    # Most probabilities are near 0: square-root scales give them more room
    for axis in ("x", "y") if is_rare else ():
        functions = (lambda values: np.sqrt(np.maximum(values, 0)), np.square)
        getattr(axes, f"set_{axis}scale")("function", functions=functions)
        ticks = [tick for tick in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0) if tick <= top]
        getattr(axes, f"set_{axis}ticks")(ticks)
    axes.set(xlim=(0, top), ylim=(0, top), xlabel="mean predicted probability")
    axes.set_ylabel(f"share that {run.words.became_yes}", parse_math=False)
    format_percent(axes.xaxis, axes.yaxis)


def regression(run: Run, styles: dict[str, Any]) -> list[Picture]:
    """Quantiles of the target against the prediction, and the error by decile of the prediction."""
    target, prediction, weight = run.test.target, run.candidates[ENSEMBLE], run.test.weight

    def predicted_and_observed(axes: Any) -> None:
        bins = metrics.binary.equal_bins(prediction, NUM_BINS, weight)
        parts = [bins == each for each in np.unique(bins)]
        middle = np.array([_quantiles(prediction, weight, part, 0.5) for part in parts])
        shares = (0.05, 0.25, 0.5, 0.75, 0.95)
        low, first_quartile, median, third_quartile, high = np.array(
            [_quantiles(target, weight, part, shares) for part in parts]
        ).T
        line_colour = styles[ENSEMBLE]["color"]
        axes.fill_between(middle, low, high, color=line_colour, alpha=0.15, linewidth=0)
        axes.fill_between(middle, first_quartile, third_quartile, color=line_colour, alpha=0.3, linewidth=0)
        axes.plot(middle, median, **styles[ENSEMBLE])
        ends = [middle.min(), middle.max()]
        axes.plot(ends, ends, color=colour("muted"), linewidth=1)
        axes.set(xlabel="predicted by the ensemble", ylabel="observed")
        format_numbers(axes.xaxis, axes.yaxis)

    def error_by_decile(axes: Any) -> None:
        bins = metrics.binary.equal_bins(prediction, NUM_DECILES, weight)
        places = np.unique(bins)
        parts = [bins == each for each in places]
        for name, candidate in run.candidates.items():
            errors = [weighted_mean(np.abs(candidate - target)[part], weight_of(weight, part)) for part in parts]
            axes.plot(places + 1, errors, marker="o", markersize=3.5, **styles[name])
        axes.set_xticks(range(1, NUM_DECILES + 1))
        axes.set(ylim=(0, None), xlabel="decile of the ensemble's prediction", ylabel="mean absolute error")
        format_numbers(axes.yaxis)

    caption = (
        "The dark band contains half of the observed values, the light one 90 %; the line is the median. On the grey "
        "line, prediction and observation are equal."
    )
    label = "Quantiles of the observed values against the ensemble's prediction."
    quantiles = "Predicted and observed", caption, label, predicted_and_observed
    caption = "The rows are ordered by the ensemble's prediction and divided into ten parts of about equal size."
    return [quantiles, ("Error by decile", caption, "Mean absolute error in each tenth of the rows.", error_by_decile)]


def multiclass(run: Run, styles: dict[str, Any]) -> list[Picture]:
    """The reliability of the probability of the class with the highest probability."""

    def reliability(axes: Any) -> None:
        for name, candidate in run.candidates.items():
            is_right = candidate.argmax(axis=1) == run.test.target
            curve = metrics.binary.reliability(is_right.astype(float), candidate.max(axis=1), NUM_DECILES, run.test.weight)
            axes.plot(curve.prediction, curve.observed, marker="o", markersize=3.5, **styles[name])
        axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1)
        axes.set(
            xlim=(0.9 / len(run.task.classes), 1),
            ylim=(0, 1),
            xlabel="predicted probability of the likeliest class",
            ylabel="share of rows of that class",
        )
        format_percent(axes.xaxis, axes.yaxis)

    caption = "On the grey line, probability and frequency of the likeliest class are equal. The bins are of equal size."
    return [("Reliability", caption, "The share of rows of the likeliest class against its probability.", reliability)]


def ranking(run: Run, styles: dict[str, Any]) -> list[Picture]:
    """NDCG by group size, and the mean relevance in each of the first places."""
    target, group, weight = run.test.target, run.test.group, relative_weights(run.test.weight)
    _, index, size_of = np.unique(group, return_inverse=True, return_counts=True)
    size = size_of[index]

    def by_size(axes: Any) -> None:
        ends = np.unique(np.quantile(size_of, np.linspace(0, 1, NUM_SIZES + 1)[1:], method="higher"))
        bins = np.searchsorted(ends, size)
        ndcg = metrics.METRIC_FUNCTIONS["ndcg_at_10"].function
        for name, candidate in run.candidates.items():
            parts = [bins == each for each in range(len(ends))]
            scores = [ndcg(target[part], candidate[part], group[part], weight_of(weight, part)) for part in parts]
            axes.plot(range(len(ends)), scores, marker="o", markersize=3.5, **styles[name])
        begins = [int(size_of.min()), *(ends[:-1] + 1)]
        dash = "–" if ends[-1] < LARGE_GROUP else "–\n"  # two long numbers need two lines
        labels = [f"{begin}" if begin == end else f"{begin}{dash}{end}" for begin, end in zip(begins, ends, strict=True)]
        axes.set_xticks(range(len(ends)), labels)
        axes.set(xlabel="rows of the group", ylabel="NDCG@10")

    def by_place(axes: Any) -> None:
        lines = [(each, {"marker": "o", "markersize": 3.5, **styles[name]}) for name, each in run.candidates.items()]
        for candidate, style in (*lines, (np.zeros(len(target)), {"color": colour("muted"), "linewidth": 1})):
            order = np.lexsort((-candidate, index))
            tied = np.searchsorted(starts_of(index[order], candidate[order]), np.arange(len(order)), side="right") - 1
            mass = np.ones(len(order)) if weight is None else weight[order]
            # Tied rows share their places
            relevance = (np.bincount(tied, mass * target[order]) / np.maximum(np.bincount(tied, mass), 1e-300))[tied]
            position = np.arange(len(order)) - (np.cumsum(size_of) - size_of)[index[order]]
            at_place = [position == each for each in range(min(NUM_PLACES, int(size_of.max())))]
            means = [mass[rows] @ relevance[rows] / max(mass[rows].sum(), 1e-300) for rows in at_place]
            axes.plot(np.arange(len(means)) + 1, means, **style)
        axes.set_xticks(range(1, NUM_PLACES + 1))
        axes.set(xlabel="place in its group", ylabel="mean relevance")

    caption, label = "NDCG for groups in bins of similar size.", "NDCG at 10 by the number of rows of the group."
    ndcg_by_size = "NDCG by group size", caption, label, by_size
    caption = "Mean relevance of the rows in each place; the grey line is that of a random order."
    return [ndcg_by_size, ("Relevance by place", caption, "Mean relevance in each of the first places.", by_place)]


def _quantiles(values: np.ndarray, weight: np.ndarray | None, rows: np.ndarray, shares: float | tuple[float, ...]) -> Any:
    """The weighted quantiles of some rows, of the shape of `shares`."""
    if weight is None:
        return np.quantile(values[rows], shares)
    return np.quantile(values[rows], shares, weights=weight[rows], method="inverted_cdf")
