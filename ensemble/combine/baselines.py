"""What an ensemble must beat: the base rate, and a ranking without a model."""

import numpy as np

from ensemble.combine.fitting import check_binary_target
from ensemble.combine.losses import expit, logit_of
from ensemble.combine.scales import platt_scale
from ensemble.errors import UserError

SMALLEST_SLOPE = 1e-6  # keeps an order, and moves no probability


def base_rate_prediction(blend_target: np.ndarray, num_rows: int) -> np.ndarray:
    """The baseline that knows nothing: blend's share of positives for each of `num_rows` rows."""
    return np.full(num_rows, np.mean(blend_target))


def momentum_prediction(
    blend_target: np.ndarray, blend_score: np.ndarray, blend_group: np.ndarray, score: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """The baseline that only ranks: probabilities, shape (num_rows,), for the rows of `score` and `group`.

    A score is any number that is higher for what grows faster (reviews in the last 4 weeks over those in the 4 before).
    Its rank within the week becomes a probability by Platt scaling on blend, so that log loss and Brier score are fair to
    it; the order within each week stays the score's own, also where it pointed the wrong way on blend (the probabilities
    then hardly leave the base rate). Raises `UserError` for a NaN score and a blend of one class.
    """
    blend_target = np.asarray(blend_target, float)
    check_binary_target(blend_target)
    line = platt_scale(blend_target, _rank_logit(blend_score, blend_group))
    return expit(max(line.slope, SMALLEST_SLOPE) * _rank_logit(score, group) + line.intercept)


def _rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The logit of each row's rank among the rows of its group, as a share in (0, 1); ties share their mean rank."""
    score, group = np.asarray(score, float), np.asarray(group)
    if np.isnan(score).any():
        raise UserError(f"the momentum of row {np.flatnonzero(np.isnan(score))[0]} is NaN: prepare the data again")
    share = np.empty(len(score))
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.unique(group, return_counts=True)[1])[:-1]):
        _, block, size = np.unique(score[members], return_inverse=True, return_counts=True)
        share[members] = (np.cumsum(size) - size / 2)[block] / len(members)
    return logit_of(share)
