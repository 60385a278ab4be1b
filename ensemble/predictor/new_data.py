"""A forecast from new raw data: prepare them like those the members learned from, ask each member, combine, rank.

Tree members are loaded here, a network in a process of its own. Of the recipe this needs `new_data.py`.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ensemble import combine, folders, predictions, recipe
from ensemble.data import drift
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.predictor import bag, members
from ensemble.predictor.forecast import write_forecast
from ensemble.predictor.intervals import Intervals


def predict(
    folder: str | Path,
    source: tuple[str, ...],
    metadata: tuple[str, ...],
    out: str | Path,
    settings: dict[str, Any],
    overwrite: bool = False,
) -> Path:
    """Forecast with the ensemble in `folder`; returns the path of forecast.csv.

    source, metadata : files of raw data. settings : further ones of the recipe's preparation. Writes `out` with
    forecast.parquet, forecast.csv, the prepared data and the members' prediction files.
    """
    description, like = read_fitted(folder)
    ensemble = combine.Ensemble.from_dict(description["combiner"])
    where = member_folders(folder, description, ensemble.member_names)
    present = [name for name in ensemble.member_names if where[name].is_dir()]
    for name in present or ensemble.member_names:
        check_member(name, Path(folder), description["members"][name])
    ensemble = ensemble.subset(present)
    preparation = of_recipe(like)
    preparation.check(like, bool(source), bool(metadata))
    with folders.new_folder(out, overwrite, "forecast") as scratch:
        data = scratch / "prepared"
        about = preparation.prepare(like, {"out": str(data), "source": source, "metadata": metadata, **settings})
        if warning := drift.warning(description.get("bins_of_train", {}), data, about):
            print(warning)
        files = []
        for name in ensemble.member_names:
            _ask_member(name, where[name], data, scratch / "predictions")
            files.append(predictions.read(scratch / "predictions" / f"{name}.{FORECAST}.parquet"))
        template, columns = predictions.align(files)
        write_forecast(scratch, data, template, columns, ensemble, files, intervals_of(description))
        folders.write_manifest(scratch, {"kind": "forecast"})
    return Path(out) / "forecast.csv"


def read_fitted(folder: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """ensemble.json and like.json of an ensemble that forecasts from raw data; `UserError` if it is no sound one."""
    description, like = (folders.read_json(Path(folder) / name) for name in ("ensemble.json", "like.json"))
    folders.verify(folder)
    if recipe.of(like).module("new_data") is None:
        raise UserError(
            f"{folder} cannot prepare new raw data, as its recipe {like['recipe']} has no new_data.py: give the new rows, "
            "without a target, to scripts/prepare_data.py, and fit again"
        )
    return description, like


def meaning(folder: str | Path) -> str:
    """What the column `prediction` of a forecast is, where that is a probability of a class with a name; else empty."""
    like = folders.read_json(Path(folder) / "like.json")
    names = like.get("target", {}).get("names", ())
    if like["task"]["kind"] != "binary" or not names:
        return ""
    return f"; prediction is the probability that {like['target']['column']} is {names[-1]}"


def intervals_of(description: dict[str, Any]) -> Intervals | None:
    """The prediction intervals in ensemble.json, if it is of a regression."""
    found = description.get("intervals")
    return Intervals.from_dict(found) if found else None


def of_recipe(like: dict[str, Any]) -> ModuleType:
    """The module that prepares new raw data like those of the manifest `like`, which `read_fitted` returned."""
    module = recipe.of(like).module("new_data")
    assert module is not None
    return module


def member_folders(folder: str | Path, description: dict[str, Any], names: Sequence[str]) -> dict[str, Path]:
    """Where each member is, by the ensemble's description; `UserError` for one that only gave prediction files."""
    for name in names:
        if name not in description["members"]:
            raise UserError(f"member {name} was not predicted by scripts/predict.py, so it cannot be asked: fit without it")
    return {name: Path(folder, description["members"][name]["folder"]).resolve() for name in names}


def check_member(name: str, ensemble: Path, about: dict[str, str]) -> None:
    """The member must be where it was, and be the one whose predictions the weights were fitted on."""
    member = ensemble / about["folder"]
    model = bag.model_of(member)
    if model is None:
        raise UserError(f"member {name} of the ensemble is not at {member}: put it back, or fit the ensemble again")
    if model != about["model"]:
        raise UserError(f"member {name} at {member} was trained anew after the ensemble was fitted: predict and fit again")


def _ask_member(name: str, member: Path, data: Path, out: Path) -> None:
    """Write a member's predictions. Trees predict in this process, which may not have PyTorch; a network in its own."""
    kind = members.kind_of(member)
    if members.KINDS[kind].is_tree and "torch" not in sys.modules:
        about = folders.read_manifest(data)
        list(members.write_splits(members.load(member, data), name, kind, [FORECAST], data, about, out, member))
        return
    command = [sys.executable, "-P", "-m", "ensemble.commands.predict", *recipe.words_of_command_line()]
    words = [f"member={member}", f"data={data}", f"out={out}", f"name={name}", f"splits=[{FORECAST}]"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise UserError(f"member {name} could not predict: {last}")
