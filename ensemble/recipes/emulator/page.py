"""The parts of the report that only emulator has: R² relative to that of the formula, Jacobians, and a map or trajectories.

If the formula of the data is known, this module starts examine.py as a process for each member that is a network. It
computes the scores of the member's Jacobian.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import r2_score

from ensemble import configuration, folders
from ensemble.arrow import read_columns
from ensemble.errors import Failure
from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipes.emulator import sea_ice
from ensemble.report.run import Run
from ensemble.report.svg import Picture, colour

NEEDED = ("emulator",)
"""Entries of the manifest that the page requires."""
NUM_POINTS = 500
"""The largest number of points in the scatter plot of predictions."""
LARGEST_DOT = 90.0
"""The area of the dot of the tile with the largest error on both maps, in square points."""
SEA_ICE = "sea_ice"


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    facts = run.manifest["emulator"]
    ceiling = None
    if facts["system"] == SEA_ICE and facts["formula"]:
        inputs = np.stack(list(_rows_of_test(run, facts["inputs"]).values()), axis=1)
        ceiling = r2_score(run.test.target, sea_ice.concentration(inputs))
    r_squared = {name: r2_score(run.test.target, candidate) for name, candidate in run.candidates.items()}
    rows = [{"name": name, "r_squared": r2, "share": r2 / ceiling if ceiling else None} for name, r2 in r_squared.items()]
    jacobian_of = {name: scores["jacobian"] for name, scores in _examined(run).items() if "jacobian" in scores}
    jacobians = [
        {"input": name, "members": {member: errors["inputs"][name] for member, errors in jacobian_of.items()}}
        for name in next(iter(jacobian_of.values()), {"inputs": {}})["inputs"]
    ]
    return {
        "values": {"rows": rows, "ceiling": ceiling, "best": max(r_squared.values())},
        "jacobians": {"rows": jacobians, "members": {name: errors["all"] for name, errors in jacobian_of.items()}},
        "is_sea_ice": facts["system"] == SEA_ICE,
    }


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """Predictions against targets; errors on a map, or trajectories; and derivatives against the true derivatives."""
    examined = _examined(run)
    shown = np.random.default_rng(0).choice(len(run.test.target), min(NUM_POINTS, len(run.test.target)), replace=False)
    ensemble = {ENSEMBLE: (run.test.target[shown], run.candidates[ENSEMBLE][shown])}
    labels = (f"{run.task.target}, test split", "prediction of the ensemble")
    caption = f"{len(shown)} rows of the test split, drawn at random. On the grey line prediction and target are equal."
    paint = functools.partial(_paint_scatter, ensemble, series, 2.5, labels)
    drawn: list[Picture] = [("Predicted and true", caption, "Predictions of the ensemble against the targets.", paint)]
    if run.manifest["emulator"]["system"] == SEA_ICE:
        caption = (
            "Tiles of the test split around the pole. The area of a dot is the root mean squared error of the ensemble."
        )
        tiles = _tiles(run)
        for sign, name in ((1, "Arctic"), (-1, "Antarctic")):
            if (sign * tiles["latitude"] > 0).any():
                paint = functools.partial(_paint_map, tiles, sign, series[ENSEMBLE]["color"])
                drawn.append((f"Errors in the {name}", caption, f"Errors of the ensemble on a map of the {name}.", paint))
    orbits = {name: scores["orbit"] for name, scores in examined.items() if "orbit" in scores}
    if orbits:
        caption = "Trajectories from one test state, which is the dot: the true model in black, and the networks in colour."
        paint = functools.partial(_paint_orbits, orbits, series)
        drawn.append(("Phase plot", caption, "Trajectories of the true model and of the networks.", paint))
    samples = {name: scores["sample"] for name, scores in examined.items() if "sample" in scores}
    if any(sample["true"] for sample in samples.values()):  # of a single row, no input has a deviation
        caption = "Large entries of the Jacobian, drawn at random from the test split. On the grey line they are equal."
        slopes = {name: (sample["true"], sample["network"]) for name, sample in samples.items()}
        labels = ("true derivative × deviation of the input", "network’s derivative × deviation")
        paint = functools.partial(_paint_scatter, slopes, series, 2.8, labels)
        drawn.append(("Jacobian and truth", caption, "Derivatives of the networks against the true ones.", paint))
    return drawn


def _paint_scatter(
    points: dict[str, tuple[Any, Any]], series: dict[str, Any], size: float, labels: tuple[str, str], axes: Any
) -> None:
    """The true and the predicted values of each series, and the diagonal."""
    values = np.concatenate([np.concatenate(pair) for pair in points.values()])
    ends = [values.min(), values.max()]
    axes.plot(ends, ends, color=colour("muted"), linewidth=1)
    for name, (true, predicted) in points.items():
        axes.plot(true, predicted, "o", markersize=size, alpha=0.55, markeredgewidth=0, color=series[name]["color"])
    axes.set(xlabel=labels[0], ylabel=labels[1])


def _paint_orbits(orbits: dict[str, dict[str, Any]], series: dict[str, Any], axes: Any) -> None:
    """Trajectories of two points of a ring: of the true model, and of each network."""
    true = np.array(next(iter(orbits.values()))["true"])
    axes.plot(*true.T, color=colour("ink"), linewidth=1.2)
    axes.plot(*true[0], "o", color=colour("ink"), markersize=5)
    for name, orbit in orbits.items():
        axes.plot(*np.array(orbit["network"]).T, **{**series[name], "linewidth": 1.1})
    low, high = true.min(axis=0), true.max(axis=0)  # a trajectory that diverges leaves the axes
    margin = 0.2 * (high - low)
    xlim, ylim = zip(low - margin, high + margin, strict=True)
    axes.set(xlim=xlim, ylim=ylim, xlabel="first point of the ring", ylabel="second point")


def _examined(run: Run) -> dict[str, Any]:
    """The content of scores.json of each member that is a single network, by the name of the member.

    Nothing for data without a known formula, whose networks have no scores that are shown here.
    """
    data, networks = run.folder_of["data"].resolve(), run.networks if run.manifest["emulator"]["formula"] else {}
    return {name: _scores(folder.resolve(), data, run.test.split) for name, folder in networks.items()}


@functools.cache  # `parts` and `pictures` both need the scores
def _scores(member: Path, data: Path, split: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "scores"
        words = configuration.literal([f"member={member}", f"data={data}", f"split={split}", f"out={out}"])
        module = [sys.executable, "-P", "-m", "ensemble.recipes.emulator.examine"]
        done = subprocess.run([*module, *words], capture_output=True, text=True)
        if done.returncode:
            last_line = done.stderr.strip().rpartition("\n")[2]
            raise Failure(f"the scores of {member} could not be computed: {last_line}")
        return folders.read_json(out / "scores.json")


def _rows_of_test(run: Run, names: list[str]) -> dict[str, np.ndarray]:
    """Columns of the table of the test split, with rows in the order of the prediction file."""
    table = read_columns(run.folder_of["data"] / "rows" / run.test.split, ["row_id", *names])
    order = np.argsort(table["row_id"])
    rows = order[np.searchsorted(table["row_id"], run.test.row_id, sorter=order)]
    return {name: table[name][rows] for name in names}


def _tiles(run: Run) -> dict[str, np.ndarray]:
    """The mean position of each tile of the test split, and the root mean squared error of the ensemble on it."""
    points = _rows_of_test(run, ["tile", "latitude", "longitude"])
    _, number = np.unique(points["tile"], return_inverse=True)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(number, values) / np.bincount(number)

    angles = np.radians(points["longitude"])  # 359° and 1° have the mean 0°
    longitude = np.degrees(np.arctan2(mean(np.sin(angles)), mean(np.cos(angles))))
    error = np.sqrt(mean((run.candidates[ENSEMBLE] - run.test.target) ** 2))
    return {"latitude": mean(points["latitude"]), "longitude": longitude, "error": error}


def _paint_map(tiles: dict[str, np.ndarray], sign: int, color: str, axes: Any) -> None:
    """The tiles of one hemisphere around the pole, with circles of latitude."""
    is_shown = sign * tiles["latitude"] > 0
    distance, angle = 90 - np.abs(tiles["latitude"][is_shown]), np.radians(tiles["longitude"][is_shown])
    around = np.linspace(0, 2 * np.pi, 73)
    for latitude in (80, 60, 40):
        axes.plot((90 - latitude) * np.cos(around), (90 - latitude) * np.sin(around), color=colour("line"), linewidth=0.8)
        axes.text(
            0, 90 - latitude, f"{latitude}° {'N' if sign > 0 else 'S'}", color=colour("muted"), fontsize=9, ha="center"
        )
    sizes = LARGEST_DOT * tiles["error"][is_shown] / tiles["error"].max()
    axes.scatter(distance * np.cos(angle), distance * np.sin(angle), s=sizes, color=color, alpha=0.6, linewidths=0)
    ends = np.array([-1, 1]) * max(52, 2 + distance.max())
    axes.set(aspect="equal", xlim=ends, ylim=ends, xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
