"""Neutral predictions for unknown values: a missing value in a column without any in training, or a new category.

A tree sends an unknown value to a branch that was not chosen for such values in training. XGBoost and LightGBM use different
branches, so their predictions can be opposite extremes. Here, the unknown values of a row are replaced by those of
`NUM_REFERENCE` training rows, one after the other, while its other values stay. The neutral prediction is the median of the
predictions. With several classes it consists of the medians of the probabilities, moved towards their quartiles until the
sum is 1; if the quartiles do not allow this, it is the mean.

The member's known.json describes the values of the training rows:

    complete     the features without a missing value
    unseen       for each categorical feature, the numbers of the categories without a row
    reference    for the features that can have unknown values, the values of the reference rows

Features with `MIN_CATEGORIES` categories or more are left out: CatBoost, and target_encoding.py where it is used, replace
even their unknown values by statistics of the target.

The predictions of rows without unknown values have the same bits as without this module.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.errors import listed
from ensemble.trees.objective import Objective, are_learned
from ensemble.trees.rows import TreeData
from ensemble.trees.target_encoding import MIN_CATEGORIES

FILE = "known.json"
NUM_REFERENCE = 63
"""An odd number, so that the median is the prediction of one reference row. In each column, the values of the reference rows
are the quantiles of the column. The probability that more than half of 63 random rows lie above the upper quartile of the
predictions is 1 in 100,000."""
SUM_TOLERANCE = 1e-5
"""Medians with a sum that differs from 1 by less, as by rounding, are used even if the quartiles are equal to them."""
NUM_SAMPLED = 100_000
"""Rows from which the quantiles of a column are computed."""
ROWS_AT_ONCE = 1 << 15
Predict = Callable[[np.ndarray], np.ndarray]
"""Features (n, F) to predictions (n,) or (n, K)."""


def describe(objective: Objective, parts: list[TreeData]) -> dict[str, Any]:
    """The content of known.json for trees that learned `objective` from the rows of `parts` with a target and a weight."""
    rows = parts[0]
    masks = [are_learned(part, objective.target) for part in parts]
    num_rows = sum(int(mask.sum()) for mask in masks)
    generator = np.random.default_rng(0)
    sampled = generator.choice(num_rows, min(num_rows, NUM_SAMPLED), replace=False)
    chosen = sampled[np.arange(NUM_REFERENCE) % len(sampled)]
    complete, unseen, reference = [], {}, {}
    for name in rows.features:
        if rows.categories.get(name, 0) >= MIN_CATEGORIES:
            continue
        values = np.concatenate([part.column_of_all(name)[mask] for part, mask in zip(parts, masks, strict=True)])
        is_missing = np.isnan(values)
        is_complete = not is_missing.any()
        if is_complete:
            complete.append(name)
        if name in rows.categories:
            unseen[name] = np.setdiff1d(np.arange(rows.categories[name]), values[~is_missing]).tolist()
        if is_complete or (unseen.get(name) and not is_missing.all()):
            known = values[sampled][~is_missing[sampled]]
            known = known if known.size else values[~is_missing]
            column = np.empty(NUM_REFERENCE, np.float32)
            # The quantiles of the column, in the order of the reference rows' own values
            order = np.argsort(values[chosen], kind="stable")
            column[order] = np.sort(known)[_positions(known.size)]
            reference[name] = column.tolist()
    return {
        "complete": complete,
        "unseen": {name: codes for name, codes in unseen.items() if codes and name in reference},
        "reference": reference,
    }


@functools.cache  # most of thousands of columns have the same number of values
def _positions(size: int) -> np.ndarray:
    """The positions of the quantiles of the reference rows among `size` sorted values: (NUM_REFERENCE,) int64."""
    quantiles = (np.arange(NUM_REFERENCE) + 0.5) / NUM_REFERENCE
    return np.quantile(np.arange(size), quantiles, method="inverted_cdf").astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenValues:
    """The content of known.json, with indices of features instead of names."""

    complete: np.ndarray
    """(F,) bool: the features in which a missing value is unknown."""
    unseen: dict[int, np.ndarray]
    """The unknown categories, by the index of the feature."""
    reference: np.ndarray
    """(NUM_REFERENCE, F) float32; NaN for features that cannot have unknown values."""

    @classmethod
    def load(cls, member: Path, features: list[str]) -> "SeenValues":
        """The seen values of a member. Members of older versions have no file; for them no value is unknown."""
        nothing: dict[str, Any] = {"complete": [], "unseen": {}, "reference": {}}
        return cls.from_dict(folders.read_json(member / FILE) if (member / FILE).is_file() else nothing, features)

    @classmethod
    def from_dict(cls, content: dict[str, Any], features: list[str]) -> "SeenValues":
        """From the result of `describe`."""
        position = {name: number for number, name in enumerate(features)}
        reference = np.full((NUM_REFERENCE, len(features)), np.nan, np.float32)
        for name, values in content["reference"].items():
            reference[:, position[name]] = values
        return cls(
            complete=np.isin(features, content["complete"]),
            unseen={position[name]: np.array(codes, np.float32) for name, codes in content["unseen"].items()},
            reference=reference,
        )

    def is_unknown(self, features: np.ndarray) -> np.ndarray:
        """Which values are unknown: bool, (n, F) like `features`."""
        mask = np.isnan(features) & self.complete
        for number, codes in self.unseen.items():
            mask[:, number] |= np.isin(features[:, number], codes)
        return mask

    def predict(self, predict: Predict, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The predictions, and the number of unknown values of each feature, (F,). predict : predicts with the trees."""
        predictions, is_unknown = predict(features), self.is_unknown(features)
        rows = np.flatnonzero(is_unknown.any(axis=1))
        if rows.size:
            predictions = np.array(predictions)
            predictions[rows] = self._neutral(predict, features[rows], is_unknown[rows])
        return predictions, is_unknown.sum(axis=0)

    def contributions(
        self, predict: Predict, explain: Callable[[np.ndarray], np.ndarray], features: np.ndarray
    ) -> np.ndarray:
        """The contributions that `explain` computes, with each unknown value replaced by that of the median reference row.

        So with one prediction per row (a value, a score or the log odds of a probability), the contributions sum to it. With
        several classes, the reference row is the one with the median probability of the likeliest class.
        """
        is_unknown = self.is_unknown(features)
        rows = np.flatnonzero(is_unknown.any(axis=1))
        if rows.size:
            features = np.array(features)
            features[rows] = self._with_median_reference(predict, features[rows], is_unknown[rows])
        return explain(features)

    def _neutral(self, predict: Predict, features: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
        if predict(features[:1]).ndim == 1:
            return predict(self._with_median_reference(predict, features, is_unknown))
        blocks = self._predict_variants(predict, features, is_unknown)
        return np.concatenate([between_quartiles(probabilities) for _, probabilities in blocks])

    def _with_median_reference(self, predict: Predict, features: np.ndarray, is_unknown: np.ndarray) -> np.ndarray:
        """The rows, with unknown values replaced by those of the reference row whose prediction is the median."""
        filled = []
        for variants, prediction in self._predict_variants(predict, features, is_unknown):
            if prediction.ndim == 3:
                likeliest = between_quartiles(prediction).argmax(axis=1)
                prediction = prediction[np.arange(len(prediction)), :, likeliest]
            median = np.argsort(prediction, axis=1, kind="stable")[:, NUM_REFERENCE // 2]
            filled.append(variants[np.arange(len(median)), median])
        return np.concatenate(filled)

    def _predict_variants(
        self, predict: Predict, features: np.ndarray, is_unknown: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of n rows, each with its unknown values replaced by those of every reference row, (n, NUM_REFERENCE, F).

        Each block is followed by its predictions, (n, NUM_REFERENCE) or (n, NUM_REFERENCE, K).
        """
        for start in range(0, len(features), ROWS_AT_ONCE // NUM_REFERENCE):
            block = slice(start, start + ROWS_AT_ONCE // NUM_REFERENCE)
            variants = np.where(is_unknown[block, None], self.reference, features[block, None])
            prediction = predict(variants.reshape(-1, features.shape[1]))
            yield variants, prediction.reshape(-1, NUM_REFERENCE, *prediction.shape[1:])


def between_quartiles(probabilities: np.ndarray) -> np.ndarray:
    """(n, K) with sum 1 from (n, NUM_REFERENCE, K): the medians, moved as the module's docstring describes."""
    low, median, high = np.quantile(probabilities, [0.25, 0.5, 0.75], axis=1)
    lacking = 1 - median.sum(axis=-1, keepdims=True)
    room = np.where(lacking > 0, high - median, median - low)
    total_room = room.sum(axis=-1, keepdims=True)
    moved = median + lacking * room / np.where(total_room > 0, total_room, 1)
    result = np.where(np.abs(lacking) <= total_room + SUM_TOLERANCE, moved, probabilities.mean(axis=1))
    return result / result.sum(axis=-1, keepdims=True)


def warnings(counts: np.ndarray, features: list[str], num_rows: int, split: str) -> list[str]:
    """A sentence for the features that have unknown values in the same number of rows; counts : see `SeenValues.predict`."""
    sentences = []
    for count in np.unique(counts[counts > 0])[::-1]:
        first, *others = (f"'{features[number]}'" for number in np.flatnonzero(counts == count))
        in_others = f", as many in {listed(others, 3)}" if others else ""
        sentences.append(
            f"{count:,} of {num_rows:,} rows of {split} {'has' if count == 1 else 'have'} an empty or unknown value in "
            f"{first}{in_others}; no training row has such a value, so the prediction is the median over values of "
            "training rows"
        )
    return sentences
