"""Drift: the difference between the distributions of a feature in new rows and in train, as population stability index.

The index is the sum over bins of (p - q) ln(p / q), where p and q are the shares of a bin in the two sets of rows, after 0.5
is added to each count, so that no share is 0. Bins that are empty in both sets are left out. The nine deciles of the known
values of train divide the values of a numeric feature into bins. A value that equals several deciles has a bin of its own,
as has a decile that is the largest value. A categorical feature has one bin for each frequent category, and one for all
others. Missing values are one more bin. By the usual rule the index is small up to 0.1 and large above 0.25. If two sets of
n and m rows have equal distributions, it is (bins - 1) (1 / n + 1 / m) on average, times the design effect if rows of a
cluster are alike: new families with ten rows each differ from those in train more by chance than as many single rows.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import open_table
from ensemble.data.cross_validation import SPLIT
from ensemble.data.inputs import FORECAST
from ensemble.errors import listed

MOST_ROWS = 200_000
"""The largest number of rows of a split that are compared; of a larger split, a random sample is compared."""
LEAST_ROWS = 30
"""With fewer new rows there is no warning: a single row with a rare category would cause one."""
NUM_BINS = 10
RARE = 0.01
"""Categories with a smaller share of train share one bin."""
SMALL, LARGE = 0.1, 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bins:
    """The bins of a feature, and the number of rows of train in each."""

    begins: list[float]
    """Lower ends of the bins of known values, without the first, ascending; or the codes of categories with a bin of their
    own."""
    counts: list[int]
    """The number of rows in each bin, (len(begins) + 2,). The last bin has the missing values. For categories, the bin
    before it has all categories that are not in `begins`."""
    is_category: bool
    design_effect: float = 1.0
    """The factor, at least 1, by which the variance of the shares of the bins is larger than with independent rows."""

    @classmethod
    def from_values(cls, values: np.ndarray, is_category: bool, cluster: np.ndarray | None = None) -> "Bins":
        """The bins of a column of train, in which NaN is a missing value. cluster : (num_rows,), or None if each row is one
        by itself."""
        known = values[~np.isnan(values)]
        if is_category:
            codes, counts = np.unique(known, return_counts=True)
            begins = codes[counts >= RARE * len(values)]
        else:
            quantiles = np.quantile(known, np.arange(1, NUM_BINS) / NUM_BINS) if known.size else known
            begins, times = np.unique(quantiles, return_counts=True)
            is_frequent = (times > 1) | (begins == known.max(initial=-np.inf))
            begins = np.union1d(begins, np.nextafter(begins[is_frequent].astype(float), np.inf))
        empty = cls(begins=begins.tolist(), counts=[], is_category=is_category)
        bins = empty.bin_of(values)
        effect = 1.0 if cluster is None else _design_effect(bins, cluster)
        return dataclasses.replace(empty, counts=empty.count(bins).tolist(), design_effect=effect)

    def bin_of(self, values: np.ndarray) -> np.ndarray:
        """The number of the bin of each value."""
        begins = np.array(self.begins)
        bins = np.searchsorted(begins, values, side="left" if self.is_category else "right")
        if self.is_category:
            bins = np.where(np.isin(values, begins), bins, len(begins))
        return np.where(np.isnan(values), len(begins) + 1, bins)

    def count(self, bins: np.ndarray) -> np.ndarray:
        """The number of values in each bin. bins : from `bin_of`."""
        return np.bincount(bins, minlength=len(self.begins) + 2)

    def stability_index(self, values: np.ndarray) -> tuple[float, float]:
        """The index of other values of the feature, and its expected value for equal distributions."""
        counts = np.stack([self.counts, self.count(self.bin_of(values))]).astype(float)
        num_before, num_after = counts.sum(axis=1)
        counts = counts[:, counts.any(axis=0)]
        shares = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
        index = float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())
        return index, self.design_effect * (counts.shape[1] - 1) * (1 / num_before + 1 / num_after)


def _design_effect(bins: np.ndarray, cluster: np.ndarray) -> float:
    """`Bins.design_effect`, from the bin and the cluster of each row, (num_rows,). The variances of the shares of the bins
    are divided by the shares, and summed."""
    _, number, size = np.unique(cluster, return_inverse=True, return_counts=True)
    _, bins, in_bin = np.unique(bins, return_inverse=True, return_counts=True)
    num_bins, share = len(in_bin), in_bin / len(bins)
    pairs, count = np.unique(number * num_bins + bins, return_counts=True)
    of_cluster, of_bin = np.divmod(pairs, num_bins)
    squares = np.bincount(of_bin, count**2) - 2 * share * np.bincount(of_bin, count * size[of_cluster])
    squares += share**2 * (size**2).sum()  # of the deviations of each cluster's counts from `share * size`
    return max(1.0, float((squares / share).sum() / (len(bins) * max(1, num_bins - 1))))


def severity(index: float, chance: float) -> str:
    """The size of `index - chance`: `large`, `moderate`, or empty if it is small. Also empty if the index is at most twice
    `chance`, so that it may be due to chance.

    index, chance : from `Bins.stability_index`; `chance` is the expected value for equal distributions.
    """
    excess = index - chance if index > 2 * chance else 0.0
    return "large" if excess > LARGE else "moderate" if excess > SMALL else ""


def columns(folder: str | Path, manifest: dict[str, Any], split: str) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Each feature of prepared data with its values in a split, (num_rows,), or in `MOST_ROWS` random ones of its rows."""
    table = open_table(Path(folder) / "rows" / split)
    sample = _sample(table.num_rows)
    for feature in manifest["features"]:
        yield feature, table[feature["name"]].to_numpy()[sample]


