"""The HTML page of an assimilation: analysis errors, a trajectory, and the Jacobians of emulator and true model."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.recipes.emulator.assimilation import experiment
from ensemble.recipes.emulator.assimilation.experiment import EMULATOR, TRUTH, Assimilated
from ensemble.recipes.emulator.assimilation.settings import METHODS, AssimilateConfig
from ensemble.recipes.emulator.lorenz96 import diagonal
from ensemble.report.svg import colour, picture
from ensemble.report.words import templates

SERIES = {TRUTH: "series-1", EMULATOR: "series-0"}
NUM_SHOWN_CYCLES = 120
NEIGHBOURS = (-3, -2, -1, 0, 1, 2)
"""Offsets of the inputs whose derivatives are drawn: the largest derivatives have these offsets."""
MAX_DOTS = 1500
POINT = 0
"""The point of the ring whose trajectory is drawn."""


def write(assimilated: Assimilated, settings: AssimilateConfig, out: Path) -> None:
    """Write the page atomically; `UserError` if `out` has content that this project did not write, or cannot be written."""
    import jinja2

    environment = templates(jinja2.FileSystemLoader(Path(__file__).parent))
    html = environment.get_template("page.html.j2").render(
        mark=folders.MARK,
        settings=settings,
        rows=experiment.table(assimilated.errors),
        series=SERIES if assimilated.jacobians else {TRUTH: SERIES[TRUTH]},
        pictures=[*_over_time(assimilated), _trajectory(assimilated), *_jacobians(assimilated)],
        jacobians=assimilated.jacobians,
        num_jacobians=experiment.NUM_JACOBIANS,
    )
    with folders.new_file(out, "page") as scratch:
        scratch.write_text(html, encoding="utf-8")


def _over_time(assimilated: Assimilated) -> list[dict[str, Any]]:
    """A picture for each method: its error by cycle, the mean of the seeds, smoothed over one unit of time (20 cycles)."""

    def paint(by_model: dict[str, np.ndarray], axes: Any) -> None:
        for name, values in by_model.items():
            mean = values.mean(axis=1)
            width = min(20, len(mean))
            smooth = np.convolve(mean, np.full(width, 1 / width), mode="valid")
            axes.plot(np.arange(len(smooth)) + width, smooth, color=colour(SERIES[name]), linewidth=1.4)
        axes.set(xlabel="cycle", ylabel="analysis RMSE", xlim=(0, len(mean)))
        axes.set_ylim(bottom=0)

    caption = "Mean of all seeds, smoothed over 20 cycles. The errors of the observations have the standard deviation 1."
    return [
        picture(
            f"Error over time: {METHODS[method]}",
            caption,
            f"Analysis error of {METHODS[method]} over the cycles, for each model.",
            partial(paint, by_model),
        )
        for method, by_model in assimilated.errors.items()
    ]


def _trajectory(assimilated: Assimilated) -> dict[str, Any]:
    """A picture of one point over the first scored cycles, with the analyses of the first method."""
    method, analyses = next(iter(assimilated.analyses.items()))
    twin = assimilated.twin
    num_shown = min(NUM_SHOWN_CYCLES, len(twin.truth) - twin.spin_up)
    shown = slice(twin.spin_up, twin.spin_up + num_shown)

    def paint(axes: Any) -> None:
        cycles = np.arange(num_shown)
        axes.plot(cycles, twin.observations[shown, 0, POINT], ".", color=colour("muted"), markersize=3)
        axes.plot(cycles, twin.truth[shown, 0, POINT], color=colour("ink"), linewidth=2.6, alpha=0.35)
        for name, states in analyses.items():
            axes.plot(cycles, states[:num_shown, POINT], color=colour(SERIES[name]), linewidth=1.1)
        axes.set(xlabel="cycle", ylabel=f"x at point {POINT}", xlim=(0, num_shown))

    return picture(
        "Trajectory",
        f"{METHODS[method][:1].upper()}{METHODS[method][1:]}, first seed: truth (wide grey line), observations (dots) "
        "and analyses (coloured lines).",
        "One point of the ring over time: truth, observations and analyses.",
        paint,
    )


def _jacobians(assimilated: Assimilated) -> list[dict[str, Any]]:
    if assimilated.jacobians is None:
        return []
    true, emulated = assimilated.jacobians.true, assimilated.jacobians.emulated

    def scatter(axes: Any) -> None:
        x, y = (np.concatenate([diagonal(matrix, offset).ravel() for offset in NEIGHBOURS]) for matrix in (true, emulated))
        chosen = np.linspace(0, len(x) - 1, MAX_DOTS).astype(int)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        axes.plot(ends, ends, color=colour("muted"), linewidth=1)
        axes.plot(x[chosen], y[chosen], ".", color=colour(SERIES[EMULATOR]), markersize=3, alpha=0.5)
        axes.set(xlabel="true derivative", ylabel="emulator's derivative")

    def by_offset(axes: Any) -> None:
        offsets = range(-8, 7)
        size, error = (
            [np.sqrt((diagonal(matrix, offset) ** 2).mean()) for offset in offsets] for matrix in (true, emulated - true)
        )
        axes.semilogy(offsets, size, "o-", color=colour(SERIES[TRUTH]), markersize=3.5)
        axes.semilogy(offsets, error, "o-", color=colour(SERIES[EMULATOR]), markersize=3.5)
        axes.set(xlabel="offset of the input from the output (points)", ylabel="root mean square")

    return [
        picture(
            "Jacobian against truth",
            f"Derivatives of an output with respect to {len(NEIGHBOURS)} inputs near it. On the grey line they are equal.",
            "Derivatives of the emulator against those of the true model.",
            scatter,
        ),
        picture(
            "Jacobian by distance",
            "Size of the true derivatives (blue) and of the emulator's errors (green), by the offset of the input.",
            "Size of derivatives and of their errors by the offset of the input.",
            by_offset,
        ),
    ]
