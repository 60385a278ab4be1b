"""Features of many categories as means of the target (Micci-Barreca 2001, https://doi.org/10.1145/507533.507538).

A category becomes the mean target of its rows, drawn towards the mean of all rows as by `PRIOR_ROWS` more of them. The rows
that a model is fitted on get means of other rows than themselves, of `NUM_PARTS` parts; all other rows get means of the rows
that the model is fitted on. So neither a held-out row nor the row itself is in its own number. A missing value and a
category that the model never had are one more category.

XGBoost and LightGBM learn from these numbers. CatBoost has statistics of its own, and several classes have no one mean.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.trees.objective import Goal
from ensemble.trees.rows import TreeData

FILE = "target_encoding.json"
MIN_CATEGORIES = 100
"""Features of fewer categories are left to the library, which tries sets of them."""
PRIOR_ROWS = 10.0
NUM_PARTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """The numbers of the categories in one model."""

    numbers: dict[int, np.ndarray]
    """By the number of the feature, (categories + 1,) float32; the last is that of missing values."""

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Features (n, F) with categories to such with numbers, in a copy if any is encoded."""
        if not self.numbers:
            return features
        encoded = np.array(features)
        for number, of_category in self.numbers.items():
            encoded[:, number] = of_category[_codes(features[:, number], len(of_category) - 1)]
        return encoded

    def to_dict(self, features: list[str]) -> dict[str, list[float]]:
        return {features[number]: of_category.tolist() for number, of_category in self.numbers.items()}


NOTHING = TargetEncoding(numbers={})


def encoded_features(rows: TreeData) -> list[str]:
    """Those with many categories."""
    return [name for name, number in rows.categories.items() if number >= MIN_CATEGORIES]


def learn(goal: Goal, rows: TreeData, fit: np.ndarray) -> tuple[TargetEncoding, TreeData]:
    """The encoding of a model that is fitted on the rows `fit` of a split, and the split with its numbers."""
    names = encoded_features(rows)
    if not names or goal.objective not in ("binary", "regression"):
        return NOTHING, rows
    target = rows.column(goal.target).astype(np.float64)
    weight = rows.column(goal.task.weight).astype(np.float64) if goal.task.weight else np.ones(len(rows))
    weight = np.where(np.isnan(target), 0.0, weight)
    target = np.nan_to_num(target)
    part = np.random.default_rng(0).permutation(len(fit)) % NUM_PARTS
    numbers, columns = {}, {}
    for name in names:
        codes = _codes(rows.column(name), rows.categories[name])
        of_category = _means(codes, target, weight, fit, rows.categories[name] + 1)
        column = of_category[codes]
        for number in range(NUM_PARTS):
            held = fit[part == number]
            column[held] = _means(codes, target, weight, fit[part != number], len(of_category))[codes[held]]
        numbers[rows.features.index(name)], columns[name] = of_category, column
    return TargetEncoding(numbers=numbers), rows.replaced(columns)


def load(member: Path, features: list[str], num_models: int) -> list[TargetEncoding]:
    """Those of a member's models; of one without the file, none of their features is encoded."""
    if not (member / FILE).is_file():
        return [NOTHING] * num_models
    content: list[dict[str, Any]] = folders.read_json(member / FILE)
    return [
        TargetEncoding(numbers={features.index(name): np.array(values, np.float32) for name, values in one.items()})
        for one in content
    ]


def _codes(column: np.ndarray, missing: int) -> np.ndarray:
    """Categories as whole numbers; `missing` for NaN and for what is none."""
    is_known = (column >= 0) & (column < missing)
    return np.where(is_known, column, missing).astype(np.int64)


def _means(codes: np.ndarray, target: np.ndarray, weight: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
    """(number,) float32."""
    mass = np.bincount(codes[rows], weight[rows], number)
    total = np.bincount(codes[rows], weight[rows] * target[rows], number)
    mean = total.sum() / max(mass.sum(), 1e-300)
    return ((total + PRIOR_ROWS * mean) / (mass + PRIOR_ROWS)).astype(np.float32)
