"""A member's predictions for some splits: one prediction file each, or of next_item one ranking file.

python scripts/predict.py member=runs/demo/members/xgboost data=runs/demo/prepared out=runs/demo/predictions
python scripts/predict.py member=runs/demo/bags/xgboost data=runs/demo/prepared out=runs/demo/predictions   # a bag of copies
python scripts/predict.py member=momentum data=runs/demo/prepared out=runs/demo/predictions                 # the baseline
python scripts/predict.py member=co_occurrence data=runs/beauty/prepared out=runs/beauty/rankings           # of next_item
"""

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble import config, errors

if TYPE_CHECKING:
    from ensemble.bag import Predict


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What to predict, with what, and where to."""

    member: str = "???"
    """The folder of a trained member, or of a bag of its copies, or a baseline: momentum, of next_item popularity or
    co_occurrence; of candidates, the name of a ranking file that they were made from."""
    data: str = "???"
    """The folder of prepared data; for a bag the whole, not a fold."""
    out: str = "???"
    """The folder for the prediction files, or of next_item the ranking files, named MEMBER.SPLIT.parquet."""
    splits: tuple[str, ...] = ()
    """The splits to predict; empty for blend, test and forecast; of a bag oof (its rows out of fold), test and forecast; of
    next_item validation and test."""
    name: str = ""
    """The member's name in the ensemble; empty for the name of its folder."""
    threads: int = 0
    """OpenMP threads of tree members; 0 for as many cores as are granted."""
    contributions: bool = False
    """Of a tree member: also MEMBER.SPLIT.contributions.parquet, each feature's part of each prediction, and a picture."""


def main() -> None:
    settings = config.from_command_line(PredictConfig, __doc__)

    from ensemble import bag, predictions, rankings
    from ensemble.data import baseline, item_baselines, manifest

    folder = Path(settings.member)
    about = manifest.read_manifest(settings.data)
    kind = baseline.kind_of(settings.member, about) or bag.kind_of(folder)
    if kind not in STARTS:
        raise errors.UserError(f"{folder / 'summary.json'} names no kind of member: name a folder that a train script wrote")
    if "/" in settings.name:
        raise errors.UserError(f"name={settings.name} is no name of a file: leave the '/' out")
    if settings.contributions and (kind not in ("xgboost", "lightgbm") or bag.copies(folder) != [folder]):
        raise errors.UserError(f"contributions=true is for one tree member, which {folder} is not: leave it out")
    splits = settings.splits or bag.usual_splits(folder, about, kind == "baseline")
    ranks_items = about["recipe"] == item_baselines.RECIPE
    known = [name for name in about["splits"] if name != "train" or not ranks_items]  # of train, no item is kept back
    for split in splits:
        if split not in known and (ranks_items or split != bag.OUT_OF_FOLD):
            raise errors.UserError(f"{settings.data} has no split '{split}' to predict: it has {', '.join(known)}")
    predict, is_main_process = STARTS[kind](folder, settings)
    for split in splits:
        found = predict(settings.data, split)
        if is_main_process:
            name = settings.name or folder.resolve().name
            where = {} if kind == "ranking" else {"folder": os.path.abspath(folder)}
            found["config"] = {**found["config"], "kind": kind, **where}
            path = Path(settings.out) / f"{name}.{split}.parquet"
            if ranks_items:
                rankings.write(path, rankings.Rankings(**found, split=split, member=name))
            else:
                predictions.write(path, predictions.Predictions(**found, split=split, member=name))
            print(f"{path}: {len(found['row_id']):,} rows")
        if settings.contributions:
            from ensemble.trees.prediction import LoadedMember

            print(LoadedMember(folder).write_contributions(settings.data, split, name, settings.out))


# Each loads its own libraries, and no others, and returns predict(data, split) and whether this process is to write.


def start_baseline(folder: Path, settings: PredictConfig) -> "tuple[Predict, bool]":
    from ensemble import bag
    from ensemble.data import baseline

    return bag.with_out_of_fold(partial(baseline.predict, name=settings.member)), True


def start_neural(folder: Path, settings: PredictConfig) -> "tuple[Predict, bool]":
    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble import bag
    from ensemble.neural.member import LoadedMember

    return bag.load(folder, lambda copy: LoadedMember(copy, accelerator, settings.data).predict), accelerator.is_main_process


def start_trees(folder: Path, settings: PredictConfig) -> "tuple[Predict, bool]":
    from ensemble.trees import threads

    threads.settle(settings.threads)

    from ensemble import bag
    from ensemble.trees.prediction import LoadedMember

    return bag.load(folder, lambda copy: LoadedMember(copy).predict), True


STARTS = {"baseline": start_baseline, "ranking": start_baseline, "neural": start_neural}
STARTS |= {"xgboost": start_trees, "lightgbm": start_trees}


if __name__ == "__main__":
    errors.run(main)
