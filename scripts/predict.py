"""A member's predictions for some splits: one prediction file each.

python scripts/predict.py member=runs/demo/members/xgboost data=runs/demo/prepared out=runs/demo/predictions
python scripts/predict.py member=momentum data=runs/demo/prepared out=runs/demo/predictions      # the baseline
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ensemble import config, errors

Predict = Callable[[str, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What to predict, with what, and where to."""

    member: str = "???"
    """The folder of a trained member, or momentum for the baseline."""
    data: str = "???"
    """The folder of prepared data."""
    out: str = "???"
    """The folder for the prediction files, named MEMBER.SPLIT.parquet."""
    splits: tuple[str, ...] = ("blend", "test", "forecast")
    """The splits to predict."""
    name: str = ""
    """The member's name in the ensemble; empty for the name of its folder."""
    threads: int = 0
    """OpenMP threads of tree members; 0 for as many cores as are granted."""


def main() -> None:
    settings = config.from_command_line(PredictConfig, __doc__)

    from ensemble import predictions
    from ensemble.data import baseline, manifest

    folder = Path(settings.member)
    summary = {"kind": "baseline"} if settings.member == baseline.NAME else manifest.read_json(folder / "summary.json")
    kind = summary.get("kind") if isinstance(summary, dict) else None
    if kind not in STARTS:
        raise errors.UserError(f"{folder / 'summary.json'} names no kind of member: name a folder that a train script wrote")
    if "/" in settings.name or not settings.splits:
        raise errors.UserError(
            f"name={settings.name} splits={list(settings.splits)}: a name has no '/', and a split is needed"
        )
    splits = manifest.read_manifest(settings.data)["splits"]
    for split in settings.splits:
        if split not in splits:
            raise errors.UserError(f"{settings.data} has no split '{split}': it has {', '.join(splits)}")
    predict, is_main_process = STARTS[kind](folder, settings)
    for split in settings.splits:
        found = predict(settings.data, split)
        if is_main_process:
            name = settings.name or folder.resolve().name
            found["config"] = {**found["config"], "kind": kind, "folder": os.path.abspath(folder)}
            path = Path(settings.out) / f"{name}.{split}.parquet"
            predictions.write(path, predictions.Predictions(**found, split=split, member=name))
            print(f"{path}: {len(found['row_id']):,} rows")


# Each loads its own libraries, and no others, and returns predict(data, split) and whether this process is to write.


def start_baseline(folder: Path, settings: PredictConfig) -> tuple[Predict, bool]:
    from ensemble.data import baseline

    return baseline.predict, True


def start_neural(folder: Path, settings: PredictConfig) -> tuple[Predict, bool]:
    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble.neural.member import LoadedMember

    return LoadedMember(folder, accelerator, settings.data).predict, accelerator.is_main_process


def start_trees(folder: Path, settings: PredictConfig) -> tuple[Predict, bool]:
    from ensemble.trees import threads

    threads.settle(settings.threads)

    from ensemble.trees.prediction import LoadedMember

    return LoadedMember(folder).predict, True


STARTS = {"baseline": start_baseline, "neural": start_neural, "xgboost": start_trees, "lightgbm": start_trees}


if __name__ == "__main__":
    errors.run(main)
