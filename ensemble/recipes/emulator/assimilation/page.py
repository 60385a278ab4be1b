"""The page of an assimilation, in one file: errors, a trajectory, and the emulator's Jacobian against the true one."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.recipes.emulator.assimilation import experiment
from ensemble.recipes.emulator.assimilation.experiment import EMULATOR, TRUTH, Assimilated
from ensemble.recipes.emulator.assimilation.settings import METHODS, AssimilateConfig
from ensemble.report.svg import colour, draw

TEMPLATE = "page.html.j2"
SERIES = {TRUTH: "series-1", EMULATOR: "series-0"}
NUM_SHOWN_CYCLES = 120
NEIGHBOURS = (-3, -2, -1, 0, 1, 2)
"""Offsets of the inputs whose derivatives are largest."""
MAX_DOTS = 1500
POINT = 0
"""The point of the ring whose trajectory is drawn."""


def write(found: Assimilated, settings: AssimilateConfig, out: Path) -> None:
    """Write the page, in one rename; `UserError` if `out` is a file that this project did not write."""
    folders.refuse_foreign_file(out, "page")
    html = render(found, settings)
    with folders.new_file(out, "page") as scratch:
        scratch.write_text(html, encoding="utf-8")


def render(found: Assimilated, settings: AssimilateConfig) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        mark=folders.MARK,
        settings=settings,
        rows=experiment.table(found.errors),
        series=SERIES if found.jacobians else {TRUTH: SERIES[TRUTH]},
        pictures=[*_over_time(found), *_trajectories(found), *_jacobians(found)],
        jacobians=found.jacobians,
        num_jacobians=experiment.NUM_JACOBIANS,
    )


def _described(title: str, caption: str, label: str, paint: Any) -> dict[str, Any]:
    name = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return {"title": title, "caption": caption, "svg": draw(name, paint, label)}


def _over_time(found: Assimilated) -> list[dict[str, Any]]:
    """The error of each method over the cycles, smoothed over one unit of time, mean of the seeds."""
    shown = []
    for method, of_models in found.errors.items():

        def paint(axes: Any, of_models: dict[str, np.ndarray] = of_models) -> None:
            for name, values in of_models.items():
                mean = values.mean(axis=1)
                width = min(20, len(mean))
                smooth = np.convolve(mean, np.full(width, 1 / width), mode="valid")
                axes.plot(np.arange(len(smooth)) + width, smooth, color=colour(SERIES[name]), linewidth=1.4)
            axes.set(xlabel="cycle", ylabel="analysis RMSE", xlim=(0, len(mean)))
            axes.set_ylim(bottom=0)

        shown.append(
            _described(
                f"Error over time: {METHODS[method]}",
                "Mean of all seeds, smoothed over 20 cycles. The observations have an error of 1.",
                f"Analysis error of {METHODS[method]} over the cycles, for each model.",
                paint,
            )
        )
    return shown


def _trajectories(found: Assimilated) -> list[dict[str, Any]]:
    method, analyses = next(iter(found.analyses.items()))
    begin = found.twin.spin_up
    num_shown = min(NUM_SHOWN_CYCLES, len(found.twin.truth) - begin)
    shown = slice(begin, begin + num_shown)

    def paint(axes: Any) -> None:
        cycles = np.arange(num_shown)
        axes.plot(cycles, found.twin.observations[shown, 0, POINT], ".", color=colour("muted"), markersize=3)
        axes.plot(cycles, found.twin.truth[shown, 0, POINT], color=colour("ink"), linewidth=2.6, alpha=0.35)
        for name, states in analyses.items():
            axes.plot(cycles, states[:num_shown, POINT], color=colour(SERIES[name]), linewidth=1.1)
        axes.set(xlabel="cycle", ylabel=f"x at point {POINT}", xlim=(0, num_shown))

    return [
        _described(
            "Trajectory",
            f"{METHODS[method][:1].upper()}{METHODS[method][1:]}, first seed: truth (wide grey line), observations (dots) "
            "and analyses (coloured lines).",
            "One point of the ring over time: truth, observations and analyses.",
            paint,
        )
    ]


def _jacobians(found: Assimilated) -> list[dict[str, Any]]:
    if found.jacobians is None:
        return []
    true, emulated = found.jacobians.true, found.jacobians.emulated
    num_points = true.shape[-1]
    points = np.arange(num_points)

    def scatter(axes: Any) -> None:
        near = [(true[:, points, (points + k) % num_points].ravel(), emulated[:, points, (points + k) % num_points].ravel())
                for k in NEIGHBOURS]  # fmt: skip
        x, y = (np.concatenate(values) for values in zip(*near, strict=True))
        chosen = np.linspace(0, len(x) - 1, MAX_DOTS).astype(int)
        ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
        axes.plot(ends, ends, color=colour("muted"), linewidth=1)
        axes.plot(x[chosen], y[chosen], ".", color=colour(SERIES[EMULATOR]), markersize=3, alpha=0.5)
        axes.set(xlabel="true derivative", ylabel="emulator's derivative")

    def by_offset(axes: Any) -> None:
        offsets = np.arange(-8, 7)
        columns = (points[:, None] + offsets) % num_points
        size, error = (
            np.sqrt((matrix[:, points[:, None], columns] ** 2).mean(axis=(0, 1))) for matrix in (true, emulated - true)
        )
        axes.semilogy(offsets, size, "o-", color=colour(SERIES[TRUTH]), markersize=3.5)
        axes.semilogy(offsets, error, "o-", color=colour(SERIES[EMULATOR]), markersize=3.5)
        axes.set(xlabel="offset of the input from the output (points)", ylabel="root mean square")

    return [
        _described(
            "Jacobian against truth",
            f"Derivatives of a point by its {len(NEIGHBOURS)} nearest inputs; on the grey line the emulator is right.",
            "Derivatives of the emulator against those of the true model.",
            scatter,
        ),
        _described(
            "Jacobian by distance",
            "Size of the true derivatives (blue) and of the emulator's error (green), by the distance of the input.",
            "Size of derivatives and of their errors by the offset of the input.",
            by_offset,
        ),
    ]
