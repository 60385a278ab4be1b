"""One forecast from those of all members: weights and calibration, fitted on the blend split.

    template, matrix = predictions.align(members_on_blend)
    ensemble = fit(template.target, matrix, template.group, member_names)
    forecast = ensemble.predict(matrix_on_test, member_names)

The steps, each monotone in every member (a higher prediction never lowers the forecast):

1. Each member's logit (of its probability, clipped to 1e-6 from 0 and 1) is Platt scaled: slope ≥ 0 and intercept. Members
   trained with focal loss, class weights or too long speak on different scales; after this step their weights compare.
2. The scaled logits are averaged with weights that are ≥ 0 and sum to 1. Four candidates: equal weights; the best member
   alone; greedy selection with replacement (Caruana et al. 2004, the best prefix kept); the minimum of the log loss over the
   simplex.
3. The average is Platt scaled once more.

The candidate is chosen by cross-fitting inside blend: in turn each of `num_folds` blocks of consecutive weeks is left out,
steps 1 to 3 are fitted on the other blocks, and the left-out block is forecast. The lowest log loss of all those forecasts
wins if it beats that of equal weights by more than a standard error over the blocks; otherwise the weights are equal,
for fitted weights that are hardly better on blend are worse on test more often than not (CONTRIBUTING has the figures).

Log loss decides though average precision is reported too, since every row counts in it, not only the few hundred positives:
chosen by log loss, the forecast had the better average precision as well. (Neighbouring weeks share a part of
their labels' horizon, so the cross-fitted scores are a little too good; that is the same for every candidate.)
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics import binary_scores

EPSILON = 1e-6  # float32 members say exactly 0 or 1 now and then: their logits must stay finite
SMALLEST_SLOPE = 1e-6  # keeps an order, and moves no probability
EQUAL = "equal"
LARGEST_LOGIT = 30.0  # a probability of exactly 0 or 1 would have an infinite loss
GREEDY_STEPS = 50  # weights come in steps of at least 2 %


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """A fitted combiner; `to_dict` and `from_dict` carry it through JSON without the loss of a bit."""

    member_names: tuple[str, ...]
    scales: tuple[tuple[float, float], ...]
    """Slope and intercept of each member's logit."""
    method: str
    """A key of `CANDIDATES`."""
    weights: tuple[float, ...]
    """Of the scaled logits: not negative, and 1 together."""
    platt: tuple[float, float]
    """Slope and intercept of the average."""
    cross_fitted: dict[str, dict[str, float]]
    """Log loss and average precision of every candidate, on weeks of blend that it was not fitted on."""
    num_folds: int

    def predict(self, predictions: np.ndarray, member_names: Sequence[str]) -> np.ndarray:
        """The ensemble's probabilities, shape (num_rows,).

        predictions: shape (num_rows, num_members), probabilities; `member_names` names the columns, in any order. Raises
        `UserError` for a member that is missing or was not there in `fit`, and for NaN and values outside [0, 1].
        """
        for name in self.member_names:
            if name not in member_names:
                raise UserError(f"the ensemble needs member '{name}', which has no prediction here: predict with it too")
        for name in member_names:
            if name not in self.member_names:
                raise UserError(f"member '{name}' was not there when the ensemble was fitted: leave it out, or fit again")
        columns = [list(member_names).index(name) for name in self.member_names]
        logits = _logits(predictions, member_names)[:, columns]
        return _expit(_combine(logits, np.array(self.scales), np.array(self.weights), self.platt))

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Ensemble":
        """The ensemble that `to_dict` described; `UserError` when a part is missing or unknown."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(content) != names:
            different = ", ".join(sorted(names ^ set(content)))
            raise UserError(f"this is not a fitted ensemble of this version, it differs in: {different}; fit it again")
        return cls(
            **{
                **content,
                "member_names": tuple(content["member_names"]),
                "scales": tuple((slope, intercept) for slope, intercept in content["scales"]),
                "weights": tuple(content["weights"]),
                "platt": tuple(content["platt"]),
            }
        )


def fit(
    target: np.ndarray,
    predictions: np.ndarray,
    group: np.ndarray,
    member_names: Sequence[str],
    *,
    num_folds: int = 5,
) -> Ensemble:
    """Fit the combiner as the module's docstring says. Nothing in it is drawn at random.

    target: shape (num_rows,), 0 or 1. predictions: shape (num_rows, num_members), probabilities. group: shape (num_rows,),
    the week as a number that grows with time. With fewer weeks than `num_folds`, each week is a fold.

    Raises `UserError` for NaN (naming member and row), for predictions that are no probabilities, for targets that are
    not 0 or 1 or all alike, and for a blend of one week.
    """
    target, group = np.asarray(target, float), np.asarray(group)
    logits = _logits(predictions, member_names)
    assert target.shape == group.shape == logits.shape[:1]
    _check_target(target)
    weeks = np.unique(group)
    if len(weeks) < 2:
        raise UserError(
            f"the blend split has only week {weeks[0]}, but weights are chosen on weeks that they were not fitted on: "
            "give blend at least 2 weeks"
        )
    blocks = np.array_split(weeks, min(num_folds, len(weeks)))
    left_out = {method: np.empty(len(target)) for method in CANDIDATES}
    for block in blocks:
        held = np.isin(group, block)
        for method, parameters in _fit_candidates(target[~held], logits[~held]).items():
            left_out[method][held] = _combine(logits[held], *parameters)
    cross_fitted, by_block = {}, {}
    for method, logit in left_out.items():
        scores = binary_scores(target, _expit(logit), group)
        cross_fitted[method] = {name: scores[name] for name in ("log_loss", "average_precision")}

        by_block[method] = np.array([_log_loss(target[held], logit[held]) for held in (np.isin(group, b) for b in blocks)])

    method = _choose(by_block)
    scales, weights, platt = _fit_candidates(target, logits)[method]
    return Ensemble(
        member_names=tuple(member_names),
        scales=tuple((slope, intercept) for slope, intercept in scales.tolist()),
        method=method,
        weights=tuple(weights.tolist()),
        platt=platt,
        cross_fitted=cross_fitted,
        num_folds=len(blocks),
    )


def best_member_weights(target: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """All weight, shape (num_members,), on the member of the lowest log loss. Arguments as for `simplex_weights`."""
    return np.eye(logits.shape[1])[np.argmin([_log_loss(target, column) for column in logits.T])]


def greedy_weights(target: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Caruana et al. 2004, "Ensemble selection from libraries of models": add the member that helps most, again and again.

    Members may be added repeatedly; the weights are their shares in the best of the first 50 averages. The first average is
    the best member, so the result is never worse. Arguments as for `simplex_weights`.
    """
    total, times_added = np.zeros(len(target)), np.zeros(logits.shape[1])
    best_loss, best = np.inf, times_added
    for size in range(1, GREEDY_STEPS + 1):
        losses = [_log_loss(target, (total + column) / size) for column in logits.T]
        added = int(np.argmin(losses))
        total += logits[:, added]
        times_added[added] += 1
        if losses[added] < best_loss:
            best_loss, best = losses[added], times_added / size
    return best


