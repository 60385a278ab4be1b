"""Neutral predictions for values that training never had: a missing one in a column that was never empty, a new category.

A tree sends such a value to a side that no training row has tested. XGBoost and LightGBM choose different sides, so their
predictions can be opposite extremes. Here, the unknown values of a row are replaced by those of `NUM_REFERENCE` training
rows in turn, the other columns fixed, and the row's prediction is the median of the predictions: it lies between their
quartiles. Of several classes it is the medians of the probabilities, moved towards the quartiles until their sum is 1; where
no such probabilities exist, it is the mean.

What training had is in the member's known.json:

    complete     the features without a missing value
    unseen       for each category feature, the numbers of the categories that no row had
    reference    for the features that can be unknown, the values of the reference rows

A feature of many categories is left out here: its unknown values have a number of their own (target_encoding.py), or are a
category of CatBoost's.

Rows without an unknown value are predicted as they always were, to the bit. Only the others take longer.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.trees.objective import Goal
from ensemble.trees.rows import TreeData
from ensemble.trees.target_encoding import MIN_CATEGORIES

FILE = "known.json"
NUM_REFERENCE = 63
"""An odd number, so that the median is the prediction of one reference row. More than half of 63 random rows lie outside a
side's quartile in 1 of 100,000 draws; the quantiles of each column are exact."""
NUM_SAMPLED = 100_000
"""Rows from which the quantiles of a column are taken."""
ROWS_AT_ONCE = 1 << 15
Ask = Callable[[np.ndarray], np.ndarray]
"""Features (n, F) to predictions (n,) or (n, K)."""


def learn(goal: Goal, parts: list[TreeData]) -> dict[str, Any]:
    """The content of known.json for trees that learned `goal` from all rows of `parts`."""
    rows, columns = parts[0], [part.column_of_all for part in parts]
    learned = [_learned(goal, column) for column in columns]
    num_rows = sum(int(mask.sum()) for mask in learned)
    generator = np.random.default_rng(0)
    sampled = generator.choice(num_rows, min(num_rows, NUM_SAMPLED), replace=False)
    chosen = sampled[np.arange(NUM_REFERENCE) % len(sampled)]
    quantiles = (np.arange(NUM_REFERENCE) + 0.5) / NUM_REFERENCE
    complete, unseen, reference = [], {}, {}
    for name in rows.features:
        if rows.categories.get(name, 0) >= MIN_CATEGORIES:
            continue
        values = np.concatenate([column(name)[mask] for column, mask in zip(columns, learned, strict=True)])
        is_missing = np.isnan(values)
        if not is_missing.any():
            complete.append(name)
        if name in rows.categories:
            seen = np.unique(values[~is_missing])
            if missing := np.setdiff1d(np.arange(rows.categories[name]), seen).tolist():
                unseen[name] = missing
        if name in complete or (name in unseen and not is_missing.all()):
            known = values[sampled]
            column = np.empty(NUM_REFERENCE, np.float32)
            # The quantiles of the column, in the order of the reference rows' own values
            order = np.argsort(values[chosen], kind="stable")
            column[order] = np.quantile(known[~np.isnan(known)], quantiles, method="inverted_cdf")
            reference[name] = column.tolist()
    return {
        "complete": complete,
        "unseen": {name: unseen[name] for name in unseen if name in reference},
        "reference": reference,
    }


