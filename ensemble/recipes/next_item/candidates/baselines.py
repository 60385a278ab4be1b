"""Baselines: the ranking files from which the candidates were made, under the names of the members that wrote them.

    python scripts/predict.py member=sasrec data=runs/beauty/candidates out=runs/beauty/predictions

The scores of each ranking file are a column of the prepared data, which the entry `rankings` of the manifest names. The
predictions are this column, with a low score for candidates that the file does not have.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.task import task_of


def kinds(manifest: dict[str, Any]) -> dict[str, str]:
    """The kind of each ranking file by name: `baseline` if a baseline of next_item wrote it, else `ranking`."""
    return {name: file["kind"] for name, file in manifest["rankings"].items()}


def predict(data: str | Path, split: str, name: str) -> dict[str, Any]:
    """The scores of a split, as arguments of `predictions.Predictions`.

    A candidate that is not in the ranking file gets the lowest score of its group's candidates in the file, minus 1.
    """
    manifest = folders.read_manifest(data)
    file = manifest["rankings"][name]
    task, table = task_of(manifest), open_table(Path(data) / "rows" / split)
    score, group = table[file["column"]].to_numpy().astype(np.float64), table[task.group].to_numpy()
    return {
        "row_id": table["row_id"].to_numpy(),
        "target": table[task.target].to_numpy().astype(np.float64),
        "prediction": _filled(score, group),
        "output": "score",
        "group": group,
        "cluster": table[task.cluster].to_numpy(),
        "recipe": manifest["recipe"],
        "fingerprint": manifest["fingerprint"],
        "config": {"kind": file["kind"], "score": file["column"]},
    }


def _filled(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Replace NaN in scores (num_rows,) by the lowest score of the group minus 1, or by −1 if the group has no score.

    Rows are sorted by group.
    """
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    lowest = np.fmin.reduceat(score, starts)
    lowest[np.isnan(lowest)] = 0.0  # the ranking file has no candidate of this group
    size = np.diff(np.append(starts, len(group)))
    return np.where(np.isnan(score), np.repeat(lowest - 1, size), score)