def simplex_weights(target: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The weights ≥ 0, with sum 1 and shape (num_members,), that minimise the log loss of the averaged logit.

    target: shape (num_rows,), 0 or 1; logits: shape (num_rows, num_members). The problem is convex. Should the optimizer
    stop early, the best member alone is taken where it is better, so the result is never worse than that.
    """
    from scipy.optimize import minimize

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        average = logits @ weights
        return _log_loss(target, average), (_expit(average) - target) @ logits / len(target)

    num_members = logits.shape[1]
    found = minimize(
        loss,
        np.full(num_members, 1 / num_members),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * num_members,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10},
    ).x
    found[found < 1e-6] = 0  # what the optimizer leaves of a zero
    return min(best_member_weights(target, logits), found / found.sum(), key=lambda weights: loss(weights)[0])


def equal_weights(target: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The same weight for each different member, shape (num_members,): twins share one, a constant member has none."""
    _, twin, num_twins = np.unique(logits, axis=1, return_inverse=True, return_counts=True)
    weights = (logits.std(axis=0) > 0) / num_twins[twin]
    return weights / weights.sum() if weights.any() else np.full(len(weights), 1 / len(weights))


CANDIDATES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    EQUAL: equal_weights,
    "best member": best_member_weights,
    "greedy": greedy_weights,
    "simplex": simplex_weights,
}