def _learned(goal: Goal, column: Callable[[str], np.ndarray]) -> np.ndarray:
    """The rows that are learned: (num_rows,) bool."""
    mask = ~np.isnan(column(goal.target).astype(np.float64))
    return mask & (column(goal.task.weight) > 0) if goal.task.weight else mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What training had, by the number of the feature."""

    complete: np.ndarray
    """(F,) bool: the features whose missing values are unknown."""
    unseen: dict[int, np.ndarray]
    reference: np.ndarray
    """(NUM_REFERENCE, F) float32; what is never replaced is NaN."""

    @classmethod
    def load(cls, member: Path, features: list[str]) -> "Known":
        """That of a member; those of older versions have no file, and no value is unknown to them."""
        content: dict[str, Any] = {"complete": [], "unseen": {}, "reference": {}}
        return cls.of(folders.read_json(member / FILE) if (member / FILE).is_file() else content, features)

    @classmethod
    def of(cls, content: dict[str, Any], features: list[str]) -> "Known":
        """That which `learn` returned."""
        reference = np.full((NUM_REFERENCE, len(features)), np.nan, np.float32)
        for name, values in content["reference"].items():
            reference[:, features.index(name)] = values
        return cls(
            complete=np.isin(features, content["complete"]),
            unseen={features.index(name): np.array(codes, np.float32) for name, codes in content["unseen"].items()},
            reference=reference,
        )

    def unknown(self, features: np.ndarray) -> np.ndarray:
        """Which values training never had: the shape of `features`, (n, F)."""
        found = np.isnan(features) & self.complete
        for number, codes in self.unseen.items():
            found[:, number] |= np.isin(features[:, number], codes)
        return found

    def predict(self, ask: Ask, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The predictions, and the number of unknown values of each feature, (F,)."""
        found, unknown = ask(features), self.unknown(features)
        rows = np.flatnonzero(unknown.any(axis=1))
        if rows.size:
            found = np.array(found)
            found[rows] = self._neutral(ask, features[rows], unknown[rows])
        return found, unknown.sum(axis=0)

    def contributions(self, ask: Ask, explain: Callable[[np.ndarray], np.ndarray], features: np.ndarray) -> np.ndarray:
        """The parts of the predictions, as `explain` gives those of features (n, F): of an unknown value, those of the value
        of the reference row with the median prediction, so they sum to the prediction of one value or probability. Of
        several classes it is the median probability of the likeliest class.
        """
        unknown = self.unknown(features)
        rows = np.flatnonzero(unknown.any(axis=1))
        if rows.size:
            features = np.array(features)
            features[rows] = self._stand_ins(ask, features[rows], unknown[rows])
        return explain(features)

    def _neutral(self, ask: Ask, features: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        if ask(features[:1]).ndim == 1:
            return ask(self._stand_ins(ask, features, unknown))
        return np.concatenate([_between_quartiles(of) for _, of in self._predicted(ask, features, unknown)])

    def _stand_ins(self, ask: Ask, features: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """The rows with the values of the reference row whose prediction is the median."""
        found = []
        for variants, prediction in self._predicted(ask, features, unknown):
            if prediction.ndim == 3:
                likeliest = _between_quartiles(prediction).argmax(axis=1)
                prediction = prediction[np.arange(len(prediction)), :, likeliest]
            median = np.argsort(prediction, axis=1, kind="stable")[:, NUM_REFERENCE // 2]
            found.append(variants.reshape(len(median), NUM_REFERENCE, -1)[np.arange(len(median)), median])
        return np.concatenate(found)

    def _predicted(self, ask: Ask, features: np.ndarray, unknown: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Some rows at a time: `_variants`, and their predictions, (n, NUM_REFERENCE) or (n, NUM_REFERENCE, K)."""
        found = []
        for start in range(0, len(features), ROWS_AT_ONCE // NUM_REFERENCE):
            now = slice(start, start + ROWS_AT_ONCE // NUM_REFERENCE)
            variants = self._variants(features[now], unknown[now])
            prediction = ask(variants)
            found.append((variants, prediction.reshape(-1, NUM_REFERENCE, *prediction.shape[1:])))
        return found

    def _variants(self, features: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """(n * NUM_REFERENCE, F): each row with the unknown values replaced by those of each reference row."""
        filled = np.where(unknown[:, None], self.reference, features[:, None])
        return filled.reshape(-1, features.shape[1])


def _between_quartiles(probabilities: np.ndarray) -> np.ndarray:
    """(n, K) with sum 1 from (n, NUM_REFERENCE, K), as described above."""
    low, median, high = np.quantile(probabilities, [0.25, 0.5, 0.75], axis=1)
    lacking = 1 - median.sum(axis=-1, keepdims=True)
    room = np.where(lacking > 0, high - median, median - low)
    all_room = room.sum(axis=-1, keepdims=True)
    moved = median + lacking * room / np.where(all_room > 0, all_room, 1)
    found = np.where(np.abs(lacking) <= all_room, moved, probabilities.mean(axis=1))
    return found / found.sum(axis=-1, keepdims=True)


def sentences(counts: np.ndarray, features: list[str], num_rows: int, split: str) -> list[str]:
    """What a user is to know of the unknown values among the rows of a split."""
    return [
        f"{counts[number]:,} of {num_rows:,} rows of {split} have an empty or unknown value in '{features[number]}', which "
        "training never had: their prediction is the median over values that training had"
        for number in np.flatnonzero(counts)
    ]
