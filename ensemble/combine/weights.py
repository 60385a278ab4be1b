"""Combiners: each finds the members' weights, shape (num_members,), from targets and the members' columns.

target: shape (num_rows,). columns: shape (num_rows, num_members), of a multiclass task (num_rows, num_classes, num_members),
no two alike and none constant: on the scale that `COMBINERS` names. loss: what `losses.loss_of` gives for these rows, with
their weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from ensemble.combine.losses import LOG_LOSS, Loss, mean_of

GREEDY_STEPS = 50  # weights come in steps of at least 2 %
SEARCH_STEPS = (0.3, 0.1, 0.03, 0.01)  # of the way to a member: finer than the blend can tell apart
EQUAL = "equal"

SAFE = (EQUAL, "best_member", "greedy", "shrunk", "simplex", "rank_average")  # weights ≥ 0 with sum 1, for few positives

Space = Literal["logit", "probability", "value", "log", "standard", "rank"]
Find = Callable[[np.ndarray, np.ndarray, Loss], np.ndarray]


class Combiner(NamedTuple):
    """How to find weights, and what they are weights of."""

    find: Find
    """Weights from targets, columns and the loss."""
    space: Space
    """Scaled logits, probabilities (of a yes or no), values (of a number), logs of shares (of classes), or scores within
    their group: less its mean, by its spread, or by the logit of the rank."""
    ranks: bool = False
    """Whether every member goes in by its rank alone, not only those that say no probability."""


def equal_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The same weight for each member."""
    return np.full(columns.shape[-1], 1 / columns.shape[-1])


def best_member_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """All weight on the member of the lowest loss."""
    return np.eye(columns.shape[-1])[np.argmin([loss.mean(target, column) for column in _each(columns)])]


def greedy_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Caruana et al. 2004, "Ensemble selection from libraries of models": add the member that helps most, again and again.

    Members may be added repeatedly; the weights are their shares in the best of the first 50 averages. The first average is
    the best member, so the result is never worse.
    """
    total, times_added = np.zeros(columns.shape[:-1]), np.zeros(columns.shape[-1])
    best_loss, best = np.inf, times_added
    for size in range(1, GREEDY_STEPS + 1):
        losses = [loss.mean(target, (total + column) / size) for column in _each(columns)]
        added = int(np.argmin(losses))
        total += columns[..., added]
        times_added[added] += 1
        if losses[added] < best_loss:
            best_loss, best = losses[added], times_added / size
    return best


def shrunk_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Halfway from greedy's weights to equal ones: with few positives the weights found are half noise."""
    return (greedy_weights(target, columns, loss) + equal_weights(target, columns)) / 2


def simplex_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The weights ≥ 0, with sum 1, that minimise the loss itself, by SciPy's SLSQP. The problem is convex.

    Should the optimizer stop early, the best member alone is taken where it is better, so the result is never worse. A loss
    without a slope is searched instead, from greedy's weights.
    """
    from scipy.optimize import minimize

    if loss.slope is None:
        return _searched_weights(target, columns, loss)
    slope, num_members = loss.slope, columns.shape[-1]
    flat = columns.reshape(-1, num_members)
    scale = loss.mean(target, columns.mean(-1)) or 1.0  # a loss near 1, whatever the unit: `ftol` is absolute
    found = minimize(
        lambda weights: loss.mean(target, columns @ weights) / scale,
        np.full(num_members, 1 / num_members),
        jac=lambda weights: slope(target, columns @ weights).reshape(-1) @ flat / (len(target) * scale),
        method="SLSQP",
        bounds=[(0, 1)] * num_members,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10},
    ).x
    found[found < 1e-6] = 0  # what the optimizer leaves of a zero
    best_member = best_member_weights(target, columns, loss)
    return min(best_member, found / found.sum(), key=lambda weights: loss.mean(target, columns @ weights))


def _searched_weights(target: np.ndarray, columns: np.ndarray, loss: Loss) -> np.ndarray:
    """From greedy's weights towards and away from each member by ever smaller steps, as long as the loss falls."""
    weights = greedy_weights(target, columns, loss)
    least = loss.mean(target, columns @ weights)
    for step in SEARCH_STEPS:
        improved = True
        while improved:
            improved = False
            for member in np.eye(len(weights)):
                for by in (step, -step):
                    moved = np.maximum(weights + by * (member - weights), 0)
                    moved /= moved.sum()
                    found = loss.mean(target, columns @ moved)
                    if found < least:
                        weights, least, improved = moved, found, True
    return weights


def _each(columns: np.ndarray) -> np.ndarray:
    """The members' columns one after the other."""
    return np.moveaxis(columns, -1, 0)


def nnls_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """The weights ≥ 0 of least squared error once the mean is right, by SciPy; their sum is free."""
    from scipy.optimize import nnls

    weight = loss.weight
    centred, answer = columns - mean_of(columns, weight), target - mean_of(target, weight)
    if weight is not None:
        centred, answer = centred * np.sqrt(weight)[:, None], answer * np.sqrt(weight)
    return nnls(centred, answer)[0]


def ridge_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Least squares with a penalty on the weights' squares, as strong as leave-one-out finds best, by scikit-learn.

    Weights may be negative, so a higher prediction can lower the forecast.
    """
    from sklearn.linear_model import RidgeCV

    num_rows = len(target) if loss.weight is None else loss.weight.sum()
    strengths = num_rows * columns.var() * np.logspace(-4, 1, 6)
    return RidgeCV(alphas=strengths).fit(columns, target, loss.weight).coef_


def logistic_weights(target: np.ndarray, columns: np.ndarray, loss: Loss = LOG_LOSS) -> np.ndarray:
    """Logistic regression on the logits with scikit-learn's L2 penalty of 1, which is weak. Weights may be negative."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="newton-cholesky").fit(columns, target, loss.weight).coef_[0]


COMBINERS: dict[str, dict[str, Combiner]] = {
    "binary": {
        EQUAL: Combiner(equal_weights, "logit"),
        "best_member": Combiner(best_member_weights, "logit"),
        "greedy": Combiner(greedy_weights, "logit"),
        "shrunk": Combiner(shrunk_weights, "logit"),
        "simplex": Combiner(simplex_weights, "logit"),
        "logistic": Combiner(logistic_weights, "logit"),
        "nnls": Combiner(nnls_weights, "probability"),
        "ridge": Combiner(ridge_weights, "probability"),
        "rank_average": Combiner(equal_weights, "logit", ranks=True),
    },
    "multiclass": {
        EQUAL: Combiner(equal_weights, "log"),
        "best_member": Combiner(best_member_weights, "log"),
        "greedy": Combiner(greedy_weights, "log"),
        "shrunk": Combiner(shrunk_weights, "log"),
        "simplex": Combiner(simplex_weights, "log"),
    },
    "regression": {
        EQUAL: Combiner(equal_weights, "value"),
        "best_member": Combiner(best_member_weights, "value"),
        "greedy": Combiner(greedy_weights, "value"),
        "shrunk": Combiner(shrunk_weights, "value"),
        "simplex": Combiner(simplex_weights, "value"),
        "nnls": Combiner(nnls_weights, "value"),
        "ridge": Combiner(ridge_weights, "value"),
    },
    "ranking": {
        EQUAL: Combiner(equal_weights, "standard"),
        "best_member": Combiner(best_member_weights, "standard"),
        "greedy": Combiner(greedy_weights, "standard"),
        "shrunk": Combiner(shrunk_weights, "standard"),
        "simplex": Combiner(simplex_weights, "standard"),
        "rank_average": Combiner(equal_weights, "rank"),
    },
}
