"""A forecast from new raw data: prepare them like the training data, predict with each member, combine, and rank.

Tree members are loaded in this process, unless it has loaded PyTorch, a network in a process of its own. The recipe must
have a module `new_data.py`.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble import combine, configuration, folders, predictions, recipe
from ensemble.data import drift, prepared
from ensemble.data.inputs import FORECAST
from ensemble.errors import USER_ERROR, Failure, UserError, how_ended
from ensemble.predictor import bag, members
from ensemble.predictor.forecast import write_forecast
from ensemble.predictor.intervals import Intervals
from ensemble.signals import STARTED_BY

LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
"""Environment variables of torchrun and mpirun, by which a process would be a rank of their distributed job."""


def predict(
    folder: str | Path,
    source: tuple[str, ...],
    metadata: tuple[str, ...],
    out: str | Path,
    settings: dict[str, Any],
    overwrite: bool = False,
) -> Path:
    """Forecast with the ensemble in `folder`; returns the path of forecast.csv.

    source, metadata : files of raw data. settings : further settings of the recipe's preparation. Writes the folder `out`
    with forecast.parquet, forecast.csv, the prepared data and the members' prediction files. A member whose folder does not
    exist is left out with a warning, and the other weights increase in proportion; see `Ensemble.subset`. `UserError` if all
    are missing.
    """
    description, fitted_manifest = read_fitted(folder)
    ensemble = needed_members(description, fitted_manifest)
    folder_of = member_folders(folder, description, ensemble.member_names)
    present = [name for name in ensemble.member_names if folder_of[name].is_dir()]
    for name in present or ensemble.member_names:  # the error names a member if all are missing
        check_member(name, Path(folder), description["members"][name])
    ensemble = ensemble.subset(present)
    fitted_recipe = recipe.of(fitted_manifest)
    fitted_recipe.require("new_data", "check", "cannot check new raw data")(fitted_manifest, bool(source), bool(metadata))
    with folders.new_folder(out, overwrite, "forecast") as scratch:
        data = scratch / "prepared"
        raw = {"out": str(data), "source": source, "metadata": metadata, **settings}
        prepare = fitted_recipe.require("new_data", "prepare", "cannot prepare new raw data")
        manifest = prepared.write_new(fitted_manifest, prepare, raw)
        if warning := drift.warning(description.get("bins_of_train", {}), data, manifest):
            print(f"warning: {warning}")
        files = []
        for name in ensemble.member_names:
            _predict_with_member(name, folder_of[name], data, scratch / "predictions")
            files.append(predictions.read(scratch / "predictions" / f"{name}.{FORECAST}.parquet"))
        write_forecast(scratch, data, files, ensemble, intervals_of(description))
        folders.write_manifest(scratch, {"kind": "forecast"})
    return Path(out) / "forecast.csv"


def read_fitted(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """ensemble.json and like.json of an ensemble; `UserError` if it is damaged or its recipe cannot prepare raw data."""
    if not Path(folder, "ensemble.json").exists() and Path(folder, "ensemble/ensemble.json").exists():
        raise UserError(f"{folder} is the folder of a whole fit: give its ensemble, {Path(folder, 'ensemble')}")
    description, manifest = (folders.read_json(Path(folder) / name) for name in ("ensemble.json", "like.json"))
    folders.verify(folder)
    if recipe.of(manifest).module("new_data") is None:
        raise UserError(
            f"{folder} is of the recipe {manifest['recipe']}, which has no new_data.py to prepare new raw data: it can only "
            "predict the splits of prepared data, with scripts/predict.py"
        )
    return description, manifest


def needed_members(description: dict[str, Any], manifest: dict[str, Any]) -> combine.Ensemble:
    """The ensemble of the members that a forecast needs: those with weight.

    A recipe with a forecast table of its own needs all members, since the table may show the prediction of each.
    """
    ensemble = combine.Ensemble.from_dict(description["combiner"])
    return ensemble if recipe.of(manifest).get("outputs", "forecast_table") else ensemble.members_with_weight()


def meaning_of(manifest: dict[str, Any]) -> str:
    """A clause for the class whose probability is the column `prediction` of a forecast; empty unless classes have names.

    manifest : like.json of an ensemble.
    """
    names = manifest.get("target", {}).get("names", ())
    if manifest["task"]["kind"] != "binary" or not names:
        return ""
    return f"prediction is the probability that {manifest['target']['column']} is {names[-1]}"


def intervals_of(description: dict[str, Any]) -> Intervals | None:
    """The prediction intervals in ensemble.json; None if the task is no regression."""
    return Intervals.from_dict(description["intervals"]) if description.get("intervals") else None


def member_folders(folder: str | Path, description: dict[str, Any], names: Sequence[str]) -> dict[str, Path]:
    """The folder of each member, by ensemble.json; `UserError` for a member of which only prediction files are known."""
    for name in names:
        if name not in description["members"]:
            raise UserError(
                f"the predictions of member {name} are not from scripts/predict.py, so it cannot predict new rows: fit "
                "without it"
            )
    return {name: Path(folder, description["members"][name]["folder"]).resolve() for name in names}


def check_member(name: str, ensemble: Path, entry: dict[str, str]) -> None:
    """Raise `UserError` if a member is missing, or is not the model whose predictions the weights were fitted on.

    ensemble : the ensemble's folder. entry : the entry of the member in ensemble.json.
    """
    member = ensemble / entry["folder"]
    model = bag.model_fingerprint(member)
    if model is None:
        fix = "put it back, or predict with it and fit the ensemble again"  # the prediction files have its path
        raise UserError(f"member {name} of the ensemble is not at {member}: {fix}")
    if model != entry["model"]:
        raise UserError(f"member {name} at {member} was trained again after the ensemble was fitted: predict and fit again")


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that this one starts, and that is no rank, also if this one is a rank, or if another job
    has left variables of its launcher."""
    variables = {name: value for name, value in environment.items() if name not in LAUNCHER_VARIABLES}
    return {**variables, STARTED_BY: str(os.getpid())}


