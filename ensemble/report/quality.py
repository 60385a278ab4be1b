"""The features of the rows that train: missing and different values; and how far the rows to forecast differ from them."""

from typing import Any

import numpy as np

from ensemble.data.cross_validation import SPLIT
from ensemble.data.drift import Bins, columns, verdict
from ensemble.data.inputs import FORECAST
from ensemble.predictor.forecast import value_in_words
from ensemble.report.run import Run
from ensemble.report.words import feature_value

NUM_SHOWN = 15


def features(run: Run) -> list[dict[str, Any]]:
    """Of each feature in train: the share of missing values, the number of different ones, the most frequent, the range."""
    found = []
    for feature, values in columns(run.folder_of["data"], run.about, SPLIT):
        known = values[~np.isnan(values)]
        different, counts = np.unique(known, return_counts=True)
        is_ordered = known.size and "values" not in feature
        found.append(
            {
                "name": feature["name"],
                "missing": 1 - len(known) / max(1, len(values)),
                "different": len(different),
                "most_frequent": _words(different[counts.argmax()], feature) if known.size else "–",
                "share": counts.max() / len(values) if known.size else None,
                "range": [_words(end, feature) for end in (known.min(), known.max())] if is_ordered else None,
            }
        )
    return found


def drift(run: Run) -> dict[str, Any] | None:
    """The features that differ most between train and the rows to forecast, the largest difference first; None without."""
    if FORECAST not in run.about["splits"]:
        return None
    rows, unseen = [], run.about.get("unseen", {})
    for (feature, before), (_, after) in zip(
        columns(run.folder_of["data"], run.about, SPLIT), columns(run.folder_of["data"], run.about, FORECAST), strict=True
    ):
        index, chance = Bins.of(before, "values" in feature).stability_index(after)
        rows.append(
            {
                "words": run.feature_words[feature["name"]],
                "index": index,
                "chance": chance,
                "verdict": verdict(index, chance),
                "missing": [float(np.isnan(values).mean()) for values in (before, after)],
                "typical": [_typical(values, feature) for values in (before, after)],
                "unseen": unseen.get(feature["name"], 0),
            }
        )
    rows.sort(key=lambda row: -row["index"])
    return {
        "rows": rows[:NUM_SHOWN],
        "num_others": max(0, len(rows) - NUM_SHOWN),
        "num_shifted": sum(bool(row["verdict"]) for row in rows),
    }


def _typical(values: np.ndarray, feature: dict[str, Any]) -> str:
    """The median, or the most frequent category."""
    known = values[~np.isnan(values)]
    if not known.size:
        return "–"
    if "values" in feature or feature["unit"] == "0 or 1":
        different, counts = np.unique(known, return_counts=True)
        return _words(different[counts.argmax()], feature)
    return _words(np.median(known), feature)


def _words(value: float, feature: dict[str, Any]) -> str:
    words = value_in_words(float(value), feature)
    return feature_value(float(value), feature["unit"], []) if words is None else words
