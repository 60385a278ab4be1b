"""Skill and speed of the recipe emulator, by its commands."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from benchmarks.runs import enough, launcher
from benchmarks.timing import ROOT, SCRIPTS, timed
from ensemble import folders
from ensemble.arrow import Column, open_table
from ensemble.recipes.emulator import sea_ice

ONE_THREAD = ("env", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE")
EXAMINED = ("root_mean_squared_error", "r_squared", "share_of_ceiling", "jacobian")


def emulator_skill(num_times: int) -> dict[str, Any]:
    """CPU and wall seconds of the whole fit, the test scores of all members, and the Jacobians of networks."""
    with tempfile.TemporaryDirectory() as scratch:
        words = ["--recipe", "emulator", f"out={scratch}/fit", f"num_times={num_times}", "time_limit=0"]
        used = timed(["env", "OMP_WAIT_POLICY=PASSIVE", sys.executable, SCRIPTS / "fit.py", *words])
        data = Path(scratch) / "fit/prepared"
        board = {row["member"]: row["value"] for row in folders.read_json(Path(scratch) / "fit/leaderboard.json")}
        ceiling, linear, logistic, spread = _references(data)
        rows: dict[str, Any] = {}
        for name, error in board.items():
            r_squared = 1 - error**2 / spread
            rows[name] = {"root_mean_squared_error": error, "r_squared": r_squared, "share_of_ceiling": r_squared / ceiling}
        networks = {
            member.name: _examined(member, data, Path(scratch))
            for member in sorted((Path(scratch) / "fit/members").iterdir())
            if (member / "best").is_dir()
        }
        splits = folders.read_manifest(data)["splits"]
    members = [error for name, error in board.items() if name != "ensemble"]
    return {
        "fit": used,
        "rows": {split: of["rows"] for split, of in splits.items()},
        "ceiling": ceiling,
        "references": {"linear": linear / ceiling, "logistic": logistic / ceiling},
        "members": rows,
        "ensemble_by_best_member": board["ensemble"] / min(members),
        "networks": networks,
    }


def emulator_lorenz96(seeds: int) -> dict[str, Any]:
    """By preset and seed: CPU seconds of the training command, one-step error, and error of the Jacobian."""
    found: dict[str, Any] = {"lorenz96_bilinear": {}, "lorenz96_mlp": {}}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        timed(
            [
                *ONE_THREAD,
                sys.executable,
                SCRIPTS / "prepare_data.py",
                "--recipe",
                "emulator",
                "system=lorenz96",
                f"out={data}",
            ]
        )
        for preset, of_preset in found.items():
            file = ROOT / "ensemble/recipes/emulator/presets" / f"{preset}.yaml"
            for seed in range(seeds):
                member = Path(scratch) / f"{preset}_{seed}"
                words = ["--recipe", "emulator", "--config", str(file), f"data={data}", f"out={member}", f"seed={seed}"]
                used = timed([*ONE_THREAD, sys.executable, SCRIPTS / "train.py", *words])
                of_preset[str(seed)] = {"cpu_s": used["cpu_s"], **_examined(member, data, Path(scratch))}
                print(f"{preset} {seed}: {of_preset[str(seed)]}", flush=True)
    return found


def emulator_throughput(rounds: int) -> dict[str, Any]:
    """See throughput.py."""
    enough(rounds, 3)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--recipe", "emulator", f"out={folder}/prepared", "inputs=14", "num_times=4"]
        timed([sys.executable, SCRIPTS / "prepare_data.py", *words])
        timed([*launcher(1), SCRIPTS / "benchmark.py", "emulator-throughput-rank", f"rounds={rounds}", f"out={folder}"])
        found: dict[str, Any] = folders.read_json(Path(folder) / "found.json")
    return found


def _examined(member: Path, data: Path, scratch: Path) -> dict[str, Any]:
    out = scratch / f"{member.name}_scores"
    examine = [sys.executable, "-m", "ensemble.recipes.emulator.examine"]
    timed([*ONE_THREAD, *examine, f"member={member}", f"data={data}", f"out={out}"])
    scores = folders.read_json(out / "scores.json")
    return {name: scores[name] for name in EXAMINED if name in scores}


def _references(data: Path) -> tuple[float, float, float, float]:
    """R² on test of the formula without noise, of a linear and of a logistic regression; and the variance of the targets."""
    columns = {}
    for split in ("train", "test"):
        table = open_table(data / "pairs" / split)
        columns[split] = [Column(table, name).all().astype(np.float64) for name in ("inputs", "outputs")]
    (inputs, outputs), (asked, target) = columns["train"], columns["test"]
    target = target[:, 0]

    def design(values: np.ndarray) -> np.ndarray:
        return np.c_[(values - inputs.mean(axis=0)) / inputs.std(axis=0), np.ones(len(values))]

    def score(prediction: np.ndarray) -> float:
        return float(1 - ((prediction - target) ** 2).mean() / target.var())

    fitted, asked_design = design(inputs), design(asked)
    linear = np.linalg.lstsq(fitted, outputs[:, 0], rcond=None)[0]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean squared error of a logistic regression, which is the network of the source as it was trained."""
        values = 1 / (1 + np.exp(-fitted @ weights))
        error = values - outputs[:, 0]
        return float((error**2).mean()), 2 * (error * values * (1 - values)) @ fitted / len(error)

    logistic = scipy.optimize.minimize(loss, np.zeros(fitted.shape[1]), jac=True, method="L-BFGS-B").x
    return (
        score(sea_ice.concentration(asked)),
        score(asked_design @ linear),
        score(1 / (1 + np.exp(-asked_design @ logistic))),
        float(target.var()),
    )
