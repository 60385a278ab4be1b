"""Scores of class probabilities, shape (num_rows, num_classes)."""

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics.weighting import mean

TOLERANCE = 1e-4  # float32 shares of a hundred classes do not sum to exactly 1


def log_loss(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Mean of −log of the probability of the class that came true, in nats."""
    return mean(_log_losses(target, prediction), weight)


def accuracy(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Share of rows whose likeliest class came true; of classes that tie, each counts in part."""
    chosen = _chosen(prediction)
    return mean(chosen[np.arange(len(target)), np.asarray(target, int)], weight)


class MulticlassScorer:
    """See `Scorer`; every score is a plain mean over rows, or made of sums over the rows of each class."""

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        target, prediction = _checked(target, prediction)
        rows, of_row = np.arange(len(target)), target.astype(int)
        came_true = np.zeros_like(prediction)
        came_true[rows, of_row] = 1
        chosen = _chosen(prediction)
        # One column per plain mean: all of them in one product with the weights.
        self.row_losses = np.stack(
            [_log_losses(target, prediction), ((prediction - came_true) ** 2).sum(1), chosen[rows, of_row]]
        )
        self.by_class = np.stack([came_true, chosen, came_true * chosen])

    def scores(self, weight: np.ndarray) -> np.ndarray:
        log_loss, brier, accuracy = self.row_losses @ weight / weight.sum()
        happened, chosen, both = np.einsum("prk,r->pk", self.by_class, weight, optimize=True)
        there = happened > 0
        balanced_accuracy = (both[there] / happened[there]).mean()
        named = there | (chosen > 0)
        f1 = (2 * both[named] / (happened + chosen)[named]).mean()
        return np.array([log_loss, accuracy, balanced_accuracy, f1, brier])


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    target, prediction = np.asarray(target, float), np.asarray(prediction, float)
    assert prediction.shape[:1] == target.shape
    assert prediction.ndim == 2
    if target.size == 0:
        raise UserError("there is not one row to score: check the split")
    num_classes = prediction.shape[1]
    bad = np.flatnonzero(~np.isin(target, np.arange(num_classes)))
    if bad.size:
        raise UserError(
            f"a target must be a class from 0 to {num_classes - 1} to be scored, but that of row {bad[0]} is "
            f"{target[bad[0]]:g}: check the split"
        )
    bad = np.flatnonzero(~((prediction >= 0).all(1) & (np.abs(prediction.sum(1) - 1) <= TOLERANCE)))
    if bad.size:
        raise UserError(
            f"the predictions of row {bad[0]} are no probabilities with sum 1: look at the member's training log"
        )
    return target, prediction


def _log_losses(target: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    of_truth = np.asarray(prediction, float)[np.arange(len(target)), np.asarray(target, int)]
    tiny = np.finfo(float).eps
    return -np.log(np.clip(of_truth, tiny, 1 - tiny))


def _chosen(prediction: np.ndarray) -> np.ndarray:
    """1 for the likeliest class of each row; of classes that tie, each has its part."""
    prediction = np.asarray(prediction, float)
    likeliest = prediction == prediction.max(1, keepdims=True)
    return likeliest / likeliest.sum(1, keepdims=True)
