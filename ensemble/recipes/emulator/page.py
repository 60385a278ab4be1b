"""What only the report of emulator has: the share of the noise-free ceiling, Jacobians, and a map or an orbit.

Each network among the members is examined by examine.py in a process of its own, since PyTorch and the tree libraries must
not share one.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import Column, open_table
from ensemble.errors import Failure
from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipes.emulator import sea_ice
from ensemble.report.commands import settings_words
from ensemble.report.run import Run
from ensemble.report.svg import Picture, colour

NEEDED = ("emulator",)
"""Entries of the manifest that the page shows."""
NUM_POINTS = 500
"""Of a scatter plot."""
LARGEST_DOT = 90.0
"""Area of a tile's dot on the map, in square points."""
SEA_ICE = "sea_ice"


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    facts = run.manifest["emulator"]
    examined = _examined(run)
    target = run.test.target
    rows: list[dict[str, Any]] = []
    ceiling = _r_squared(target, _clean(run)) if facts["system"] == SEA_ICE and facts["formula"] else None
    for name, candidate in run.candidates.items():
        r_squared = _r_squared(target, candidate)
        rows.append({"name": name, "r_squared": r_squared, "share": r_squared / ceiling if ceiling else None})
    known = {name: of["jacobian"] for name, of in examined.items() if "jacobian" in of}
    jacobians = [
        {"input": name, "members": {member: of["inputs"][name] for member, of in known.items()}}
        for name in next(iter(known.values()), {"inputs": {}})["inputs"]
    ]
    return {
        "values": {"rows": rows, "ceiling": ceiling, "best": max(row["r_squared"] for row in rows)},
        "jacobians": {"rows": jacobians, "members": {name: of["all"] for name, of in known.items()}},
        "is_sea_ice": facts["system"] == SEA_ICE,
    }


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """Predictions beside the truth; errors on a map or an orbit; and derivatives beside the true ones."""
    examined = _examined(run)
    random = np.random.default_rng(0)
    shown = random.choice(len(run.test.target), min(NUM_POINTS, len(run.test.target)), replace=False)

    def scatter(axes: Any) -> None:
        target, found = run.test.target[shown], run.candidates[ENSEMBLE][shown]
        ends = [min(target.min(), found.min()), max(target.max(), found.max())]
        axes.plot(ends, ends, color=colour("muted"), linewidth=1)
        axes.plot(target, found, "o", markersize=2.5, alpha=0.5, markeredgewidth=0, color=series[ENSEMBLE]["color"])
        axes.set(xlabel=f"{run.task.target}, test split", ylabel="prediction of the ensemble")

    def slopes(axes: Any) -> None:
        ends = np.array([[min(of["sample"]["true"]), max(of["sample"]["true"])] for of in known.values()])
        line = [ends.min(), ends.max()]
        axes.plot(line, line, color=colour("muted"), linewidth=1)
        for name, of in known.items():
            style = {"color": series[name]["color"], "markersize": 2.8, "alpha": 0.6, "markeredgewidth": 0}
            axes.plot(of["sample"]["true"], of["sample"]["network"], "o", **style)
        axes.set(xlabel="true derivative × deviation of the input", ylabel="derivative of the network")

    def orbits(axes: Any) -> None:
        true = np.array(next(iter(with_orbit.values()))["orbit"]["true"])
        axes.plot(*true.T, color=colour("ink"), linewidth=1.2)
        axes.plot(*true[0], "o", color=colour("ink"), markersize=5)
        for name, of in with_orbit.items():
            axes.plot(*np.array(of["orbit"]["network"]).T, **{**series[name], "linewidth": 1.1})
        low, high = true.min(axis=0), true.max(axis=0)  # a trajectory that diverges leaves the axes
        margin = 0.2 * (high - low)
        limits = dict(zip(("xlim", "ylim"), zip(low - margin, high + margin, strict=True), strict=True))
        axes.set(**limits, xlabel="first point of the ring", ylabel="second point")

    found: list[Picture] = [
        (
            "Predicted and true",
            f"{len(shown)} rows of the test split, drawn at random. On the grey line the prediction is right.",
            "Predictions of the ensemble against the targets.",
            scatter,
        )
    ]
    if run.manifest["emulator"]["system"] == SEA_ICE:
        caption = (
            "Tiles of the test split around the pole. The area of a dot is the root mean squared error of the ensemble."
        )
        hemispheres = _tiles(run)
        for sign, name in ((1, "Arctic"), (-1, "Antarctic")):
            if any(sign * tile["latitude"] > 0 for tile in hemispheres):
                paint = functools.partial(_paint_map, hemispheres, sign, series[ENSEMBLE]["color"])
                found.append((f"Errors in the {name}", caption, f"Errors of the ensemble on a map of the {name}.", paint))
    with_orbit = {name: of for name, of in examined.items() if "orbit" in of}
    if with_orbit:
        caption = (
            "One trajectory from the same test state, which starts at the dot: the true model in black, and the networks."
        )
        found.append(("Phase plot", caption, "Trajectories of the true model and of the networks.", orbits))
    known = {name: of for name, of in examined.items() if "sample" in of}
    if known:
        caption = (
            "Larger entries of the Jacobian, drawn at random from the test split. On the grey line a derivative is right."
        )
        found.append(("Jacobian and truth", caption, "Derivatives of the networks against the true ones.", slopes))
    return found


