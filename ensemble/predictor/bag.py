"""A bag: copies of one member, each trained on a fold of the prepared data, in the folders 0, 1 … of the bag's own.

    python scripts/train_trees.py folds=true data=runs/demo/prepared out=runs/demo/bags/xgboost
    python scripts/predict.py member=runs/demo/bags/xgboost data=runs/demo/prepared out=runs/demo/predictions

Any script trains copy K, with data=DATA/folds/K and out=BAG/K. What each says of the block that follows its fold makes the
prediction file of the split `oof`: each row once, by a copy that saw neither it nor anything that overlaps its horizon. So
a stack can be fitted without a blend split. The last copy has no block: it learns from all weeks before test. On test and in
forecasts a bag says the mean of the later half of its copies; the first learn from so little that they would do harm.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders, recipe
from ensemble.data import folds
from ensemble.data.cross_validation import CrossValidation
from ensemble.data.inputs import FORECAST
from ensemble.data.out_of_fold import NAME as OUT_OF_FOLD
from ensemble.errors import UserError

BLOCK = "blend"
"""The split of a fold that holds its block."""
COLUMNS = ("row_id", "target", "prediction", "group", "cluster")
Predict = Callable[[str | Path, str], dict[str, Any]]
"""Prepared data and a split, to the arguments of `predictions.Predictions`."""


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
    """What kind of member is in a folder, or in all of a bag's; None if that cannot be told."""
    summaries = [folders.read_json(copy / "summary.json") for copy in copies(folder)]
    kinds = {summary.get("kind") if isinstance(summary, dict) else None for summary in summaries}
    return kinds.pop() if len(kinds) == 1 else None


def model_of(folder: Path) -> str | None:
    """What names the trained model in a folder, or a bag's, after reading all of it; None if it is not there."""
    names = []
    for copy in copies(folder):
        model = copy / "best" if (copy / "best").is_dir() else copy  # a neural member's is its best checkpoint
        if not (model / folders.NAME).is_file():
            return None
        if (copy / folders.NAME).is_file():  # a neural member has one of its own once its training is done
            folders.verify(copy)
        names.append(folders.verify(model)["fingerprint"])
    return names[0] if len(names) == 1 else hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]


def usual_splits(folder: Path, about: dict[str, Any], is_baseline: bool) -> list[str]:
    """The splits that an ensemble needs of a member, of a bag, or of a baseline, which is compared with both.

    A recipe may say otherwise, by `outputs.PREDICTED_SPLITS`.
    """
    if splits := recipe.of(about).get("outputs", "PREDICTED_SPLITS"):
        return list(splits)
    if CrossValidation.of(about):
        fitting = [OUT_OF_FOLD]
    elif is_baseline:
        fitting = [BLOCK, *([OUT_OF_FOLD] if about.get("folds") else [])]
    else:
        fitting = [BLOCK if copies(folder) == [folder] else OUT_OF_FOLD]
    return [*fitting, *(split for split in ("test", FORECAST) if split in about["splits"])]


def load(folder: Path, load_copy: Callable[[Path], Predict]) -> Predict:
    """What asks the member in a folder, or the bag that is there."""
    found = copies(folder)
    return load_copy(folder) if found == [folder] else Bag(folder, [load_copy(copy) for copy in found]).predict


class Bag:
    """The copies in a folder, in memory."""

    def __init__(self, folder: Path, ask: list[Predict]):
        self.folder, self._ask, self._model = folder, ask, model_of(folder)

    def predict(self, data: str | Path, split: str) -> dict[str, Any]:
        """Of oof, each row by the copy that never saw it; of test and the forecast, the mean of the copies that speak.

        `data` are the whole of which the copies learned the folds, or for a forecast any that mean the same. Raises
        `UserError` for others, and for a split whose rows copies were trained on.
        """
        speakers = range(len(self._ask) // 2, len(self._ask))
        if split == FORECAST:
            found = _mean([self._ask[number](data, split) for number in speakers])
        elif split == OUT_OF_FOLD:
            found = out_of_fold(self._ask, data)
        elif split == "test":
            where = _folders(self._ask, data)
            found = {**_mean([self._ask[number](where[number], split) for number in speakers]), **_whole(data)}
        else:
            raise UserError(
                f"copies of the bag {self.folder} were trained on rows of {split}: predict oof, test or forecast"
            )
        return {**found, "config": {**found["config"], "model": self._model, "copies": len(self._ask)}}


def with_out_of_fold(predict: Predict) -> Predict:
    """What has learned nothing, as the baseline, is its own copy on every fold."""

    def of_any_split(data: str | Path, split: str) -> dict[str, Any]:
        if split != OUT_OF_FOLD:
            return predict(data, split)
        return out_of_fold([predict] * max(1, len(folders.read_manifest(data).get("folds", ()))), data)

    return of_any_split


def out_of_fold(ask: list[Predict], data: str | Path) -> dict[str, Any]:
    """The blocks of all folds of `data`, one after the other, each as the copy of its fold predicts it."""
    with_block = list(zip(ask, _folders(ask, data), strict=True))[:-1]
    parts = [predict(folder, BLOCK) for predict, folder in with_block]
    names = [*COLUMNS, *(["weight"] if "weight" in parts[0] else [])]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return {**parts[-1], **columns, **_whole(data)}


def _folders(ask: list[Predict], data: str | Path) -> list[Path]:
    about = folders.read_manifest(data)
    num_folds = len(about.get("folds", ()))
    if num_folds != len(ask):
        raise UserError(
            f"the bag has {len(ask)} copies, but {data} has {num_folds} folds: name the data whose folds they learned from"
        )
    return [folds.folder_of(data, about, number) for number in range(num_folds)]


def _whole(data: str | Path) -> dict[str, Any]:
    """The copies name the folds that they were asked about; what they said is of the whole."""
    return {"fingerprint": folders.read_manifest(data)["fingerprint"]}


def _mean(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of what copies say of the same rows; the reasons are those of the last, which learned from most."""
    assert all(np.array_equal(part["row_id"], parts[-1]["row_id"]) for part in parts)
    return {**parts[-1], "prediction": np.mean([part["prediction"] for part in parts], axis=0)}