def platt_scale(target: np.ndarray, logit: np.ndarray) -> tuple[float, float]:
    """Slope ≥ 0 and intercept that minimise the log loss of `slope * logit + intercept`; both arguments (num_rows,).

    The targets are drawn in by Platt's (1999) rule, to (n₊+1)/(n₊+2) and 1/(n₋+2), so a perfect separation of few rows
    leaves the slope finite. A logit that points the wrong way gets slope 0, which is the base rate.
    """
    num_positive = target.sum()
    drawn_in = np.where(target == 1, (num_positive + 1) / (num_positive + 2), 1 / (len(target) - num_positive + 2))
    center, spread = logit.mean(), logit.std() or 1.0
    standard = (logit - center) / spread
    base_rate = drawn_in.mean()
    line = np.array([0.0, np.log(base_rate / (1 - base_rate))])
    # Newton's method on two numbers: SciPy's L-BFGS-B is far slower where its BLAS threads have to wait for cores.
    for _ in range(50):
        probability = _expit(line[0] * standard + line[1])
        error, curvature = probability - drawn_in, probability * (1 - probability)
        gradient = np.array([(error * standard).mean(), error.mean()])
        if np.abs(gradient).max() < 1e-10:
            break
        mixed = (curvature * standard).mean()
        hessian = np.array([[(curvature * standard**2).mean(), mixed], [mixed, curvature.mean()]])
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        loss = _log_loss(drawn_in, line[0] * standard + line[1])
        while _log_loss(drawn_in, (line - step)[0] * standard + (line - step)[1]) > loss + 1e-14:
            step /= 2
        line -= step
    if line[0] <= 0:
        return 0.0, float(np.log(base_rate / (1 - base_rate)))
    return float(line[0] / spread), float(line[1] - line[0] * center / spread)


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
    _check_target(blend_target)
    slope, intercept = platt_scale(blend_target, _rank_logit(blend_score, blend_group))
    return _expit(max(slope, SMALLEST_SLOPE) * _rank_logit(score, group) + intercept)


def _choose(losses: dict[str, np.ndarray]) -> str:
    """The candidate of lowest mean log loss, if it beats equal weights by more than a standard error; else equal weights.

    `losses` has an array of shape (num_blocks,) for each candidate.
    """
    best = min(losses, key=lambda method: losses[method].mean())
    gain = losses[EQUAL] - losses[best]
    return best if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) else EQUAL


def _fit_candidates(target: np.ndarray, logits: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray, tuple[float, float]]]:
    """Scales (num_members, 2), weights (num_members,) and final Platt line of each candidate."""
    scales = np.array([platt_scale(target, column) for column in logits.T])
    scaled = logits * scales[:, 0] + scales[:, 1]
    fitted = {}
    for method, find_weights in CANDIDATES.items():
        weights = find_weights(target, scaled)
        fitted[method] = scales, weights, platt_scale(target, (scaled * weights).sum(1))
    return fitted


def _combine(logits: np.ndarray, scales: np.ndarray, weights: np.ndarray, platt: tuple[float, float]) -> np.ndarray:
    # Member by member: a matrix product, and a sum over an axis, give a row other last bits in other company.
    average = np.zeros(len(logits))
    for logit, (slope, intercept), weight in zip(logits.T, scales, weights, strict=True):
        average += weight * (slope * logit + intercept)
    return np.clip(platt[0] * average + platt[1], -LARGEST_LOGIT, LARGEST_LOGIT)


def _logits(predictions: np.ndarray, member_names: Sequence[str]) -> np.ndarray:
    predictions = np.asarray(predictions, float)
    assert predictions.shape[1:] == (len(member_names),), "one name per column"
    assert len(set(member_names)) == len(member_names)
    bad = np.argwhere(~((predictions >= 0) & (predictions <= 1)))
    if bad.size:
        row, member = bad[0]
        raise UserError(
            f"member '{member_names[member]}' predicts {predictions[row, member]:g} in row {row}, which is no probability: "
            "look at its training log, and predict again"
        )
    clipped = predictions.clip(EPSILON, 1 - EPSILON)
    return np.log(clipped) - np.log1p(-clipped)


def _check_target(target: np.ndarray) -> None:
    if not np.isin(target, (0, 1)).all():
        wrong = target[~np.isin(target, (0, 1))][0]
        raise UserError(
            f"the combiner is fitted on targets of 0 and 1, but blend has {wrong:g}: check the recipe and the split"
        )
    if target.all() or not target.any():
        kind = "positive" if not target.any() else "negative"
        raise UserError(
            f"not one of the {len(target)} rows of blend is {kind}: give blend more weeks, or the data more products"
        )


def _rank_logit(score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The logit of each row's rank among the rows of its group, as a share in (0, 1); ties share their mean rank."""
    score, group = np.asarray(score, float), np.asarray(group)
    if np.isnan(score).any():
        raise UserError(f"the momentum of row {np.flatnonzero(np.isnan(score))[0]} is NaN: prepare the data again")
    share = np.empty(len(score))
    for members in np.split(np.argsort(group, kind="stable"), np.cumsum(np.unique(group, return_counts=True)[1])[:-1]):
        _, block, size = np.unique(score[members], return_inverse=True, return_counts=True)
        share[members] = (np.cumsum(size) - size / 2)[block] / len(members)
    return np.log(share) - np.log1p(-share)


def _log_loss(target: np.ndarray, logit: np.ndarray) -> float:
    # log(1 + exp(logit)) in the form that cannot overflow; np.logaddexp does the same, six times slower.
    return float(np.mean(np.maximum(logit, 0) + np.log1p(np.exp(-np.abs(logit))) - target * logit))


def _expit(logit: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(logit)
