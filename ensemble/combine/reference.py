"""What an ensemble must beat: the base rate, and a ranking without a model."""

import numpy as np

from ensemble.combine.fitting import check_binary_target
from ensemble.combine.losses import expit, mean_of, rank_logit
from ensemble.combine.scales import platt_scale
from ensemble.errors import UserError

SMALLEST_SLOPE = 1e-6  # keeps an order, and moves no probability


def base_rate_prediction(
    blend_target: np.ndarray,
    num_rows: int,
    kind: str = "binary",
    num_classes: int = 0,
    blend_weight: np.ndarray | None = None,
) -> np.ndarray:
    """The baseline that knows nothing, for each of `num_rows` rows: blend's share of positives, or the mean of its targets.

    Of a multiclass task the share of each class, (num_rows, num_classes), counted with one more row of each, so that none is
    impossible; of a ranking 0, a tie of all. blend_weight: of blend's rows, with mean 1; None for 1 each.
    """
    if kind == "multiclass":
        count = np.bincount(np.asarray(blend_target, int), blend_weight, minlength=num_classes) + 1
        return np.tile(count / count.sum(), (num_rows, 1))
    return np.full(num_rows, 0.0 if kind == "ranking" else mean_of(np.asarray(blend_target), blend_weight))


def ranked_prediction(
    blend_target: np.ndarray,
    blend_score: np.ndarray,
    blend_group: np.ndarray,
    score: np.ndarray,
    group: np.ndarray,
    blend_weight: np.ndarray | None = None,
) -> np.ndarray:
    """A baseline that only ranks rows: probabilities, shape (num_rows,), for the rows of `score` and `group`.

    A score is any number that is higher for rows that are more likely to be positive. Its rank within the group becomes a
    probability by Platt scaling on blend, so that log loss and Brier score are fair to it; the order within each group
    stays the score's own, also where it pointed the wrong way on blend (the probabilities then hardly leave the base rate).
    Raises `UserError` for a NaN score and a blend of one class.
    """
    blend_target = np.asarray(blend_target, float)
    check_binary_target(blend_target)
    line = platt_scale(blend_target, _rank_logit(blend_score, blend_group), blend_weight)
    return expit(max(line.slope, SMALLEST_SLOPE) * _rank_logit(score, group) + line.intercept)


def _rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    score, group = np.asarray(score, float), np.asarray(group)
    if np.isnan(score).any():
        raise UserError(f"the score of row {np.flatnonzero(np.isnan(score))[0]} is NaN: prepare the data again")
    return rank_logit(score, group)
