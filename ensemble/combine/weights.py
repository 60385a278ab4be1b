"""Combiners: functions that compute the members' weights, (num_members,), from targets and the columns of the members.

target : (num_rows,). columns : (num_rows, num_members), or (num_rows, num_classes, num_members), all different and none
constant, on the scale of the combiner in `COMBINERS`. loss : the result of `losses.task_loss` for these rows and their
weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from ensemble.combine.losses import LOG_LOSS, Loss
from ensemble.metrics.weighting import weighted_mean

GREEDY_STEPS = 50  # so a weight that is not 0 is at least 2 %
SEARCH_STEPS = (0.3, 0.1, 0.03, 0.01)  # fractions of the way to a member; smaller ones do not lower the loss on blend
EQUAL = "equal"
LOGISTIC = "logistic"

Space = Literal["logit", "probability", "value", "log", "standard", "rank"]
Find = Callable[[np.ndarray, np.ndarray, Loss], np.ndarray]


class Combiner(NamedTuple):
    """A function that computes weights, and the scale of the columns that are averaged."""

    find: Find
    space: Space
    """Scaled logits or probabilities (binary), values (regression), logs of probabilities (multiclass), or scores within
    their group, standardised or as the logit of their rank (ranking)."""
    ranks: bool = False
    """Whether the rank replaces the prediction of every member, not only of those with scores."""


def equal_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    return np.full(columns.shape[-1], 1 / columns.shape[-1])


def best_member_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """All weight on the member with the lowest loss."""
    return np.eye(columns.shape[-1])[np.argmin([loss.mean(target, column) for column in np.moveaxis(columns, -1, 0)])]


def greedy_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Caruana et al. 2004, "Ensemble selection from libraries of models": repeatedly add the member that helps most.

    A member may be added several times; the weights are the shares of the members in the best of the first 50 averages. The
    first average is the best member, so the loss is never higher than its loss.
    """
    total, times_added = np.zeros(columns.shape[:-1]), np.zeros(columns.shape[-1])
    best_loss, best = np.inf, times_added
    for size in range(1, GREEDY_STEPS + 1):
        losses = [loss.mean(target, (total + column) / size) for column in np.moveaxis(columns, -1, 0)]
        added = int(np.argmin(losses))
        total += columns[..., added]
        times_added[added] += 1
        if losses[added] < best_loss:
            best_loss, best = losses[added], times_added / size
    return best


def shrunk_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The mean of greedy and equal weights: with few positives, half of the variation of fitted weights is noise."""
    return (greedy_weights(target, columns, loss) + equal_weights(target, columns)) / 2


def simplex_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The weights ≥ 0 with sum 1 that minimise the loss, by SciPy's SLSQP. For a loss with a slope the problem is convex.

    If the optimizer stops early, the best member alone is used where its loss is lower. A loss without a slope is minimised
    by a search that starts from greedy weights.
    """
    from scipy.optimize import minimize

    if loss.slope is None:
        return _searched_weights(target, columns, loss)
    slope, num_members = loss.slope, columns.shape[-1]
    flat = columns.reshape(-1, num_members)
    scale = loss.mean(target, columns.mean(-1)) or 1.0  # makes the loss near 1 in any unit, since `ftol` is absolute
    weights = minimize(
        lambda weights: loss.mean(target, columns @ weights) / scale,
        np.full(num_members, 1 / num_members),
        jac=lambda weights: slope(target, columns @ weights).reshape(-1) @ flat / (len(target) * scale),
        method="SLSQP",
        bounds=[(0, 1)] * num_members,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10},
    ).x
    weights[weights < 1e-6] = 0  # these are zeros but for the rounding error of the optimizer
    best_member = best_member_weights(target, columns, loss)
    return min(best_member, weights / weights.sum(), key=lambda weights: loss.mean(target, columns @ weights))


def _searched_weights(target: np.ndarray, columns: np.ndarray, loss: Loss) -> np.ndarray:
    """Move greedy weights towards or away from each member, in steps of decreasing size, as long as the loss falls."""
    weights = greedy_weights(target, columns, loss)
    least = loss.mean(target, columns @ weights)
    for step in SEARCH_STEPS:
        improved = True
        while improved:
            improved = False
            for member in np.eye(len(weights)):
                for signed_step in (step, -step):
                    moved = np.maximum(weights + signed_step * (member - weights), 0)
                    moved /= moved.sum()
                    moved_loss = loss.mean(target, columns @ moved)
                    if moved_loss < least:
                        weights, least, improved = moved, moved_loss, True
    return weights


def nnls_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The weights ≥ 0 with the lowest squared error of centred columns, by SciPy; their sum is free."""
    from scipy.optimize import nnls

    weight = loss.weight
    centred, centred_target = columns - weighted_mean(columns, weight), target - weighted_mean(target, weight)
    if weight is not None:
        centred, centred_target = centred * np.sqrt(weight)[:, None], centred_target * np.sqrt(weight)
    return nnls(centred, centred_target)[0]


def ridge_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Least squares with a penalty on squared weights, by scikit-learn; the penalty is chosen by leave-one-out errors.

    Weights may be negative, so a higher prediction of a member can lower that of the ensemble.
    """
    from sklearn.linear_model import RidgeCV

    num_rows = len(target) if loss.weight is None else loss.weight.sum()
    penalties = num_rows * columns.var() * np.logspace(-4, 1, 6)
    return RidgeCV(alphas=penalties).fit(columns, target, loss.weight).coef_


def logistic_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Logistic regression on the logits with scikit-learn's L2 penalty of 1, which is weak. Weights may be negative."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="newton-cholesky").fit(columns, target, loss.weight).coef_[0]


_CONVEX: dict[str, Find] = {
    EQUAL: equal_weights,
    "best_member": best_member_weights,
    "greedy": greedy_weights,
    "shrunk": shrunk_weights,
    "simplex": simplex_weights,
}
"""Combiners for every kind of task, with weights that are ≥ 0 and sum to 1."""
SAFE = (*_CONVEX, "rank_average")
"""The combiners that combiner=auto may choose with fewer than `scales.ISOTONIC_LEAST` rows of the rarer class."""


def _convex(space: Space) -> dict[str, Combiner]:
    return {name: Combiner(find, space) for name, find in _CONVEX.items()}


COMBINERS: dict[str, dict[str, Combiner]] = {
    "binary": {
        **_convex("logit"),
        LOGISTIC: Combiner(logistic_weights, "logit"),
        "nnls": Combiner(nnls_weights, "probability"),
        "ridge": Combiner(ridge_weights, "probability"),
        "rank_average": Combiner(equal_weights, "logit", ranks=True),
    },
    "multiclass": _convex("log"),
    "regression": {
        **_convex("value"),
        "nnls": Combiner(nnls_weights, "value"),
        "ridge": Combiner(ridge_weights, "value"),
    },
    "ranking": {**_convex("standard"), "rank_average": Combiner(equal_weights, "rank")},
}
"""By kind of task, the combiners by name, in the order in which equally good ones are preferred."""