def clusters(folder: str | Path, manifest: dict[str, Any], split: str) -> np.ndarray | None:
    """The clusters of the rows that `columns` reads, (num_rows,); None if there are none, or if each row is one."""
    table, name = open_table(Path(folder) / "rows" / split), manifest.get("task", {}).get("cluster")
    if name not in table.column_names:
        return None
    cluster = table[name].to_numpy()[_sample(table.num_rows)]
    return cluster if len(np.unique(cluster)) < len(cluster) else None


def _sample(num_rows: int) -> slice | np.ndarray:
    """All rows, or `MOST_ROWS` random ones: every k-th row would be of one kind where rows alternate, as home and away."""
    if num_rows <= MOST_ROWS:
        return slice(None)
    return np.random.default_rng(0).choice(num_rows, MOST_ROWS, replace=False, shuffle=False)


def bins_of_train(folder: str | Path, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The bins of each feature in train, for JSON."""
    cluster = clusters(folder, manifest, SPLIT)
    return {
        feature["name"]: dataclasses.asdict(Bins.from_values(values, feature["unit"] == "category", cluster))
        for feature, values in columns(folder, manifest, SPLIT)
    }


def warning(bins: dict[str, dict[str, Any]], folder: str | Path, manifest: dict[str, Any]) -> str:
    """A warning that names features with a large drift from train to the split forecast; empty if there are none.

    Those with the largest index are named first. Dates and their parts, such as the month, are not examined. bins : from
    `bins_of_train`; if it is empty, or with fewer than `LEAST_ROWS` rows, nothing is examined.
    """
    if not bins or open_table(Path(folder) / "rows" / FORECAST).num_rows < LEAST_ROWS:
        return ""
    index_of = {}
    for feature, values in columns(folder, manifest, FORECAST):
        if "part" in feature or feature["unit"].startswith("days since"):  # later rows have later dates
            continue
        index, chance = Bins(**bins[feature["name"]]).stability_index(values)
        if severity(index, chance) == "large":
            index_of[feature.get("meaning", feature["name"])] = index
    if not index_of:
        return ""
    ordered = sorted(index_of, key=lambda name: -index_of[name])
    named = listed([f"'{name}' ({index_of[name]:.2f})" for name in ordered])
    return (
        f"the new rows differ from the training rows in {named}: the population stability index is above "
        f"{LARGE}, so predictions may be worse than the scores of the ensemble"
    )
