"""Baselines for an ensemble: the base rate, and a ranking without a model."""

import numpy as np

from ensemble.combine.fitting import check_binary_target
from ensemble.combine.losses import ABSOLUTE_ERROR, expit, rank_logit
from ensemble.combine.scales import platt_scale
from ensemble.metrics.weighting import refuse, weighted_mean, weighted_median

SMALLEST_SLOPE = 1e-6  # keeps the order, and changes probabilities by a negligible amount


def base_rate_prediction(
    blend_target: np.ndarray,
    num_rows: int,
    loss: str = "binary",
    num_classes: int = 0,
    blend_weight: np.ndarray | None = None,
) -> np.ndarray:
    """The base rate of blend, the share of positives or the mean of the targets, as a prediction of `num_rows` rows. For the
    absolute error it is their median. loss : the name of the loss, as in `Task.loss`.

    For a multiclass task it is the share of each class, (num_rows, num_classes). One more row of each class is counted, so
    that no share is 0. For a ranking all predictions are 0, so all rows are tied. blend_weight : the weights of the rows of
    blend, with mean 1; None for 1 each.
    """
    if loss == "multiclass":
        count = np.bincount(np.asarray(blend_target, int), blend_weight, minlength=num_classes) + 1
        return np.tile(count / count.sum(), (num_rows, 1))
    if loss == "ranking":
        return np.zeros(num_rows)
    center = weighted_median if loss == ABSOLUTE_ERROR else weighted_mean
    return np.full(num_rows, center(np.asarray(blend_target), blend_weight))


def ranked_prediction(
    blend_target: np.ndarray,
    blend_score: np.ndarray,
    blend_group: np.ndarray,
    score: np.ndarray,
    group: np.ndarray,
    blend_weight: np.ndarray | None = None,
) -> np.ndarray:
    """Probabilities (num_rows,) from a score (num_rows,) that only ranks rows: the higher, the likelier a row is positive.

    The rank of a row within its group is converted to a probability by Platt scaling on blend, so log loss and Brier score
    are fair to the baseline. The order within a group stays that of the score. If that order is reversed on blend, the
    probabilities are almost the base rate. Raises `UserError` for a NaN score and a blend of one class.
    """
    blend_target = np.asarray(blend_target, float)
    check_binary_target(blend_target)
    line = platt_scale(blend_target, _rank_logit(blend_score, blend_group), blend_weight)
    return expit(max(line.slope, SMALLEST_SLOPE) * _rank_logit(score, group) + line.intercept)


def _rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    score = np.asarray(score, float)
    refuse(np.isnan(score), score, "the score of row {} is NaN: prepare the data again")
    return rank_logit(score, np.asarray(group))