def environment() -> dict[str, str]:
    """`without_launcher` for a process that finds the recipes of the user, also if only `sys.path` of this process leads to
    them."""
    variables = without_launcher(os.environ)
    packages = {name.partition(".")[0] for name in recipe.words_of_command_line()[1::2]}
    specs = [importlib.util.find_spec(package) for package in sorted(packages)]
    places = [
        str(Path(place).absolute().parent) for spec in specs if spec for place in spec.submodule_search_locations or ()
    ]
    paths = [*filter(None, [variables.get("PYTHONPATH")]), *dict.fromkeys(places)]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)} if places else variables


def in_utf_8() -> dict[str, Any]:
    """Arguments of `subprocess` for a process with `environment` whose output is read. PYTHONIOENCODING, by which it would
    write in another encoding than it is read in, is replaced."""
    environment_in_utf_8 = {**environment(), "PYTHONIOENCODING": "utf-8"}
    return {"env": environment_in_utf_8, "text": True, "encoding": "utf-8", "errors": "replace"}


def _predict_with_member(name: str, member: Path, data: Path, out: Path) -> None:
    """Write a member's prediction file: trees in this process unless it has loaded PyTorch, others in another one."""
    kind = members.kind_of(member)
    if kind in members.TREES and "torch" not in sys.modules:
        manifest = folders.read_manifest(data)
        list(members.write_splits(members.load(member, data), name, kind, [FORECAST], data, manifest, out, member))
        return
    command = [sys.executable, "-P", "-m", "ensemble.commands.predict", *recipe.words_of_command_line()]
    words = [f"member={member}", f"data={data}", f"out={out}", f"name={name}", f"splits=[{FORECAST}]"]
    command += configuration.literal(words)
    process = subprocess.run(command, capture_output=True, check=False, **in_utf_8())
    if process.returncode not in (0, USER_ERROR):
        print(process.stderr, end="", file=sys.stderr)
        raise Failure(f"the process that predicts by {name} {how_ended(process.returncode)}")
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise UserError(f"member {name} could not predict: {last_line}")
