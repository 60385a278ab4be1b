"""The report's pictures: matplotlib's SVG, whose colours become the page's own, so that both colour schemes fit."""

import io
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from ensemble import metrics
from ensemble.data.cross_validation import CrossValidation
from ensemble.predictor.used_rows import place
from ensemble.report import kinds, tables
from ensemble.report.run import Member, Run
from ensemble.report.words import PLANNED_SPEED_UP, THIN, number

Paint = Callable[[Any], None]
Described = tuple[str, str, str, Paint]
"""A picture: title, caption, label to read out, and what fills matplotlib's axes."""
PALETTE = ("ink", "muted", "line", "series-0", "series-1", "series-2", "series-3", "series-4", "series-5", "series-6")
PLANNED_DASHES = (2, 3)
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.5), (7, 1.5, 1.5, 1.5), (3, 3), (9, 3), (1, 3))


def colour(name: str) -> str:
    """The stand-in for a colour of the page; black, matplotlib's default, is its ink."""
    return f"#0000{PALETTE.index(name):02x}"


def fold(position: int) -> int:
    """With more members than colours, members share them; the ensemble's stays its own."""
    return 1 + (position - 1) % (len(DASHES) - 1) if position else 0


def series_of(position: int) -> dict[str, Any]:
    """How the candidate at a position is drawn, everywhere alike: the ensemble, at 0, strongest."""
    position = fold(position)
    dashes = DASHES[position] or (None, None)
    width, order = (1.5 if position else 2.4), (2.5 if position else 3)
    return {"color": colour(f"series-{position}"), "dashes": dashes, "linewidth": width, "zorder": order}


def draw(run: Run) -> dict[str, Any]:
    """The page's pictures: `curves`, of the test split, with titles and captions, `learning` and `scaling`."""
    series = {name: series_of(position) for position, name in enumerate(run.candidates)}
    of_kind = {
        "binary": _yes_or_no,
        "multiclass": kinds.classes,
        "regression": kinds.values,
        "ranking": kinds.orders,
    }
    of_recipe = run.recipe.get("page", "pictures")
    further: list[Described] = of_recipe(run, series) if of_recipe else []
    curves = [
        {"title": title, "caption": caption, "svg": picture(title.lower().replace(" ", "-"), paint, label)}
        for title, caption, label, paint in (*of_kind[run.task.kind](run, series), *further)
    ]
    learning, is_folded = [], CrossValidation.of(run.about) is not None
    for position, member in enumerate(run.members, start=1):
        of = f"learning-{position}", tables.metric_words(run), "rows that stop training" if is_folded else "validation"
        learning += _learning_curves(member, series_of(position), *of)
    return {"curves": curves, "learning": learning, "scaling": _scaling(run.scaling) if run.scaling else None}


def _yes_or_no(run: Run, series: dict[str, Any]) -> list[Described]:
    target, base_rate = run.test.target, float(run.test.target.mean())
    things, yes, became_yes = run.words.positives, run.words.yes, run.words.became_yes
    is_rare, is_folded = base_rate < 0.2, CrossValidation.of(run.about) is not None
    named = "predicted" if is_folded else "named"

    def precision_recall(axes: Any) -> None:
        for name, probability in run.candidates.items():
            curve = metrics.precision_recall(target, probability)
            axes.plot(curve.recall, curve.precision, **series[name])
        axes.axhline(base_rate, color=colour("muted"), linewidth=1)
        axes.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel=f"recall: found, of all {things}",
            ylabel=f"precision: {yes}, of all {named}",
        )
        in_percent(axes.xaxis, axes.yaxis)

    def reliability(axes: Any) -> None:
        curves = {name: metrics.reliability(target, probability) for name, probability in run.candidates.items()}
        top = max(max(curve.prediction.max(), curve.observed.max()) for curve in curves.values())
        top = min(1.0, np.ceil(20 * top + 0.2) / 20)
        axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1)
        for name, curve in curves.items():
            axes.plot(curve.prediction, curve.observed, marker="o", markersize=3.5, **series[name])
        # Most rows are far from yes: the square root gives their end of the scale room.
        for axis in ("x", "y") if is_rare else ():
            getattr(axes, f"set_{axis}scale")("function", functions=(_root, np.square))
            ticks = [tick for tick in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0) if tick <= top]
            getattr(axes, f"set_{axis}ticks")(ticks)
        axes.set(
            xlim=(0, top),
            ylim=(0, top),
            xlabel="mean predicted probability" if is_folded else "said: mean probability",
            ylabel=f"share of {run.words.positives}" if is_folded else f"seen: {became_yes}",
        )
        in_percent(axes.xaxis, axes.yaxis)

    found: list[Described] = [
        (
            "Precision and recall",
            f"Going down the ranking, more of the {things} are found, and fewer of those named are {yes}.",
            f"Precision against recall on {place(run.scores)}.",
            precision_recall,
        ),
        (
            "Reliability",
            f"On the grey line a probability means what it says.{' Square-root scales.' if is_rare else ''}",
            f"The share that {became_yes} against the probability that was said.",
            reliability,
        ),
    ]
    return found


