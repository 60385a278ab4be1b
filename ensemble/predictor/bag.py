"""A bag: copies of one member, each trained on a fold of the prepared data, in the folders 0, 1 … of the bag's folder.

    python scripts/train_trees.py folds=true data=runs/demo/prepared out=runs/demo/bags/xgboost
    python scripts/predict.py member=runs/demo/bags/xgboost data=runs/demo/prepared out=runs/demo/predictions

Any training script can train copy K, with data=DATA/folds/K and out=BAG/K. A block of rows, the split blend of the fold,
follows its training rows. The predictions of all blocks form the prediction file of the split `oof`. Each row is in it once,
predicted by a copy that was trained neither on the row nor on any row whose target overlaps in time with that of the row. So
an ensemble can be fitted without a blend split. The last copy has no block: its train and validation splits are all rows
before test, except for embargoes. On test and in forecasts, a bag predicts the mean of the later half of its copies, since
the first copies are trained on too few rows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders, recipe
from ensemble.data import folds
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import BLEND, FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError
from ensemble.predictions import COLUMNS

Predict = Callable[[str | Path, str], dict[str, Any]]
"""A function of a folder of prepared data and a split; it returns the arguments of `predictions.Predictions` but split and
member."""


def copies(folder: Path) -> list[Path]:
    """The copies of the bag in a folder, in order, or the folder itself if it is no bag; `UserError` if one is missing."""
    numbers = sorted(int(path.parent.name) for path in folder.glob("*/summary.json") if path.parent.name.isdecimal())
    if not numbers:
        return [folder]
    missing = sorted(set(range(numbers[-1])) - set(numbers))
    if missing:
        raise UserError(f"the bag {folder} has no copy {missing[0]}: train it on folds/{missing[0]} of the prepared data")
    return [folder / str(number) for number in numbers]


def kind_of(folder: Path) -> str | None:
    """The kind of the member in a folder, or of all copies of a bag; None if it is unknown or differs between copies."""
    summaries = [folders.read_json(copy / "summary.json") for copy in copies(folder)]
    kinds = {summary.get("kind") if isinstance(summary, dict) else None for summary in summaries}
    return kinds.pop() if len(kinds) == 1 else None


def model_fingerprint(folder: Path) -> str | None:
    """A hash of the model of a member or of a bag, after its checksums were compared; None if there is no model."""
    models: list[Path] = []
    for copy in copies(folder):
        own = folders.weights_of(copy) or [copy]
        if not all((model / folders.NAME).is_file() for model in own):
            return None
        if (copy / folders.NAME).is_file():  # the run of a neural member has a manifest once its training is done
            folders.verify(copy)
        models += own
    return folders.joint_fingerprint(models)


def default_splits(folder: Path, manifest: dict[str, Any], is_baseline: bool) -> list[str]:
    """The splits that an ensemble needs from the member or the bag in `folder`, or from a baseline.

    A baseline is compared with members and bags, so it predicts the splits of both. A recipe may name others, as
    `outputs.PREDICTED_SPLITS`.
    """
    if splits := recipe.of(manifest).get("outputs", "PREDICTED_SPLITS"):
        return [split for split in splits if split in manifest["splits"]]
    if CrossValidation.from_manifest(manifest):
        fitting = [OUT_OF_FOLD]
    elif is_baseline:
        fitting = [BLEND, *([OUT_OF_FOLD] if manifest.get("folds") else [])]
    else:
        fitting = [BLEND if copies(folder) == [folder] else OUT_OF_FOLD]
    return [*fitting, *(split for split in ("test", FORECAST) if split in manifest["splits"])]


def load(folder: Path, load_copy: Callable[[Path], Predict]) -> Predict:
    """The `predict` of the member in a folder, or of the bag there. load_copy : loads the member in a folder.

    A bag predicts oof, each row by the copy that was not trained on it; and test and forecast by the mean of the later
    copies. The argument `data` of the returned function must be the prepared data with the folds that the copies were
    trained on; for a forecast, any data with the same columns. The function raises `UserError` for other data, and for a
    split with rows that copies were trained on.
    """
    members = copies(folder)
    if members == [folder]:
        return load_copy(folder)
    loaded, model = [load_copy(copy) for copy in members], model_fingerprint(folder)
    later = range(len(loaded) // 2, len(loaded))

    def predict(data: str | Path, split: str) -> dict[str, Any]:
        if split == FORECAST:
            columns = _mean([loaded[number](data, split) for number in later])
        elif split == OUT_OF_FOLD:
            columns = out_of_fold(loaded, data)
        elif split == "test":
            folds_of_copies = _folders(loaded, data)
            columns = _mean([loaded[number](folds_of_copies[number], split) for number in later])
            columns["fingerprint"] = folders.read_manifest(data)["fingerprint"]  # the copies gave that of their folds
        else:
            raise UserError(f"copies of the bag {folder} were trained on rows of {split}: predict oof, test or forecast")
        return {**columns, "config": {**columns["config"], "model": model, "copies": len(loaded)}}

    return predict


def with_out_of_fold(predict: Predict) -> Predict:
    """`predict` of a baseline, which is not trained, extended to the split oof: it predicts the blocks of all folds but the
    last, which has none."""

    def predict_any_split(data: str | Path, split: str) -> dict[str, Any]:
        if split != OUT_OF_FOLD:
            return predict(data, split)
        num_folds = len(folders.read_manifest(data).get("folds", ()))
        if not num_folds:
            raise UserError(f"{data} has 0 folds, so a baseline has no out-of-fold rows: leave the split {OUT_OF_FOLD} out")
        return out_of_fold([predict] * num_folds, data)

    return predict_any_split


def out_of_fold(copies: list[Predict], data: str | Path) -> dict[str, Any]:
    """The predictions of the blocks of all folds of `data` but the last, which has none, each by the copy of its fold."""
    with_block = list(zip(copies, _folders(copies, data), strict=True))[:-1]
    parts = [predict(folder, BLEND) for predict, folder in with_block]
    names = [*COLUMNS, *(["weight"] if "weight" in parts[0] else [])]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return {**parts[-1], **columns, "fingerprint": folders.read_manifest(data)["fingerprint"]}


def _folders(copies: list[Predict], data: str | Path) -> list[Path]:
    """The folder of the fold of each copy."""
    manifest = folders.read_manifest(data)
    num_folds = len(manifest.get("folds", ()))
    if num_folds != len(copies):
        raise UserError(
            f"the bag has {len(copies)} copies, but {data} has {num_folds} folds: name the data whose folds they were "
            "trained on"
        )
    return [folds.folder_of(data, manifest, number) for number in range(num_folds)]


def _mean(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of several copies' predictions of the same rows; the reasons are those of the last copy."""
    assert all(np.array_equal(part["row_id"], parts[-1]["row_id"]) for part in parts)
    return {**parts[-1], "prediction": np.mean([part["prediction"] for part in parts], axis=0)}
