"""Members that need no model: baselines, and what stands in a column of the data.

    python scripts/predict.py member=momentum data=runs/demo/prepared out=runs/demo/predictions        # of hot_sellers
    python scripts/predict.py member=popularity data=runs/beauty/prepared out=runs/beauty/rankings     # of next_item
    python scripts/predict.py member=sasrec data=runs/beauty/candidates out=runs/beauty/predictions    # of candidates

Every member must beat momentum, by which products are ranked; those of next_item must beat popularity and co_occurrence
(item_baselines.py). Of candidates each ranking file can be asked by its name: the network's score is a member then.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.data import item_baselines, manifest
from ensemble.data.arrow import open_table
from ensemble.data.task import task_of
from ensemble.errors import UserError

NAME = "momentum"
SCORE = "growth_4w"
RECIPE = "hot_sellers"
LISTED = "rankings"
"""The entry of a manifest that names what stands in its columns."""


def kind_of(name: str, about: dict[str, Any]) -> str | None:
    """Whether a name stands for a baseline, or for a ranking file that data with this manifest list; None if for neither."""
    if name in about.get(LISTED, {}):
        return about[LISTED][name]["kind"]
    return "baseline" if name in (NAME, *item_baselines.NAMES) else None


def predict(data: str | Path, split: str, name: str = NAME) -> dict[str, Any]:
    """The scores of a split: the arguments of `predictions.Predictions`, on data of next_item of `rankings.Rankings`.

    momentum is growth_4w (this month's reviews by last month's). A candidate that a ranking file did not show has the lowest
    score of those in its group that it did, less 1. Raises `UserError` for data or a split that there is not.
    """
    about = manifest.read_manifest(data)
    listed = about.get(LISTED, {})
    if name in item_baselines.NAMES and name not in listed:
        return item_baselines.predict(name, data, split)
    if name == NAME and about["recipe"] != RECIPE:
        raise UserError(
            f"{NAME} ranks products, and {data} was prepared for the recipe {about['recipe']}: leave this baseline out, the "
            "base rate stands beside the members without it"
        )
    if split not in about["splits"]:
        raise UserError(f"{data} has no split '{split}': it has {', '.join(about['splits'])}")
    task, table = task_of(about), open_table(Path(data) / "rows" / split)
    column = listed[name]["column"] if name in listed else SCORE
    score, group = table[column].to_numpy().astype(np.float64), table[task.group].to_numpy()
    return {
        "row_id": table["row_id"].to_numpy(),
        "target": table[task.target].to_numpy().astype(np.float64),
        "prediction": _filled(score, group) if name in listed else score,
        "group": group,
        "cluster": table[task.cluster].to_numpy(),
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        **({"output": "score"} if name in listed else {}),
        "config": {"kind": kind_of(name, about), "score": column},
    }


def _filled(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The scores, (num_rows,), with the group's lowest less 1 in place of NaN; the rows of a group stand together."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    lowest = np.fmin.reduceat(score, starts)
    lowest[np.isnan(lowest)] = 0.0  # it showed nothing but what the user had taken
    size = np.diff(np.append(starts, len(group)))
    return np.where(np.isnan(score), np.repeat(lowest - 1, size), score)
