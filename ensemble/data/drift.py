"""How far the features of other rows differ from those that trained: the population stability index.

It is the sum over bins of (p - q) ln(p / q), where p and q are the shares of a bin among the two groups of rows: tenths of
the known values of train, or its categories, and missing values. By the usual rule it is small up to 0.1 and large from 0.25
on. Of few rows it is above 0 by chance: by (bins - 1) (1 / n + 1 / m) on average.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import open_table
from ensemble.data.cross_validation import SPLIT
from ensemble.data.inputs import FORECAST

MOST_ROWS = 200_000
"""Of a split that are looked at, evenly spaced."""
NUM_BINS = 10
RARE = 0.01
"""Categories with a smaller share of train are one bin."""
SMALL, LARGE = 0.1, 0.25
MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bins:
    """The bins of a feature, and how many rows of train are in each."""

    begins: list[float]
    """Where a bin begins, rising, but for the first; or the codes of categories."""
    counts: list[int]
    """(len(begins) + 2,): of the bins and then missing values; of categories, all that are in no bin come before these."""
    is_category: bool

    @classmethod
    def of(cls, values: np.ndarray, is_category: bool) -> "Bins":
        """Those of a column of train with NaN for missing values."""
        known = values[~np.isnan(values)]
        if is_category:
            codes, counts = np.unique(known, return_counts=True)
            begins = codes[counts >= RARE * len(values)]
        else:
            begins = np.unique(np.quantile(known, np.arange(1, NUM_BINS) / NUM_BINS)) if known.size else known
        empty = cls(begins=begins.tolist(), counts=[], is_category=is_category)
        return dataclasses.replace(empty, counts=empty.count(values).tolist())

    def count(self, values: np.ndarray) -> np.ndarray:
        """How many of these values are in each bin."""
        begins, known = np.array(self.begins), values[~np.isnan(values)]
        if self.is_category:
            bins = np.where(np.isin(known, begins), np.searchsorted(begins, known), len(begins))
        else:
            bins = np.searchsorted(begins, known, side="right")
        return np.append(np.bincount(bins, minlength=len(begins) + 1), len(values) - len(known))

    def stability_index(self, values: np.ndarray) -> tuple[float, float]:
        """The index of other values of the feature, and its expectation by chance."""
        counts = np.stack([self.counts, self.count(values)]).astype(float)
        num_before, num_after = counts.sum(axis=1)
        counts = counts[:, counts.any(axis=0)]
        shares = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
        index = float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())
        return index, (counts.shape[1] - 1) * (1 / num_before + 1 / num_after)


def verdict(index: float, chance: float) -> str:
    """large, moderate, or empty for an index that is small or may be by chance."""
    excess = index - chance if index > 2 * chance else 0.0
    return "large" if excess > LARGE else "moderate" if excess > SMALL else ""


def columns(folder: str | Path, manifest: dict[str, Any], split: str) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """The features of prepared data, each with its values in a split, or in some of its rows."""
    table = open_table(Path(folder) / "rows" / split)
    step = max(1, -(-table.num_rows // MOST_ROWS))
    for feature in manifest["features"]:
        yield feature, table[feature["name"]].to_numpy()[::step]


def bins_of_train(folder: str | Path, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each feature, as JSON."""
    return {
        feature["name"]: dataclasses.asdict(Bins.of(values, "values" in feature))
        for feature, values in columns(folder, manifest, SPLIT)
    }


def warning(bins: dict[str, dict[str, Any]], folder: str | Path, manifest: dict[str, Any]) -> str:
    """A sentence on the features of the split forecast that differ much from train, the most first; empty without such.

    bins : what `bins_of_train` returned.
    """
    different = {}
    for feature, values in columns(folder, manifest, FORECAST) if bins else ():
        if "part" in feature or feature["unit"].startswith("days since"):  # later rows have later dates
            continue
        index, chance = Bins(**bins[feature["name"]]).stability_index(values)
        if verdict(index, chance) == "large":
            different[feature["meaning"]] = index
    if not different:
        return ""
    ordered = sorted(different, key=lambda name: -different[name])
    named = ", ".join(f"'{name}' ({different[name]:.2f})" for name in ordered[:MOST_NAMED])
    others = f" and {len(ordered) - MOST_NAMED} others" if len(ordered) > MOST_NAMED else ""
    return (
        f"warning: the new rows are not like those that trained in {named}{others}: the population stability index is above "
        f"{LARGE}, so predictions may be worse than the scores of the ensemble"
    )
