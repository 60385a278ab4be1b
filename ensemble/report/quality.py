"""Missing and distinct values of each feature in the training rows, and the drift from them to the rows to forecast."""

from typing import Any

import numpy as np

from ensemble.data.cross_validation import SPLIT
from ensemble.data.drift import Bins, clusters, columns, severity
from ensemble.data.inputs import FORECAST
from ensemble.report.forecast import feature_text
from ensemble.report.run import Run

NUM_SHOWN = 15
"""Largest number of features in the table of drift."""


def features(run: Run) -> list[dict[str, Any]]:
    """For each feature in train: the share of missing values, the number of distinct values, the mode, and the range, in as
    many `rows` as `drift.columns` reads."""
    facts = []
    for feature, values in columns(run.folder_of["data"], run.manifest, SPLIT):
        known = values[~np.isnan(values)]
        distinct, counts = np.unique(known, return_counts=True)
        is_ordered = known.size and "values" not in feature
        facts.append(
            {
                "rows": len(values),
                "missing": 1 - len(known) / max(1, len(values)),
                "distinct": len(distinct),
                "most_frequent": feature_text(float(distinct[counts.argmax()]), feature) if known.size else "–",
                "share": counts.max() / len(values) if known.size else None,
                "range": [feature_text(float(end), feature) for end in (known.min(), known.max())] if is_ordered else None,
            }
        )
    return facts


def drift(run: Run) -> dict[str, Any] | None:
    """The features whose distributions in train and in the rows to forecast differ most; None without rows to forecast."""
    if FORECAST not in run.manifest["splits"]:
        return None
    rows, unseen = [], run.manifest.get("unseen", {})
    cluster = clusters(run.folder_of["data"], run.manifest, SPLIT)
    for (feature, before), (_, after) in zip(
        columns(run.folder_of["data"], run.manifest, SPLIT),
        columns(run.folder_of["data"], run.manifest, FORECAST),
        strict=True,
    ):
        index, chance = Bins.from_values(before, feature["unit"] == "category", cluster).stability_index(after)
        rows.append(
            {
                "label": run.feature_labels[feature["name"]],
                "index": index,
                "chance": chance,
                "severity": severity(index, chance),
                "missing": [float(np.isnan(values).mean()) for values in (before, after)],
                "typical": [_typical(values, feature) for values in (before, after)],
                "unseen": unseen.get(feature["name"], 0),
            }
        )
    rows.sort(key=lambda row: -row["index"])
    return {
        "rows": rows[:NUM_SHOWN],
        "num_others": max(0, len(rows) - NUM_SHOWN),
        "num_shifted": sum(bool(row["severity"]) for row in rows),
    }


def _typical(values: np.ndarray, feature: dict[str, Any]) -> str:
    """The median, or the most frequent category or boolean, as text."""
    known = values[~np.isnan(values)]
    if not known.size:
        return "–"
    if "values" in feature or feature["unit"] == "0 or 1":
        distinct, counts = np.unique(known, return_counts=True)
        return feature_text(float(distinct[counts.argmax()]), feature)
    return feature_text(float(np.median(known)), feature)
