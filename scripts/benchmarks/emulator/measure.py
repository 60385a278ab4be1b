"""Scores and speed of the recipe emulator, measured with its commands."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
from sklearn.metrics import r2_score

from benchmarks.commands import command
from benchmarks.process_tree import private_mb, watched
from benchmarks.runs import Commands, enough, launcher, on_rank, shown
from benchmarks.timing import called, script, timed
from ensemble import folders
from ensemble.arrow import read_columns
from ensemble.recipes.emulator import generator, sea_ice
from ensemble.recipes.emulator.settings import PrepareConfig

EMULATOR = Commands("emulator")
SCORES = ("root_mean_squared_error", "r_squared", "share_of_ceiling", "jacobian")
"""The scores of examine.py that are copied to the results."""
LIMIT_MB = 1000
"""The limit of the private memory of the process of `emulator_memory`."""
NUM_FILES, NUM_TIMES = 4, (5, 25)
"""For `emulator_memory`: the number of NetCDF files, in two formats, and of times in each file, for each measurement."""


@command
def emulator_skill() -> dict[str, Any]:
    """A fit of generated sea ice: scores relative to the noise-free formula, Jacobians, CPU seconds; three CPU minutes."""
    with tempfile.TemporaryDirectory() as scratch:
        command = script("fit", "--recipe", "emulator", f"out={scratch}/fit", "num_times=4", "time_limit=0")
        usage = timed(["env", "OMP_WAIT_POLICY=PASSIVE", *command])
        data = Path(scratch) / "fit/prepared"
        leaderboard = {row["member"]: row["value"] for row in folders.read_json(Path(scratch) / "fit/leaderboard.json")}
        ceiling, linear, logistic, spread = _references(data)
        rows: dict[str, Any] = {}
        for name, error in leaderboard.items():
            r_squared = 1 - error**2 / spread
            rows[name] = {"root_mean_squared_error": error, "r_squared": r_squared, "share_of_ceiling": r_squared / ceiling}
        networks = {
            member.name: _scores(member, data)
            for member in sorted((Path(scratch) / "fit/members").iterdir())
            if (member / "best").is_dir()
        }
        splits = folders.read_manifest(data)["splits"]
    return {
        "fit": usage,
        "rows": {split: facts["rows"] for split, facts in splits.items()},
        "ceiling": ceiling,
        "references": {"linear": linear / ceiling, "logistic": logistic / ceiling},
        "members": rows,
        "networks": networks,
    }


@command
def emulator_lorenz96() -> dict[str, Any]:
    """The presets for Lorenz-96 with seed 0: CPU seconds, one-step error, error of the Jacobian; two CPU minutes."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "prepared"
        EMULATOR.prepare(data, "system=lorenz96")
        for preset in ("lorenz96_bilinear", "lorenz96_mlp"):
            member = Path(scratch) / preset
            usage = EMULATOR.train(preset, data, member)
            results[preset] = {"0": shown(preset, {"cpu_s": usage["cpu_s"], **_scores(member, data)})}
    return results


@command
def emulator_throughput(rounds: int = 8) -> dict[str, Any]:
    """Rows per CPU second of the training loop, relative to a plain loop that indexes tensors; two CPU minutes.

    rounds : blocks of our loop, each between two of the plain loop, for each batch size
    """
    enough(rounds, 3)
    with tempfile.TemporaryDirectory() as folder:
        EMULATOR.prepare(Path(folder) / "prepared", "inputs=14", "num_times=4")
        figures: dict[str, Any] = called(on_rank, "benchmarks.emulator.throughput", rounds, folder, start=launcher(1))
    return figures


@command
def emulator_memory() -> dict[str, Any]:
    """Peak memory of preparing NetCDF files larger than the memory limit; needs 20 GB of disk and ten CPU minutes."""
    results: dict[str, Any] = {"limit_mb": LIMIT_MB}
    limit = ["prlimit", f"--data={LIMIT_MB * 1_000_000}"]
    for times in NUM_TIMES:
        with tempfile.TemporaryDirectory() as scratch:
            gigabytes = called(write_repeated, scratch, NUM_FILES, times)
            words = ("--recipe", "emulator", f"out={scratch}/prepared", f"source=[{scratch}/*.nc]")
            usage = watched([*limit, *script("prepare_data", *words)], private_mb)
            splits = folders.read_manifest(f"{scratch}/prepared")["splits"]
        rows = sum(facts["rows"] for facts in splits.values())
        results[f"{times} times"] = {**usage, "files": NUM_FILES, "gb": gigabytes, "rows": rows}
        print(results, flush=True)
    return results


def write_repeated(out: str, num_files: int, num_times: int) -> float:
    """Write files, alternately netCDF4 and classic, each with one generated time repeated, and return their gigabytes."""
    from netCDF4 import Dataset

    folder = Path(out)
    generated = generator.write(folder, PrepareConfig(num_files=num_files, num_times=1, num_rows=1080, num_columns=1440))
    for number, file in enumerate(generated):
        kind: Any = ("NETCDF4", "NETCDF3_64BIT_OFFSET")[number % 2]
        with Dataset(file) as source, Dataset(folder / f"times_{number}.nc", "w", format=kind) as target:
            source.set_auto_maskandscale(False)
            target.setncatts(vars(source))
            for name, dimension in source.dimensions.items():
                target.createDimension(name, num_times if name == "time" else len(dimension))
            for name, variable in source.variables.items():
                attributes = dict(vars(variable))
                fill = attributes.pop("_FillValue", None)
                repeated = target.createVariable(name, variable.dtype, variable.dimensions, fill_value=fill)
                repeated.set_auto_maskandscale(False)
                repeated.setncatts(attributes)
                repeated[:] = np.broadcast_to(variable[:], repeated.shape)
        file.unlink()
    return round(sum(file.stat().st_size for file in folder.glob("*.nc")) / 1e9, 2)


def _scores(member: Path, data: Path) -> dict[str, Any]:
    scores = EMULATOR.examine(member, data)
    return {name: scores[name] for name in SCORES if name in scores}


def _references(data: Path) -> tuple[float, float, float, float]:
    """R² on test of the formula without noise (the ceiling), of linear and of logistic regression; the targets' variance."""
    (inputs, outputs), (test_inputs, test_outputs) = (
        [column.astype(np.float64) for column in read_columns(data / "pairs" / split, ("inputs", "outputs")).values()]
        for split in ("train", "test")
    )
    target, test_target = outputs[:, 0], test_outputs[:, 0]
    design, test_design = (
        np.c_[(values - inputs.mean(axis=0)) / inputs.std(axis=0), np.ones(len(values))] for values in (inputs, test_inputs)
    )
    linear = np.linalg.lstsq(design, target, rcond=None)[0]

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean squared error of a logistic regression, a network without a hidden layer, and its gradient."""
        values = scipy.special.expit(design @ weights)
        error = values - target
        return float((error**2).mean()), 2 * (error * values * (1 - values)) @ design / len(error)

    logistic = scipy.optimize.minimize(loss, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B").x
    predictions = (sea_ice.concentration(test_inputs), test_design @ linear, scipy.special.expit(test_design @ logistic))
    return *(r2_score(test_target, prediction) for prediction in predictions), float(test_target.var())
