"""The ensemble: it is fitted on blend, and then predicts other rows.

The steps, each of which is monotone in every member whose weight is not negative:

1. The logit of each member's probability, clipped to [1e-6, 1 - 1e-6], is Platt scaled, with a slope ≥ 0 and an intercept.
   Members that were trained with focal loss, with class weights or for too long have different scales; after this step
   their weights are comparable. For a member with scores, the rank among the rows of blend replaces the logit.
2. The scaled logits (for nnls and ridge, their probabilities) are averaged, with the weights of one of `weights.COMBINERS`.
3. The average is calibrated again, by one of `scales.CALIBRATORS`.

These are the steps of a binary task. If its target is relative (`Task.is_relative`), a number is added to the logits of each
group after steps 1 and 3, so that their mean probability is the share of positives in blend. In a multiclass task, logs of
the probabilities replace the logits, with a temperature for each member. In a regression, values are averaged as they are.
In a ranking, scores are standardised within their group, or replaced by their ranks in it, so that all groups and members
have the same scale; nothing is calibrated.

`combiner=auto` compares all combiners block by block within blend (selection.py). The best one is chosen only if it is
better than equal weights by more than half a standard error: fitted weights that are hardly better on blend are more often
worse on test (figures in CONTRIBUTING.md). In a binary task with fewer than 1,000 rows of the rarer class, the choice is
limited to weights that are ≥ 0 and sum to 1, and isotonic calibration is not used. For out-of-fold predictions with folds of
whole groups, the choice is limited to such weights too. `calibration=none` leaves out steps 1 and 3, and changes no group.
`calibration=auto` compares the calibrators in the same way: the default is Platt scaling for a binary task, and a
temperature for a multiclass one. Of several names, as in `combiner=simplex,ridge`, the first is the default.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.combine.combination import Combination, Rows, distinct_members, fit_combinations, to_predictions
from ensemble.combine.losses import clipped_log, clipped_logit, expit
from ensemble.combine.scales import CALIBRATORS, ISOTONIC_LEAST, NONE
from ensemble.combine.selection import AUTO
from ensemble.combine.weights import COMBINERS, EQUAL, SAFE
from ensemble.errors import UserError
from ensemble.metrics.binary import ROUNDING
from ensemble.metrics.ranking import MAX_RELEVANCE
from ensemble.metrics.weighting import refuse, relative_weights
from ensemble.predictions import OUTPUTS_OF, TOLERANCE

PROBLEMS = {"probability": "is not a probability", "probabilities": "are not probabilities that sum to 1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """A fitted ensemble; `to_dict` and `from_dict` convert it to and from JSON without the loss of a bit."""

    kind: str
    """The kind of task: binary, multiclass, regression or ranking."""
    loss: str
    """The name of the loss that the weights minimise, as in `Task.loss`."""
    member_names: tuple[str, ...]
    """The names of the members, in the order of the weights."""
    outputs: tuple[str, ...]
    """The output of each member, one of `OUTPUTS_OF[kind]`."""
    method: str
    """The combiner, a key of `weights.COMBINERS[kind]`."""
    calibrator: str
    """A key of `scales.CALIBRATORS[kind]`, or `scales.NONE`; empty for a regression and a ranking."""
    combination: Combination
    """Scales, weights and calibration, fitted to all of blend."""
    cross_fitted: dict[str, dict[str, float]]
    """Cross-fitted scores on blend of each combiner, and of the automatic choice (auto)."""
    cross_fitted_calibrators: dict[str, dict[str, float]]
    """The same for the calibrators, with the chosen combiner."""
    num_folds: int
    """The number of blocks that were predicted in the cross-fitting."""

    @property
    def weights(self) -> tuple[float, ...]:
        return self.combination.weights

    def predict(self, predictions: np.ndarray, member_names: Sequence[str], group: np.ndarray | None = None) -> np.ndarray:
        """The ensemble's probabilities, values or scores (num_rows,), or probabilities of classes (num_rows, num_classes).

        predictions : (num_rows, num_members), or (num_rows, num_members, num_classes). member_names : the members of these
        columns, in any order. group : (num_rows,), needed for a ranking, whose rows are compared within it, and
        for a relative target: then give all rows of a group at once, since a part of them is moved to the same share. If a
        member is missing, a warning is printed, and the weights of the others increase in proportion. Raises `UserError` for
        an unknown member, if no remaining member has weight, if a member with weight is missing and weights are negative,
        and for NaN and invalid probabilities.
        """
        for name in member_names:
            if name not in self.member_names:
                raise UserError(
                    f"member '{name}' was not part of the ensemble when it was fitted: leave it out, or fit again"
                )
        present = self.subset(member_names)
        columns = [list(member_names).index(name) for name in present.member_names]
        inputs = member_inputs(np.asarray(predictions)[:, columns], present.member_names, present.outputs)
        return to_predictions(self.kind, present.combination(inputs, group))

    def probabilities(self, name: str, prediction: np.ndarray) -> np.ndarray:
        """A member's predictions as they are; only scores of a binary task become probabilities, by their rank on blend."""
        position = self.member_names.index(name)
        if self.kind == "binary" and self.outputs[position] == "score":
            return expit(self.combination.scales[position](prediction))
        return prediction

    def subset(self, member_names: Sequence[str]) -> "Ensemble":
        """The ensemble of the named members, with a warning if any is missing; see `predict`."""
        missing = ", ".join(name for name in self.member_names if name not in member_names)
        if not missing:
            return self
        present = [position for position, name in enumerate(self.member_names) if name in member_names]
        lost = [weight for name, weight in zip(self.member_names, self.weights, strict=True) if name not in member_names]
        if min(self.weights) < 0 and any(lost):
            raise UserError(f"with negative weights no member can be left out: put {missing} back, or fit again without it")
        if not any(self.weights[position] for position in present):
            raise UserError(f"without {missing} no member of the ensemble has weight: put it back, or predict with it too")
        print(f"warning: predictions of {missing} are missing: the other weights increase in proportion", file=sys.stderr)
        return self._at(present)

    def members_with_weight(self) -> "Ensemble":
        """The ensemble without its members of weight 0. Its predictions are bitwise equal."""
        return self._at([position for position, weight in enumerate(self.weights) if weight])

    def _at(self, positions: Sequence[int]) -> "Ensemble":
        return dataclasses.replace(
            self,
            member_names=tuple(self.member_names[position] for position in positions),
            outputs=tuple(self.outputs[position] for position in positions),
            combination=self.combination.subset(positions),
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Ensemble":
        """Create an ensemble from the result of `to_dict`; `UserError` if an entry is missing or unknown."""
        content = {"loss": content.get("kind"), **content}  # ensembles of older versions have no entry `loss`
        names = {field.name for field in dataclasses.fields(cls)}
        if set(content) != names:
            different = ", ".join(sorted(names ^ set(content)))
            raise UserError(f"this is not a fitted ensemble of this version, it differs in: {different}; fit it again")
        try:
            combination = Combination.from_dict(content["combination"])
        except (KeyError, TypeError) as error:
            raise UserError(f"the combination of this ensemble is damaged ({error}): fit it again") from None
        tuples = {name: tuple(content[name]) for name in ("member_names", "outputs")}
        return cls(**{**content, **tuples, "combination": combination})


def fit(*arguments: Any, **settings: Any) -> Ensemble:
    """The ensemble of `fit_cross_fitted`, which documents the arguments."""
    return fit_cross_fitted(*arguments, **settings)[0]


def fit_cross_fitted(
    target: np.ndarray,
    predictions: np.ndarray,
    group: np.ndarray,
    member_names: Sequence[str],
    *,
    kind: str = "binary",
    loss: str = "",
    outputs: Sequence[str] = (),
    combiner: str = AUTO,
    calibration: str = AUTO,
    num_folds: int = 5,
    weight: np.ndarray | None = None,
    is_forward: bool = True,
    compare: bool = True,
    only_safe: bool = False,
    is_relative: bool = False,
) -> tuple[Ensemble, np.ndarray]:
    """Fit an ensemble as the module's docstring describes, and predict its rows cross-fitted. Nothing is random.

    target : (num_rows,), 0 or 1, the number of a class, a number, or a relevance. predictions : (num_rows, num_members), or
    for a multiclass task (num_rows, num_members, num_classes). group : (num_rows,), such as the week as a number that grows
    with time, or the group of a ranking. kind : the kind of task. loss : the name of the loss, as in `Task.loss`; empty for
    that of the kind. outputs : the output of each member; empty for the first of `OUTPUTS_OF[kind]`. num_folds : number of
    blocks of groups to predict, if `is_forward` after a first block that is only fitted; with fewer groups, each is a block.
    weight : (num_rows,), 0 for rows that do not count; None for 1 each. is_forward : whether each block is predicted from
    earlier blocks only, not from all others. compare : whether all methods are scored even if `combiner` or `calibration`
    names one. only_safe : whether `auto` chooses among the combiners `SAFE` only, as is needed for out-of-fold predictions
    if folds consist of whole groups. There the mean prediction of a copy is low if the targets of its fold are high, since
    it was not fitted on them. With weights below 0, the ensemble would use this leak of the targets. is_relative : as in
    `Task`.

    The second result contains the prediction of each row by weights and calibration that were fitted on other blocks:
    (num_rows,), or (num_rows, num_classes); NaN for rows without a prediction.

    Raises `UserError` for NaN (with member and row), for invalid probabilities and targets, for targets that are all equal
    (except in a regression), for a blend of one group, and for a combiner or calibrator that is unknown or needs more rows.
    """
    outputs = tuple(outputs) or OUTPUTS_OF[kind][:1] * len(member_names)
    _check_outputs(kind, member_names, outputs)
    target, group = np.asarray(target, float), np.asarray(group)
    inputs = member_inputs(predictions, member_names, outputs)
    assert target.shape == group.shape == inputs.shape[:1]
    num_rows = len(target)
    weight, counted = counted_rows(weight)
    columns = target[counted], inputs[counted], np.array(outputs) == "score", group[counted]
    rows = Rows(kind, loss or kind, *columns, weight, is_relative)
    _check_rows(rows)
    is_large = kind != "binary" or min(rows.target.sum(), (1 - rows.target).sum()) >= ISOTONIC_LEAST
    calibrators = _calibrators(kind, rows.target, calibration, is_large)
    order, num_distinct = _order(rows)
    rows = rows.at(order)
    folds = selection.folds_of(rows.group, num_folds, is_forward)

    combiners, eligible = _combiners(kind, combiner, is_large and not only_safe, num_distinct, compare)
    compare_methods = functools.partial(_compare, rows, folds, is_forward)
    method, cross_fitted, _, methods = compare_methods(combiners, calibrators[:1], 0, eligible)
    named_calibrators = calibration.split(",")
    if calibration != AUTO and not compare:
        calibrators = named_calibrators
    eligible = calibrators if calibration == AUTO else named_calibrators
    calibrator, cross_fitted_calibrators, calibrated, _ = compare_methods([method], calibrators, 1, eligible)
    by_method = {method: calibrated}
    for other in sorted(set(methods) - {method}):  # the combiner of a block is chosen without that block
        by_method[other] = compare_methods([other], calibrators, 1, eligible)[2]
    prediction = selection.auto_predictions(by_method, methods, folds)
    predicted = np.full((num_rows, *prediction.shape[1:]), np.nan)
    predicted[np.arange(num_rows)[counted][order]] = to_predictions(kind, prediction)
    ensemble = Ensemble(
        kind=kind,
        loss=rows.loss,
        member_names=tuple(member_names),
        outputs=outputs,
        method=method,
        calibrator=calibrator,
        combination=fit_combinations(rows, [method], [calibrator])[method, calibrator],
        cross_fitted=cross_fitted,
        cross_fitted_calibrators=cross_fitted_calibrators,
        num_folds=len(folds),
    )
    return ensemble, predicted


def _compare(
    rows: Rows,
    folds: list[selection.Fold],
    is_forward: bool,
    combiners: Sequence[str],
    calibrators: Sequence[str],
    key: int,
    eligible: Sequence[str],
) -> tuple[str, dict[str, dict[str, float]], np.ndarray, list[str]]:
    """Compare combiners (`key` 0) or calibrators (`key` 1), of which the first eligible one is the default.

    Returns the chosen method, the cross-fitted scores of each method and of the choice (auto), the cross-fitted predictions
    of the choice, and the method chosen for each block.
    """
    by_names = selection.cross_fitted_predictions(rows, combiners, calibrators, folds)
    predictions = {names[key]: values for names, values in by_names.items()}
    losses = selection.losses_by_fold(rows, {name: predictions[name] for name in eligible}, folds)
    chosen = selection.chosen_by_fold(losses, eligible[0], is_forward)
    predictions[AUTO] = selection.auto_predictions(predictions, chosen, folds)
    scores = {name: selection.scores(rows, values) for name, values in predictions.items()}
    return selection.choose(losses, eligible[0]), scores, predictions[AUTO], chosen


def _combiners(kind: str, combiner: str, is_free: bool, num_distinct: int, compare: bool) -> tuple[list[str], list[str]]:
    """The combiners to score, and those of them that may be chosen, the default first; `UserError` for an unknown one."""
    names = combiner_names(kind, combiner)
    if num_distinct == 1:  # with one member there is nothing to compare
        return [EQUAL], [EQUAL]
    every = list(COMBINERS[kind])
    if combiner == AUTO:
        return every, every if is_free else [name for name in every if name in SAFE]
    return every if compare else list(dict.fromkeys((EQUAL, "best_member", *names))), names


def combiner_names(kind: str, combiner: str) -> list[str]:
    """The names in the setting `combiner`; `UserError` for one that the kind of task does not have."""
    names = _names("combiner", combiner)
    for name in names if combiner != AUTO else ():
        if name not in COMBINERS[kind]:
            raise UserError(
                f"there is no combiner '{name}' for {kind} targets: choose one of {AUTO}, {', '.join(COMBINERS[kind])}"
            )
    return names


def calibrator_names(kind: str, calibration: str) -> list[str]:
    """The names in the setting `calibration`; `UserError` for one that the kind of task does not have."""
    if not CALIBRATORS[kind] and calibration != AUTO:
        predicted = "values" if kind == "regression" else "scores"
        raise UserError(
            f"calibration={calibration} is for probabilities, and these members give {predicted}: set calibration={AUTO}"
        )
    names = _names("calibration", calibration)
    for name in names if calibration != AUTO else ():
        if name not in (NONE, *CALIBRATORS[kind]):
            raise UserError(
                f"there is no calibration '{name}': choose one of {AUTO}, {NONE}, {', '.join(CALIBRATORS[kind])}"
            )
    return names


def _names(setting: str, value: str) -> list[str]:
    """The names in the value of a setting."""
    names = value.split(",")
    if AUTO in names and len(names) > 1:
        raise UserError(
            f"{setting}={value} combines {AUTO}, which compares all, with other names: write {AUTO} alone, or leave it out"
        )
    return names


def counted_rows(weight: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | slice]:
    """The weights above 0, divided by their mean, and an index of their rows; None and all rows without weights."""
    if weight is None:
        return None, slice(None)
    counted = np.flatnonzero(np.asarray(weight) > 0)
    return relative_weights(np.asarray(weight)[counted]), counted


def _check_outputs(kind: str, member_names: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise `UserError` for an output that does not fit the kind of task."""
    for name, output in zip(member_names, outputs, strict=True):
        if output not in OUTPUTS_OF[kind]:
            raise UserError(
                f"member '{name}' has output {output}, but a {kind} task needs {' or '.join(OUTPUTS_OF[kind])}: leave it "
                "out, or train it on this task"
            )


def member_inputs(predictions: np.ndarray, member_names: Sequence[str], outputs: Sequence[str]) -> np.ndarray:
    """Convert probabilities to logits, and probabilities of classes to logs; scores and values stay as they are.

    Raises `UserError`, with member and row, for NaN, infinite values and invalid probabilities.
    """
    inputs = np.array(predictions, float)
    assert inputs.shape[1:2] == (len(member_names),) == (len(outputs),), "one name per column"
    assert len(set(member_names)) == len(member_names)
    is_probability, is_classes = (np.array(outputs) == output for output in ("probability", "probabilities"))
    assert is_classes.all() if inputs.ndim == 3 else not is_classes.any()
    if inputs.ndim == 3:
        is_valid = (inputs >= 0).all(2) & (np.abs(inputs.sum(2) - 1) <= TOLERANCE)
    else:
        is_near_unit = (inputs >= -ROUNDING) & (inputs <= 1 + ROUNDING)  # `clipped_logit` moves them into the interval
        is_valid = np.where(is_probability, is_near_unit, np.isfinite(inputs))
    invalid = np.argwhere(~is_valid)
    if invalid.size:
        row, member = invalid[0]
        values = ", ".join(f"{value:g}" for value in np.atleast_1d(inputs[row, member])[:5])
        problem = PROBLEMS.get(outputs[member], "is not a number")
        raise UserError(
            f"member '{member_names[member]}' predicts {values} in row {row}, which {problem}: "
            "look at its training log, and predict again"
        )
    if inputs.ndim == 3:
        return clipped_log(inputs)
    inputs[:, is_probability] = clipped_logit(inputs[:, is_probability])
    return inputs


def check_binary_target(target: np.ndarray) -> None:
    """Raise `UserError` for targets other than 0 and 1, or that are all equal."""
    sentence = "the combiner is fitted on targets of 0 and 1, but one is {1:g}: check the recipe and the split"
    refuse(~np.isin(target, (0, 1)), target, sentence)
    if target.all() or not target.any():
        kind = "positive" if not target.any() else "negative"
        raise UserError(f"none of the {len(target)} rows that weights are fitted on is {kind}: prepare more rows")


def _check_rows(rows: Rows) -> None:
    """Raise `UserError` for targets that do not fit the kind of task, for targets that are all equal (except in a
    regression), and for rows of a single group."""
    kind, target, group = rows.kind, rows.target, rows.group
    if kind == "binary":
        check_binary_target(target)
    refuse(~np.isfinite(target), target, "the target of row {} that weights are fitted on is not a number: check the split")
    if kind == "multiclass":
        num_classes = rows.inputs.shape[2]
        sentence = f"there are {num_classes} classes, from 0, but a target is {{1:g}}: check the task and the split"
        refuse(~np.isin(target, np.arange(num_classes)), target, sentence)
    if kind == "ranking" and (target < 0).any():
        raise UserError(f"a relevance is 0 or more, but one is {target.min():g}: check the task and the split")
    if kind == "ranking" and target.max() > MAX_RELEVANCE:
        raise UserError(f"a relevance is at most {MAX_RELEVANCE}, but one is {target.max():g}: give grades instead")
    if kind in ("multiclass", "ranking") and target.min() == target.max():
        raise UserError(
            f"all {len(target)} rows that weights are fitted on have the target {target[0]:g}: prepare more rows"
        )
    if group.min() == group.max():
        raise UserError(
            f"all rows that weights are fitted on are of one group ({group[0]}), such as one week, but weights are chosen "
            "on groups that they were not fitted on: prepare at least 2 groups"
        )


def _order(rows: Rows) -> tuple[np.ndarray, int]:
    """An order of the rows, and the number of distinct members.

    The order is the same for any order of the given rows and members, so that sums have the same last bits.
    """
    distinct, _ = distinct_members(rows.inputs)
    last_key = [] if rows.weight is None else [rows.weight]
    order = np.lexsort((*last_key, *np.sort(distinct, axis=1).reshape(len(distinct), -1).T, rows.target, rows.group))
    return order, distinct.shape[1]


def _calibrators(kind: str, target: np.ndarray, calibration: str, is_large: bool) -> list[str]:
    """The calibrators that can be fitted to these targets, the default first; [""] for a kind of task without calibration.

    Raises `UserError` for a calibrator that is unknown, does not fit the kind, or needs more rows.
    """
    names = calibrator_names(kind, calibration)
    if not CALIBRATORS[kind]:
        return [""]
    if calibration == NONE:
        return [NONE]
    if "isotonic" in names and not is_large:
        num_rarer = int(min(target.sum(), (1 - target).sum()))
        raise UserError(
            f"calibration=isotonic needs {ISOTONIC_LEAST:,} rows of the rarer class, and there are {num_rarer:,}: "
            "use calibration=platt, or prepare more rows"
        )
    available = [name for name in CALIBRATORS[kind] if is_large or name != "isotonic"]
    return [*available, NONE] if NONE in names else available
