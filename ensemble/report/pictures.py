"""The pictures of the report: curves of the scored rows, learning curves, and the scaling of training over ranks."""

from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from ensemble.data.cross_validation import CrossValidation
from ensemble.report import kinds, tables
from ensemble.report.run import Member, Run
from ensemble.report.svg import PLANNED_DASHES, Picture, colour, draw, format_numbers, format_percent, picture, series_style
from ensemble.report.words import PLANNED_SPEED_UP

BY_KIND = {
    "binary": kinds.binary,
    "multiclass": kinds.multiclass,
    "regression": kinds.regression,
    "ranking": kinds.ranking,
}
"""By kind of task, the function that describes the curves of the scored rows."""
UNITS = {
    "tree": "trees",
    "step": "steps",
    "fit": "fits with descending penalties, for each set of columns",
}
"""By what a learning curve counts, the label of its axis. A linear model is fitted for each penalty and set of columns."""


def draw_all(run: Run) -> dict[str, Any]:
    """`curves` of the scored rows, `learning` curves of the members, and `scaling`, None without a benchmark file."""
    styles = {name: series_style(position) for position, name in enumerate(run.candidates)}
    describe = run.recipe.get("page", "pictures")
    of_recipe: list[Picture] = describe(run, styles) if describe else []
    curves = [picture(*parts) for parts in (*BY_KIND[run.task.kind](run, styles), *of_recipe)]
    labels = tables.metric_labels(run)
    kind = run.task.kind
    rows = "validation" if CrossValidation.from_manifest(run.manifest) is None else "early-stopping rows"
    learning = [
        curve
        for position, member in enumerate(run.members, start=1)
        for curve in _learning_curves(member, kind, series_style(position)["color"], f"learning-{position}", labels, rows)
    ]
    return {"curves": curves, "learning": learning, "scaling": _scaling(run.scaling) if run.scaling else None}


def _scaling(benchmarks: list[dict[str, Any]]) -> dict[str, Markup]:
    """Pictures of speed-up and efficiency by ranks: measured values as dots with quartiles, ideal and planned ones as grey
    lines."""
    ranks = sorted({*PLANNED_SPEED_UP, *(row["ranks"] for benchmark in benchmarks for row in benchmark["rows"])})
    ideal = {1: 1.0, ranks[-1]: ranks[-1]}

    def paint(axes: Any, figure: str) -> None:
        for line, dashes in ((ideal, (None, None)), (PLANNED_SPEED_UP, PLANNED_DASHES)):
            values = [value / (count if figure == "efficiency" else 1) for count, value in line.items()]
            axes.plot(list(line), values, color=colour("muted"), dashes=dashes, linewidth=1.2)
        for benchmark in benchmarks:
            rows = benchmark["rows"]
            low, middle, high = (
                np.array([row[figure][part] for row in rows]) for part in ("quartile_1", "median", "quartile_3")
            )
            style = {"marker": "o", "markersize": 6, "capsize": 4, "color": colour(f"series-{benchmark['series']}")}
            axes.errorbar([row["ranks"] for row in rows], middle, [middle - low, high - middle], zorder=3, **style)
        axes.set_xticks(ranks)
        axes.set(xlim=(0, ranks[-1] + 0.5), ylim=(0, None), xlabel="ranks", ylabel=figure.replace("_", "-"))
        if figure == "efficiency":
            format_percent(axes.yaxis)

    return {
        figure: draw(f"scaling-{figure}", partial(paint, figure=figure), f"{label} by ranks: measured, ideal, and planned.")
        for figure, label in (("speed_up", "Speed-up"), ("efficiency", "Efficiency"))
    }


def _learning_curves(
    member: Member, task_kind: str, line_colour: str, name: str, metric_labels: dict[str, str], rows: str
) -> list[dict[str, Any]]:
    """Pictures of the score on the early-stopping rows at each evaluation, and of the training loss if it was logged."""
    unit = "tree" if "trees" in member.summary else "fit" if "candidate" in member.summary else "step"
    pictures = []
    for kind, key, label in (
        ("val", member.metric, f"{metric_labels.get(member.metric, member.metric)} on {rows}"),
        ("train", "loss", "training loss"),
    ):
        points = {entry["step"]: entry[key] for entry in member.history if entry.get("kind") == kind and key in entry}
        steps = np.array(sorted(step for step, value in points.items() if value is not None and np.isfinite(value)))
        if not steps.size:
            continue
        values = np.array([points[step] for step in steps])
        best = int((np.argmax if member.higher_is_better else np.argmin)(values)) if kind == "val" else None
        # The copies of a CatBoost member share one number of trees, which need not be the best of their mean score
        chosen = np.flatnonzero(steps == member.summary.get("trees"))
        marked = int(chosen[0]) if best is not None and chosen.size else best

        def paint(axes: Any, steps: np.ndarray = steps, values: np.ndarray = values, marked: int | None = marked) -> None:
            axes.plot(steps, values, "." if unit == "fit" else "-", color=line_colour, linewidth=1.8)
            if marked is not None:
                axes.plot(steps[marked], values[marked], "o", markersize=7, color=line_colour)
            axes.set(xlim=(0, None), xlabel=UNITS[unit])
            format_numbers(axes.xaxis, axes.yaxis)

        description, note = f"{member.name}: {label} by {unit}", ""
        if marked is not None:
            place = f"{tables.score(task_kind, values[marked], member.metric)} at {unit} {steps[marked]:,}"
            note = f"best {place}" if values[marked] == values[best] else f"{place}, the chosen number of trees"
            description += f"; {note}"
        svg = draw(f"{name}-{kind}", paint, description)
        pictures.append({"member": member.name, "label": label, "best": note, "svg": svg})
    return pictures
