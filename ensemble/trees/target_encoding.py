"""Features with many categories as means of the target (Micci-Barreca 2001, https://doi.org/10.1145/507533.507538).

The code of a category is the mean target of its rows, shrunk towards the mean of all rows as if it had some more rows of
that mean. Their number is the ratio of the variance within categories to that of the means of categories (empirical Bayes),
so codes are hardly shrunk if the target varies little within a category. Rows on which a model is fitted are divided into
`NUM_PARTS` parts of whole clusters, and the codes of each part are means of the other parts; the codes of all other rows are
means of the fitted rows. So the code of a row does not depend on the targets of its cluster, with one exception: if clusters
have several rows, the codes of all parts are shrunk equally and towards the mean of all rows, since by the priors of the
parts a model could tell the parts, and so the clusters, apart. Missing values count as one more category. The code of a
category without a fitted row is the mean of all rows. The target of a regression is the standardised one, since codes are
float32.

On data for cross-validation, XGBoost and LightGBM learn from these codes if the objective is binary or regression, since
classes and relevances have no meaningful mean. CatBoost has target statistics of its own.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.trees.objective import Objective, mean_weight
from ensemble.trees.rows import TreeData

FILE = "target_encoding.json"
MIN_CATEGORIES = 100
"""Features with fewer categories are passed to the library as they are."""
PRIOR_ROWS = 0.1, 1000.0
"""Each category is shrunk towards the mean as if it had at least and at most this many more rows of that mean."""
NUM_PARTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """The codes of the categories for one model."""

    codes: dict[int, np.ndarray]
    """By the index of the feature, (categories + 1,) float32; the last code is that of missing values."""

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Features (n, F) with categories replaced by their codes; a copy if any feature is encoded."""
        if not self.codes:
            return features
        encoded = np.array(features)
        for number, codes in self.codes.items():
            encoded[:, number] = codes[_categories(features[:, number], len(codes) - 1)]
        return encoded

    def to_dict(self, features: list[str]) -> dict[str, list[float]]:
        return {features[number]: codes.tolist() for number, codes in self.codes.items()}


NO_ENCODING = TargetEncoding(codes={})


def fit(objective: Objective, rows: TreeData, fit_rows: np.ndarray) -> tuple[TargetEncoding, TreeData]:
    """The encoding of a model that is fitted on the rows `fit_rows` of a split, and the encoded split."""
    names = [name for name, num_categories in rows.categories.items() if num_categories >= MIN_CATEGORIES]
    if not names or objective.kind not in ("binary", "regression"):
        return NO_ENCODING, rows
    target = rows.column(objective.target).astype(np.float64)
    weight = rows.column(objective.task.weight).astype(np.float64) if objective.task.weight else np.ones(len(rows))
    weight = np.where(np.isnan(target), 0.0, weight) / mean_weight(rows.take(fit_rows), objective.target)
    target = objective.scaling.learned(np.nan_to_num(target)).astype(np.float64)
    _, first, cluster = np.unique(rows.column(objective.task.cluster)[fit_rows], return_index=True, return_inverse=True)
    draw = np.random.default_rng(0).permutation(len(fit_rows))[first]
    part = (np.argsort(np.argsort(draw)) % NUM_PARTS)[cluster]
    codes, columns = {}, {}
    for name in names:
        category, num_categories = _categories(rows.column(name), rows.categories[name]), rows.categories[name] + 1
        feature = rows.features.index(name)
        sums = _sums(category, target, weight, fit_rows, num_categories)
        codes[feature] = _codes(sums, prior := _prior(sums))
        columns[name] = codes[feature][category]
        for number in range(NUM_PARTS):
            held_out = fit_rows[part == number]
            others = _sums(category, target, weight, fit_rows[part != number], num_categories)
            means = _codes(others, _prior(others) if len(first) == len(fit_rows) else prior)
            columns[name][held_out] = means[category[held_out]]
    return TargetEncoding(codes=codes), rows.replaced(columns)


def load(member: Path, features: list[str], num_models: int) -> list[TargetEncoding]:
    """The encodings of a member's models; without the file, no feature is encoded."""
    if not (member / FILE).is_file():
        return [NO_ENCODING] * num_models
    content: list[dict[str, Any]] = folders.read_json(member / FILE)
    return [
        TargetEncoding(codes={features.index(name): np.array(values, np.float32) for name, values in model.items()})
        for model in content
    ]


def _categories(column: np.ndarray, missing: int) -> np.ndarray:
    """Categories as integers; `missing` for NaN and for numbers that are no category."""
    is_known = (column >= 0) & (column < missing)
    return np.where(is_known, column, missing).astype(np.int64)


def _sums(category: np.ndarray, target: np.ndarray, weight: np.ndarray, rows: np.ndarray, num_categories: int) -> np.ndarray:
    """Over some rows, the sum of the weights of each category, of the target and of its square: (3, num_categories)."""
    values = weight[rows], weight[rows] * target[rows], weight[rows] * target[rows] ** 2
    return np.stack([np.bincount(category[rows], value, num_categories) for value in values])


def _prior(sums: np.ndarray) -> tuple[float, float]:
    """The mean of all rows, and the number of rows of that mean that each category gets.

    The variances are the moment estimates of a one-way analysis of variance with random effects. Weights are taken for
    numbers of observations: with other unequal weights, codes are shrunk less.
    """
    mass, total, squares = sums[:, sums[0] > 0]
    num_rows = mass.sum()
    mean = total.sum() / max(num_rows, 1e-300)
    if len(mass) < 2 or num_rows <= len(mass):
        return mean, PRIOR_ROWS[1]
    within = (squares - total**2 / mass).sum() / (num_rows - len(mass))
    rows_per_category = (num_rows - (mass**2).sum() / num_rows) / (len(mass) - 1)
    between = ((mass * (total / mass - mean) ** 2).sum() / (len(mass) - 1) - within) / rows_per_category
    return mean, float(np.clip(within / between, *PRIOR_ROWS)) if between > 0 else PRIOR_ROWS[1]


def _codes(sums: np.ndarray, prior: tuple[float, float]) -> np.ndarray:
    """The mean target of each category, shrunk by `prior`: (num_categories,) float32."""
    mean, prior_rows = prior
    mass, total, _ = sums
    return ((total + prior_rows * mean) / (mass + prior_rows)).astype(np.float32)
