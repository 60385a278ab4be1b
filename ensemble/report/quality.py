"""The features of the rows that train: missing and different values; and how far the rows to forecast differ from them.

The difference of a feature between two splits is the population stability index, the sum over bins of
(p - q) ln(p / q), where p and q are the shares of the bin in the two splits: tenths of the known values of train, or its
categories, and missing values. By the usual rule it is small up to 0.1 and large from 0.25 on. Of few rows it is above 0 by
chance: by (bins - 1) (1 / n + 1 / m) on average.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import open_table
from ensemble.data.cross_validation import SPLIT
from ensemble.data.inputs import FORECAST
from ensemble.predictor.forecast import value_in_words
from ensemble.report.run import Run
from ensemble.report.words import feature_value

MOST_ROWS = 200_000
"""Of a split that are looked at, evenly spaced."""
NUM_BINS = 10
RARE = 0.01
"""Categories with a smaller share of train are one bin."""
SMALL, LARGE = 0.1, 0.25
NUM_SHOWN = 15


def features(run: Run) -> list[dict[str, Any]]:
    """Of each feature in train: the share of missing values, the number of different ones, the most frequent, the range."""
    found = []
    for feature, values in _columns(run, SPLIT):
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
    for (feature, before), (_, after) in zip(_columns(run, SPLIT), _columns(run, FORECAST), strict=True):
        index, chance = stability_index(before, after, "values" in feature)
        excess = index - chance if index > 2 * chance else 0.0
        rows.append(
            {
                "words": run.feature_words[feature["name"]],
                "index": index,
                "chance": chance,
                "verdict": "large" if excess > LARGE else "moderate" if excess > SMALL else "",
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


def stability_index(before: np.ndarray, after: np.ndarray, is_category: bool) -> tuple[float, float]:
    """The population stability index of two columns with NaN for missing values, and its expectation by chance."""
    known = before[~np.isnan(before)]
    if is_category:
        codes, counts = np.unique(known, return_counts=True)
        begins = codes[counts >= RARE * len(before)]
    else:
        begins = np.unique(np.quantile(known, np.arange(1, NUM_BINS) / NUM_BINS)) if known.size else known

    def counts_of(values: np.ndarray) -> np.ndarray:
        there = values[~np.isnan(values)]
        if is_category:
            position = np.searchsorted(begins, there)
            is_bin = np.isin(there, begins)
            bins = np.where(is_bin, position, len(begins))
        else:
            bins = np.searchsorted(begins, there, side="right")
        return np.append(np.bincount(bins, minlength=len(begins) + 1), len(values) - len(there))

    counts = np.stack([counts_of(before), counts_of(after)]).astype(float)
    counts = counts[:, counts.any(axis=0)]
    shares = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    index = float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())
    return index, (counts.shape[1] - 1) * (1 / len(before) + 1 / len(after))


def _columns(run: Run, split: str) -> list[tuple[dict[str, Any], np.ndarray]]:
    table = open_table(Path(run.folder_of["data"]) / "rows" / split)
    step = max(1, -(-table.num_rows // MOST_ROWS))
    return [(feature, table[feature["name"]].to_numpy()[::step]) for feature in run.about["features"]]


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
