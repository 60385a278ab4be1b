"""The leaderboard: the scores of an ensemble, its members and the baselines, with the weight, training time and size of each
member."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble import folders


def rows(scores: dict[str, Any], folder_of: Mapping[str, Path]) -> list[dict[str, Any]]:
    """A row for the ensemble, each member and each baseline, the best first, with `value`, `low` and `high` of the metric.

    scores : as in scores.json. folder_of : the folders of the members. In a row without a folder, or whose folder has no
    summary.json, `seconds` and `megabytes` are None. Rows whose `value` is None are last.
    """
    metric, board = scores["metric"], []
    for name, intervals in scores["scores"].items():
        summary, size = {}, None
        if name in folder_of and (folder_of[name] / "summary.json").is_file():
            summary = folders.read_json(folder_of[name] / "summary.json")
            size = sum(file.stat().st_size for file in folder_of[name].rglob("*") if file.is_file())
        board.append(
            {
                "member": name,
                "metric": metric,
                "split": scores["split"],
                **intervals[metric],
                "weight": scores["weights"].get(name),
                "seconds": summary.get("seconds"),
                "megabytes": None if size is None else round(size / 1e6, 4),
            }
        )
    sign = -1 if scores["metrics"][metric]["higher_is_better"] else 1
    return sorted(board, key=lambda row: (row["value"] is None, sign * (row["value"] or 0)))
