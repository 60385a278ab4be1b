"""Cross-validation: which rows of the split `train` fit a copy of a member, stop it early, and are predicted by it.

Prepared data with the manifest entry `cross_validation` have no validation split. Their split `train` has all labelled rows
and a column `fold`. Copy k of a member is fitted on `fit`, is stopped early on `stop`, and predicts `held`. Together the
copies give the out-of-fold predictions: each from a copy that learned nothing from its row, early stopping included.

    scheme    folds                                     copy k holds out    stops on             is fitted on
    random    0 to K - 1, stratified by the target      fold k              fold (k + 1) % K     the other rows
    groups    the same, equal groups in one fold        fold k              fold (k + 1) % K     the other rows
    forward   -2, -1, 0 to K - 1, rising in time        fold k              fold k - 1           the folds before that
    holdout   one copy, for many rows                   fold 0              fold 1               fold -1

Of `forward`, a copy is fitted only on rows whose target is known before the rows that stop it begin, and stopped on those
that are known before the rows that it holds out begin: `embargo` is the time after which a target is known. No group is on
both sides. Folds below 0 have no out-of-fold prediction.

Of `random`, a copy may be stopped on a part of fold (k + 1) % K alone, `stop_share`, and be fitted on the rest of it: of
many rows a part is enough to find the number of steps.
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
    """Row numbers of the split `train`, rising, each (n,) int64."""

    fit: np.ndarray
    stop: np.ndarray
    held: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """The manifest entry of this name."""

    scheme: Scheme
    num_folds: int
    """K, the number of copies."""
    embargo: float = 0.0
    """In the unit of the column `time`."""
    stop_share: float = 1.0
    """Of `random`: the part of a fold that stops a copy."""
    begins: tuple[float, ...] = ()
    """Of `forward`: the first time of the folds -1, 0, 1 …, in the unit of the column `time`."""

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> "CrossValidation | None":
        """That of prepared data with the manifest `about`; None if they have a validation split instead."""
        entry = manifest.get(KEY)
        return None if entry is None else cls(**{**entry, "begins": tuple(entry["begins"])})

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "begins": list(self.begins)}

    def fold(self, number: int, fold: np.ndarray, time: np.ndarray | None, cluster: np.ndarray) -> Fold:
        """The rows of copy `number`, from the columns of the split `train`, each (num_rows,).

        time : float64, needed by `forward` alone. cluster : rows with equal values are not on both sides of a forward fold.
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

    def folds(self, data: str | Path, cluster: str) -> list[Fold]:
        """Those of all copies, of the prepared folder `data`. cluster : the column of the task."""
        table = open_table(Path(data) / "rows" / SPLIT)
        time = table[TIME].to_numpy() if TIME in table.column_names else None
        columns = table[COLUMN].to_numpy(), time, table[cluster].to_numpy()
        return [self.fold(number, *columns) for number in range(self.num_folds)]
