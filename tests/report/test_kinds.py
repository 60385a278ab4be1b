"""The pictures of the scored rows."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from blends import CLASSES, blend_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ensemble.recipe import Words
from ensemble.report.pictures import BY_KIND
from ensemble.report.svg import draw, format_percent, series_style
from ensemble.report.words import THIN

TIMES = np.random.default_rng(0).integers(1, 4, 400)


def lines(kind: str, rows: np.ndarray, weight: np.ndarray | None) -> dict[str, list[np.ndarray]]:
    """By title of the picture, the points of all lines, and of all areas between two lines."""
    target, predictions, group = (column[rows] for column in blend_of(kind, len(TIMES)))
    mean = float(np.average(target, weights=weight))
    run: Any = SimpleNamespace(
        test=SimpleNamespace(target=target, weight=weight, group=group),
        candidates={"ensemble": predictions[:, 0]},
        scores={"split": "test", "base_rate": mean},
        words=Words(),
        task=SimpleNamespace(classes=range(CLASSES)),
    )
    points = {}
    for title, _, _, paint in BY_KIND[kind](run, {"ensemble": series_style(0)}):
        axes = Figure().add_subplot()
        paint(axes)
        areas = [np.array(path.vertices) for area in axes.collections for path in area.get_paths()]
        points[title] = [np.array(line.get_xydata()) for line in axes.lines] + areas
    return points


def test_the_order_of_tied_rows_does_not_count() -> None:
    """A member that predicts the same for each row would have the relevance of the order in the file, such as best first."""
    group = np.repeat([0, 1], [2, 4])
    run: Any = SimpleNamespace(
        test=SimpleNamespace(target=np.array([1.0, 0, 1, 0, 0, 0]), weight=None, group=group),
        candidates={"ensemble": np.zeros(6)},
    )
    axes = Figure().add_subplot()
    BY_KIND["ranking"](run, {"ensemble": series_style(0)})[1][-1](axes)
    assert len(axes.lines) == 2  # the member, and a random order
    for line in axes.lines:
        np.testing.assert_allclose(line.get_ydata(), [3 / 8, 3 / 8, 1 / 4, 1 / 4])


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_weights_count(kind: str) -> None:
    """The curves would ignore the weights, with which the scores beside them are computed."""
    every = np.arange(len(TIMES))
    copies = np.repeat(every, TIMES)
    weighted = lines(kind, every, TIMES.astype(float))
    assert weighted
    for weight in (None, np.ones(len(copies))):
        of_copies = lines(kind, copies, weight)
        for title, pictures in weighted.items():
            if weight is None and title == "Predicted and observed":  # quantiles without weights are between two rows
                continue
            for result, expected in zip(pictures, of_copies[title], strict=True):
                np.testing.assert_allclose(result, expected)


def test_weights_of_groups_count() -> None:
    """The curves of a ranking would ignore the weights, with which the scores beside them are computed."""
    target, predictions, group = blend_of("ranking", len(TIMES))
    times = TIMES[np.unique(group, return_inverse=True)[1]]  # each group has one weight
    rows = np.repeat(np.arange(len(TIMES)), times)
    number = np.concatenate([np.arange(count) for count in times])
    points = []
    for kept, groups, weight in (
        (np.arange(len(TIMES)), group, times.astype(float)),
        (rows, group[rows] * 10 + number, None),
    ):
        run: Any = SimpleNamespace(
            test=SimpleNamespace(target=target[kept], weight=weight, group=groups),
            candidates={"ensemble": predictions[kept, 0]},
        )
        for _, _, _, paint in BY_KIND["ranking"](run, {"ensemble": series_style(0)}):
            axes = Figure().add_subplot()
            paint(axes)
            points.append([line.get_ydata() for line in axes.lines])
    for weighted, of_copies in zip(points[:2], points[2:], strict=True):
        np.testing.assert_allclose(weighted, of_copies)


def test_the_unit_of_weights_does_not_count() -> None:
    """NDCG by group size would be 1 for weights of 0.01, which no score beside it is."""
    target, predictions, group = blend_of("ranking", len(TIMES))
    points = []
    for unit in (1.0, 0.01):
        run: Any = SimpleNamespace(
            test=SimpleNamespace(target=target, weight=unit * TIMES, group=group),
            candidates={"ensemble": predictions[:, 0]},
        )
        axes = Figure().add_subplot()
        BY_KIND["ranking"](run, {"ensemble": series_style(0)})[0][-1](axes)
        points.append(axes.lines[0].get_ydata())
    assert np.max(points[0]) < 0.99
    np.testing.assert_allclose(points[1], points[0])


def test_dollar_signs_in_the_words_of_a_recipe_stay() -> None:
    """The text between two `$` would become a formula, without the signs and with every letter on its own."""
    words = Words(yes="$5 to $9", positives="orders of $5 to $9", became_yes="cost $5 to $9")
    run: Any = SimpleNamespace(
        test=SimpleNamespace(target=np.tile([0.0, 1.0], 50), weight=None),
        candidates={"ensemble": np.linspace(0.1, 0.9, 100)},
        scores={"split": "test", "base_rate": 0.5},
        words=words,
    )
    curve, reliability = (draw("x", picture[-1], "") for picture in BY_KIND["binary"](run, {"ensemble": series_style(0)}))
    assert f"of all {words.positives}</text>" in curve
    assert f"precision: {words.yes}, of all predicted</text>" in curve
    assert f"share that {words.became_yes}</text>" in reliability


def test_labels_at_the_origin_are_apart() -> None:
    """The 0 % of one axis would be printed over that of the other."""
    painted: list[Any] = []

    def paint(axes: Any) -> None:
        axes.set(xlim=(0, 1), ylim=(0, 1))
        format_percent(axes.xaxis, axes.yaxis)
        painted.append(axes)

    draw("corner", paint, "Two axes.")
    FigureCanvasAgg(painted[0].figure).draw()
    boxes = [labels[0].get_window_extent() for labels in (painted[0].get_xticklabels(), painted[0].get_yticklabels())]
    assert not boxes[0].overlaps(boxes[1])


def test_sizes_of_large_groups_are_apart() -> None:
    """The labels of groups with more than 1,000 rows would be printed over each other."""
    group = np.repeat(np.arange(12), 1000 + 90 * np.arange(12))
    prediction = np.random.default_rng(0).random(len(group))
    run: Any = SimpleNamespace(
        test=SimpleNamespace(target=(prediction > 0.9).astype(float), weight=None, group=group),
        candidates={"ensemble": prediction},
    )
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    BY_KIND["ranking"](run, {"ensemble": series_style(0)})[0][-1](axes)
    FigureCanvasAgg(figure).draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) == 6
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((-6e6, 6e6), ["−6 M", "−4 M", "−2 M", "0", "2 M", "4 M", "6 M"]),
        ((0.0, 1.2e6), ["0", "200 k", "400 k", "600 k", "800 k", "1 M", "1.2 M"]),
        ((0.0, 60_000.0), ["0", "10,000", "20,000", "30,000", "40,000", "50,000", "60,000"]),
        ((-0.3, 0.3), ["−0.3", "−0.2", "−0.1", "0", "0.1", "0.2", "0.3"]),
        ((-6e-9, 6e-9), ["−6 n", "−4 n", "−2 n", "0", "2 n", "4 n", "6 n"]),
    ],
)
def test_numbers_at_the_axes_are_short(values: tuple[float, float], expected: list[str]) -> None:
    """The numbers of a large or a tiny target would overlap, and change their notation along the axis."""
    target = np.linspace(*values, 200)
    run: Any = SimpleNamespace(test=SimpleNamespace(target=target, weight=None), candidates={"ensemble": target})
    axes = Figure(figsize=(5, 3.6)).add_subplot()
    BY_KIND["regression"](run, {"ensemble": series_style(0)})[0][-1](axes)
    axes.set_xlim(values)
    shown = [label.get_text().replace(THIN, " ") for label in axes.get_xticklabels()]
    assert [label for label in shown if label] == expected


def test_no_two_members_have_the_same_line() -> None:
    """The curve of the seventh member of a table could not be told from that of the first."""
    styles = [series_style(position) for position in range(20)]
    assert len({(style["color"], style["dashes"]) for style in styles}) == 20
    assert len({style["color"] for style in styles[:11]}) == 11  # bars have no dashes
