"""Cross-validation: the rows on which each copy of a member is fitted and stopped early, and those that it predicts.

Prepared data with the manifest entry `cross_validation` have no validation split. Their split `train` has all labelled rows
that are not in the split test, and a column `fold`. Copy k of a member is fitted on the rows `fit`, stopped early on the
rows `stop`, and predicts the rows `held`. The copies together give the out-of-fold predictions: the copy that predicts a row
was neither fitted nor stopped on it.

    scheme    folds                                     copy k holds out    stops on             is fitted on
    random    0 to K - 1, stratified by the target      fold k              fold (k + 1) % K     the other rows
    groups    0 to K - 1, each group within one fold    fold k              fold (k + 1) % K     the other rows
    forward   -2, -1, 0 to K - 1, rising in time        fold k              fold k - 1           the folds before that
    holdout   -1, 0, 1; one copy, for many rows         fold 0              fold 1               fold -1

With `forward`, a copy is fitted only on rows whose targets are known before its `stop` rows begin, and stopped on rows whose
targets are known before its `held` rows begin. A target is known once the time `embargo` has passed since its row. Rows with
equal clusters are in only one of `fit`, `stop` and `held`.

Only the rows of the folds that a copy holds out have out-of-fold predictions.

With `random`, a copy may be stopped on a share `stop_share` of fold (k + 1) % K, and also fitted on the rest of this fold:
if there are many rows, a part of them suffices to choose the number of steps.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ensemble.arrow import open_table

KEY = "cross_validation"
COLUMN = "fold"
TIME = "time"
SPLIT = "train"
"""The split that has the folds."""
Scheme = Literal["random", "groups", "forward", "holdout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """The rows of one copy: row numbers in the split `train`, ascending, each (n,) int64."""

    fit: np.ndarray
    stop: np.ndarray
    held: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """The manifest entry `cross_validation`."""

    scheme: Scheme
    num_folds: int
    """K, the number of copies."""
    embargo: float = 0.0
    """Time from a row until its target is known, in the unit of the column `time`; for `forward`."""
    stop_share: float = 1.0
    """For `random`, the share of a fold on which a copy is stopped early; for `holdout`, the size of fold 1 relative to
    fold 0. If it is below 1, a copy is fitted on most rows already, and a refit that adds its `stop` rows is not worth its
    time."""
    begins: tuple[float, ...] = ()
    """The first time in each of the folds -1, 0, 1 …, in the unit of the column `time`; for `forward`."""

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> "CrossValidation | None":
        """The cross-validation of prepared data with this manifest; None if they have a validation split."""
        entry = manifest.get(KEY)
        return None if entry is None else cls(**{**entry, "begins": tuple(entry["begins"])})

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "begins": list(self.begins)}

    def fold(self, number: int, fold: np.ndarray, time: np.ndarray | None, cluster: np.ndarray) -> Fold:
        """The rows of copy `number`, from the columns of the split `train`, each (num_rows,).

        time : float64, needed only for `forward`. cluster : used only for `forward`; no value is in two of the three parts.
        """
        assert 0 <= number < self.num_folds
        held = fold == number
        if self.scheme == "holdout":
            stop, fit = fold == 1, fold < 0
        elif self.scheme == "forward":
            assert time is not None
            stop_begins, held_begins = self.begins[number : number + 2]
            is_other = ~np.isin(cluster, cluster[held])
            stop = (fold == number - 1) & (time + self.embargo < held_begins) & is_other
            is_other &= ~np.isin(cluster, cluster[stop])
            fit = (fold < number - 1) & (time + self.embargo < stop_begins) & is_other
        else:
            rows = np.flatnonzero(fold == (number + 1) % self.num_folds)
            step = round(1 / self.stop_share)
            stop = np.zeros(len(fold), bool)
            stop[rows[number % step :: step]] = True
            fit = ~(held | stop)
        return Fold(fit=np.flatnonzero(fit), stop=np.flatnonzero(stop), held=np.flatnonzero(held))

    def num_predicted(self, data: str | Path) -> int:
        """The number of rows with out-of-fold predictions in the prepared folder `data`."""
        fold = open_table(Path(data) / "rows" / SPLIT)[COLUMN].to_numpy()
        return int(((fold >= 0) & (fold < self.num_folds)).sum())

    def folds(self, data: str | Path, cluster: str) -> list[Fold]:
        """The rows of each copy, from the prepared folder `data`. cluster : the name of the column with the clusters."""
        table = open_table(Path(data) / "rows" / SPLIT)
        time = table[TIME].to_numpy() if TIME in table.column_names else None
        columns = table[COLUMN].to_numpy(), time, table[cluster].to_numpy()
        return [self.fold(number, *columns) for number in range(self.num_folds)]
