"""The copies of a tree member, one for each fold of prepared data, one after the other; ensemble/predictor/bag.py asks them.

python scripts/train_trees.py folds=true data=runs/demo/prepared out=runs/demo/bags/xgboost --resume auto
"""

import dataclasses
from typing import Any

from ensemble.data import folds
from ensemble.errors import UserError
from ensemble.trees import rows
from ensemble.trees import train as member
from ensemble.trees.distributed import ALONE, Place
from ensemble.trees.settings import TreesConfig


def train(config: TreesConfig, resume: str = "", where: Place = ALONE) -> dict[str, Any]:
    """Train OUT/0, OUT/1 … as `train.train` does; returns the last summary. With `resume`, what is whole stays as it is."""
    about = rows.description(config.data)
    if not about.get("folds"):
        raise UserError(
            f"{config.data} has no folds: leave folds=true out, or prepare it with folds, if its recipe has such a setting"
        )
    if config.search.trials or config.search.seconds:
        raise UserError("folds=true searches no settings: search them on the whole data, and train the bag with the best")
    for number in range(len(about["folds"])):
        data = folds.folder_of(config.data, about, number)
        copy = dataclasses.replace(config, folds=False, data=str(data), out=f"{config.out}/{number}")
        summary = member.train(copy, "auto" if resume else "", where)
        if summary["status"] == "preempted":
            break
    return summary
