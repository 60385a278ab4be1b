"""The ranking files that candidates were made from, each under the name of the member that wrote it.

    python scripts/predict.py member=sasrec data=runs/beauty/candidates out=runs/beauty/predictions

The score that a network gave to each candidate is a column of the data, so the network is a member as it is.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.task import task_of

LISTED = "rankings"
"""The entry of a manifest that names the columns with scores of ranking files."""


def kinds(about: dict[str, Any]) -> dict[str, str]:
    """Name and kind of each ranking file: `ranking` of a member, `baseline` of a baseline."""
    return {name: file["kind"] for name, file in about[LISTED].items()}


def predict(data: str | Path, split: str, name: str) -> dict[str, Any]:
    """The scores of a split: the arguments of `predictions.Predictions`.

    A candidate that a ranking file did not show has the lowest score of those in its group that it did, less 1.
    """
    about = folders.read_manifest(data)
    file = about[LISTED][name]
    task, table = task_of(about), open_table(Path(data) / "rows" / split)
    score, group = table[file["column"]].to_numpy().astype(np.float64), table[task.group].to_numpy()
    return {
        "row_id": table["row_id"].to_numpy(),
        "target": table[task.target].to_numpy().astype(np.float64),
        "prediction": _filled(score, group),
        "output": "score",
        "group": group,
        "cluster": table[task.cluster].to_numpy(),
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        "config": {"kind": file["kind"], "score": file["column"]},
    }


def _filled(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The scores, (num_rows,), with the group's lowest less 1 in place of NaN; the rows of a group stand together."""
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    lowest = np.fmin.reduceat(score, starts)
    lowest[np.isnan(lowest)] = 0.0  # it showed nothing but what the user had taken
    size = np.diff(np.append(starts, len(group)))
    return np.where(np.isnan(score), np.repeat(lowest - 1, size), score)
