"""Blends for tests of the combiner: targets, and members that each see another part of the truth, of every kind of task."""

from typing import NamedTuple

import numpy as np

from ensemble.combine.scales import platt_scale

NAMES = ["trees", "net", "text"]
KINDS = ("binary", "multiclass", "regression", "ranking")
WEEKS = 12
CLASSES = 4
GROUP_SIZE = 20


class Blend(NamedTuple):
    """Arguments of `combine.fit`; predictions have shape (num_rows, 3), of classes (num_rows, 3, 4)."""

    target: np.ndarray
    predictions: np.ndarray
    group: np.ndarray


def expit(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def softmax(logs: np.ndarray) -> np.ndarray:
    shares = np.exp(logs - logs.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def loss(target: np.ndarray, prediction: np.ndarray) -> float:
    return -np.mean(np.where(target == 1, np.log(prediction), np.log1p(-prediction)))


def market(num_rows: int = 3000, seed: int = 0) -> Blend:
    """Targets, three members that see different parts of the truth on different scales, and weeks in time order."""
    generator = np.random.default_rng(seed)
    parts = generator.normal(size=(num_rows, 3)) * [1.2, 1.0, 0.6]
    target = (generator.random(num_rows) < expit(parts.sum(1) - 3)).astype(float)
    logits = (parts - 3) * [1.0, 0.3, 2.0] + [0.0, 0.0, 1.5]
    return Blend(target, expit(logits), np.sort(generator.integers(0, WEEKS, num_rows)))


def scaled_logits(target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    logits = np.log(predictions / (1 - predictions))
    return np.stack([platt_scale(target, column)(column) for column in logits.T], axis=1)


def blend_of(kind: str, num_rows: int = 3000, seed: int = 0) -> Blend:
    """`market` for a binary task, and similar data for the others. A ranking has groups of 20 rows, and its members have
    very different scales."""
    generator = np.random.default_rng(seed)
    if kind == "binary":
        return market(num_rows, seed)
    group = np.sort(generator.integers(0, WEEKS, num_rows))
    if kind == "multiclass":
        parts = generator.normal(size=(num_rows, 3, CLASSES)) * np.array([1.2, 1.0, 0.6])[:, None]
        prior = np.array([1.0, 0.0, -0.5, -1.0])
        drawn = softmax(parts.sum(1) + prior).cumsum(1) < generator.random(num_rows)[:, None]
        return Blend(drawn.sum(1).astype(float), softmax(parts * np.array([1.0, 0.3, 2.0])[:, None] + prior), group)
    if kind == "regression":
        truth = 100 + 10 * generator.normal(size=(num_rows, 1))
        return Blend(truth[:, 0], truth + generator.normal(0, [4, 5, 8], (num_rows, 3)) + [0, 3, 0], group)
    assert kind == "ranking"
    group = np.arange(num_rows) // GROUP_SIZE
    parts = generator.normal(size=(num_rows, 3)) * [1.2, 1.0, 0.6]
    relevance = np.searchsorted([1.5, 2.5, 3.5], parts.sum(1) + generator.normal(0, 0.5, num_rows))
    level = generator.normal(size=(group[-1] + 1, 3))[group]
    return Blend(relevance.astype(float), (parts + level) * [1.0, 30.0, 0.01], group)