def prepare_words(about: dict[str, Any]) -> list[str]:
    """The words of scripts/prepare_data.py that prepared the data, run beside the raw files."""
    files = [file["name"] for file in about["sources"]]
    return [*([f"source=[{','.join(files)}]"] if files else []), *settings_words(about["config"])]


def _examined(run: Run) -> dict[str, Any]:
    """The scores of each member that is one network, by name."""
    folder_of = {member.name: member.folder for member in run.members if member.summary.get("kind") == "neural"}
    data = run.folder_of["data"]
    return {
        name: _scores(of.resolve(), data.resolve(), run.test.split)
        for name, of in folder_of.items()
        if of is not None and (of / "best").is_dir()
    }


@functools.cache  # the page asks twice
def _scores(member: Path, data: Path, split: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "scores"
        module = [sys.executable, "-m", "ensemble.recipes.emulator.examine"]
        done = subprocess.run(
            [*module, f"member={member}", f"data={data}", f"split={split}", f"out={out}"], capture_output=True, text=True
        )
        if done.returncode:
            raise Failure(f"the scores of {member} could not be computed: {done.stderr.strip().splitlines()[-1:]}")
        found: dict[str, Any] = folders.read_json(out / "scores.json")
    return found


def _rows_of_test(run: Run, names: list[str]) -> dict[str, np.ndarray]:
    """Columns of the test split's table, in the order of the predictions."""
    table = open_table(run.folder_of["data"] / "rows" / run.test.split)
    row_id = Column(table, "row_id").all()
    order = np.argsort(row_id)
    rows = order[np.searchsorted(row_id, run.test.row_id, sorter=order)]
    return {name: Column(table, name).take(rows) for name in names}


def _clean(run: Run) -> np.ndarray:
    """The targets without noise."""
    names = run.manifest["emulator"]["inputs"]
    columns = _rows_of_test(run, names)
    return sea_ice.concentration(np.stack([columns[name] for name in names], axis=1))


def _r_squared(target: np.ndarray, prediction: np.ndarray) -> float:
    return float(1 - ((prediction - target) ** 2).sum() / ((target - target.mean()) ** 2).sum())


def _tiles(run: Run) -> list[dict[str, float]]:
    """Place and root mean squared error of the ensemble for each tile of the test split."""
    columns = _rows_of_test(run, ["tile", "latitude", "longitude"])
    squared = (run.candidates[ENSEMBLE] - run.test.target) ** 2
    found = []
    for tile in np.unique(columns["tile"]):
        here = columns["tile"] == tile
        place = {name: float(columns[name][here].mean()) for name in ("latitude", "longitude")}
        found.append({**place, "error": float(np.sqrt(squared[here].mean()))})
    return found


def _paint_map(tiles: list[dict[str, float]], sign: int, of_ensemble: str, axes: Any) -> None:
    """Tiles of one hemisphere, the pole in the middle, with circles of latitude."""
    largest = max(tile["error"] for tile in tiles)
    here = [tile for tile in tiles if sign * tile["latitude"] > 0]
    distance = np.array([90 - abs(tile["latitude"]) for tile in here])
    angle = np.radians([tile["longitude"] for tile in here])
    around = np.linspace(0, 2 * np.pi, 73)
    for latitude in (80, 60, 40):
        axes.plot((90 - latitude) * np.cos(around), (90 - latitude) * np.sin(around), color=colour("line"), linewidth=0.8)
        axes.text(
            0, 90 - latitude, f"{latitude}° {'N' if sign > 0 else 'S'}", color=colour("muted"), fontsize=9, ha="center"
        )
    sizes = [LARGEST_DOT * tile["error"] / largest for tile in here]
    axes.scatter(distance * np.cos(angle), distance * np.sin(angle), s=sizes, color=of_ensemble, alpha=0.6, linewidths=0)
    axes.set(aspect="equal", xlim=(-52, 52), ylim=(-52, 52), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
