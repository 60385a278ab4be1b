"""A bag of trees: one copy of a tree member for each fold of prepared data; ensemble/predictor/bag.py predicts with them."""

import dataclasses
from pathlib import Path
from typing import Any

from ensemble import folders
from ensemble.data import folds
from ensemble.errors import UserError
from ensemble.signals import StopSignals
from ensemble.trees import rows
from ensemble.trees import train as member
from ensemble.trees.distributed import SINGLE_RANK, RankInfo
from ensemble.trees.settings import TreesConfig


def train(config: TreesConfig, resume: str = "", rank_info: RankInfo = SINGLE_RANK) -> dict[str, Any]:
    """Train OUT/0, OUT/1 … in turn by train.py, until one is preempted; return the last summary.

    With `resume`, finished copies are kept. Raises `UserError` for data without folds, and for copies of an earlier bag.
    """
    manifest = rows.tree_manifest(config.data)
    if not manifest.get("folds"):
        raise UserError(
            f"{config.data} has no folder `folds`, which folds=true needs: leave folds=true out, or prepare reviews with "
            "panel.folds=…"
        )
    if config.search.trials or config.search.seconds:
        raise UserError("folds=true does not search settings: search without it, and train the bag with the best settings")
    num_copies = len(manifest["folds"])
    copies = sorted(path.parent for path in Path(config.out).glob("*/summary.json"))
    earlier = [folder for folder in copies if folder.name.isdecimal() and int(folder.name) >= num_copies]
    for folder in earlier:
        if not config.overwrite or folders.foreign(folder):
            raise UserError(
                f"{folder} is a copy of an earlier bag with more than the {num_copies} folds of {config.data}, and would "
                "predict new rows too: choose another out, or add overwrite=true"
            )
    with StopSignals():  # a signal while a finished copy is written stops the next one
        for number in range(num_copies):
            data = folds.folder_of(config.data, manifest, number)
            copy = dataclasses.replace(config, folds=False, data=str(data), out=f"{config.out}/{number}")
            summary = member.train(copy, "auto" if resume else "", rank_info, bag=config.out)
            if summary["status"] == "preempted":
                return summary
    for folder in earlier if rank_info.rank == 0 else ():  # after the training, since an error would leave half of a bag
        folders.discard(folder)
    return summary