def _scaling(measured: list[dict[str, Any]]) -> dict[str, Markup]:
    """Speed-up and efficiency by ranks: measured, as dots with their quartiles; ideal and planned, as grey lines."""
    ranks = sorted({*PLANNED_SPEED_UP, *(row["ranks"] for of in measured for row in of["rows"])})
    ideal, planned = {1: 1.0, ranks[-1]: ranks[-1]}, PLANNED_SPEED_UP

    def paint(axes: Any, figure: str) -> None:
        for line, dashes in ((ideal, (None, None)), (planned, PLANNED_DASHES)):
            values = [value / (count if figure == "efficiency" else 1) for count, value in line.items()]
            axes.plot(list(line), values, color=colour("muted"), dashes=dashes, linewidth=1.2)
        for of in measured:
            low, middle, high = (
                np.array([row[figure][part] for row in of["rows"]]) for part in ("quartile_1", "median", "quartile_3")
            )
            style = {"color": colour(f"series-{of['series']}"), "marker": "o", "markersize": 6, "capsize": 4, "zorder": 3}
            axes.errorbar([row["ranks"] for row in of["rows"]], middle, [middle - low, high - middle], **style)
        axes.set_xticks(ranks)
        axes.set(xlim=(0, ranks[-1] + 0.5), ylim=(0, None), xlabel="ranks", ylabel=figure.replace("_", "-"))
        if figure == "efficiency":
            in_percent(axes.yaxis)

    return {
        figure: picture(
            f"scaling-{figure}", partial(paint, figure=figure), f"{words} by ranks: measured, ideal, and planned."
        )
        for figure, words in (("speed_up", "Speed-up"), ("efficiency", "Efficiency"))
    }


def _learning_curves(
    member: Member, style: dict[str, Any], name: str, words_of: dict[str, str], stop: str
) -> list[dict[str, Any]]:
    """The score of every evaluation on `stop`, the rows that stop the training, and the loss in training if known."""
    unit = "tree" if "trees" in member.summary else "step"
    pictures = []
    for kind, key, words in (
        ("val", member.metric, f"{words_of.get(member.metric, member.metric)} on {stop}"),
        ("train", "loss", "loss in training"),
    ):
        # By step, so that what a resumed run repeated stands once.
        points = {entry["step"]: entry[key] for entry in member.history if entry.get("kind") == kind and key in entry}
        steps = np.array(sorted(step for step, value in points.items() if np.isfinite(value)))
        if not steps.size:
            continue
        values = np.array([points[step] for step in steps])
        higher_is_better = kind == "val" and member.higher_is_better
        best = int(np.argmax(values) if higher_is_better else np.argmin(values)) if kind == "val" else None

        def paint(axes: Any, steps: np.ndarray = steps, values: np.ndarray = values, best: int | None = best) -> None:
            axes.plot(steps, values, color=style["color"], linewidth=1.8)
            if best is not None:
                axes.plot(steps[best], values[best], "o", markersize=7, color=style["color"])
            axes.set(xlim=(0, None), xlabel=f"{unit}s")

        note = "" if best is None else f"best {_short(values[best])} at {unit} {steps[best]:,}"
        svg = picture(f"{name}-{kind}", paint, f"{member.name}: {words} by {unit}; {note}")
        pictures.append({"member": member.name, "words": words, "best": note, "svg": svg})
    return pictures


def _short(score: float) -> str:
    return f"{score:.3f}" if abs(score) < 10 else number(score)


def _root(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))


def in_percent(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(lambda value, position: f"{100 * value:.0f}{THIN}%")


def picture(name: str, paint: Paint, label: str) -> Markup:
    """The axes that `paint` fills, as SVG with the page's colours and font, ids of its own, and a label to read out."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 11.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": colour("line"),
        "axes.labelcolor": colour("muted"),
        "xtick.color": colour("line"),
        "ytick.color": colour("line"),
        "xtick.labelcolor": colour("muted"),
        "ytick.labelcolor": colour("muted"),
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "axes.grid": True,
        "grid.color": colour("line"),
        "grid.linewidth": 0.7,
    }
    stream = io.StringIO()
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5, 3.6), layout="constrained")
        paint(figure.add_subplot())
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    svg = stream.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it would rule the whole page
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r' id="', f' id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    body = re.sub(r"#0000([0-9a-f]{2})", lambda found: f"var(--{PALETTE[int(found[1], 16)]})", body)
    return Markup(f'<svg viewBox="0 0 360 259.2" role="img" aria-label="{escape(label)}">{body}')
