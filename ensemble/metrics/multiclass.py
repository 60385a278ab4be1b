"""Metrics of class probabilities, (num_rows, num_classes)."""

import numpy as np

from ensemble.metrics.weighting import checked, refuse, weighted_mean

TOLERANCE = 1e-4  # float32 probabilities of a hundred classes do not sum to exactly 1


def log_loss(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The mean of −log of the probability of the true class, in nats."""
    return float(weighted_mean(_log_losses(target, prediction), weight))


def accuracy(target: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The share of rows whose likeliest class is the true one; equally likely classes share the row."""
    chosen = _chosen(prediction)
    return float(weighted_mean(chosen[np.arange(len(target)), np.asarray(target, int)], weight))


class MulticlassScorer:
    """A `bootstrap.Scorer`; every score is a mean over rows, or is computed from sums over the rows of each class."""

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        target, prediction = _checked(target, prediction)
        rows, true_class = np.arange(len(target)), target.astype(int)
        is_true = np.zeros_like(prediction)
        is_true[rows, true_class] = 1
        chosen = _chosen(prediction)
        # One row for each metric that is a mean over rows, so that one product with the weights gives all of them
        self.row_losses = np.stack(
            [_log_losses(target, prediction), ((prediction - is_true) ** 2).sum(1), chosen[rows, true_class]]
        )
        # (num_rows, 3 × num_classes): these sums are one product too. numpy 2.4's einsum would copy the array each time
        self.by_class = np.concatenate([is_true, chosen, is_true * chosen], axis=1)

    def scores(self, weight: np.ndarray) -> np.ndarray:
        log_loss, brier, accuracy = self.row_losses @ weight / weight.sum()
        true, chosen, both = (weight @ self.by_class).reshape(3, -1)
        in_target = true > 0
        balanced_accuracy = (both[in_target] / true[in_target]).mean()
        in_either = in_target | (chosen > 0)
        f1 = (2 * both[in_either] / (true + chosen)[in_either]).mean()
        return np.array([log_loss, accuracy, balanced_accuracy, f1, brier])


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    target, prediction = checked(target, prediction)
    assert prediction.ndim == 2
    num_classes = prediction.shape[1]
    rule = f"a target must be a class from 0 to {num_classes - 1} to be scored"
    refuse(~np.isin(target, np.arange(num_classes)), target, rule + ", but that of row {} is {:g}: check the split")
    is_valid = (prediction >= 0).all(1) & (np.abs(prediction.sum(1) - 1) <= TOLERANCE)
    sentence = "the predictions of row {} are not probabilities that sum to 1: look at the member's training log"
    refuse(~is_valid, prediction, sentence)
    return target, prediction


def _log_losses(target: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    probability = np.asarray(prediction, float)[np.arange(len(target)), np.asarray(target, int)]
    tiny = np.finfo(float).eps
    return -np.log(np.clip(probability, tiny, 1 - tiny))


def _chosen(prediction: np.ndarray) -> np.ndarray:
    """1 for the likeliest class of each row, 0 for others; equally likely classes have equal parts."""
    prediction = np.asarray(prediction, float)
    likeliest = prediction == prediction.max(1, keepdims=True)
    return likeliest / likeliest.sum(1, keepdims=True)
