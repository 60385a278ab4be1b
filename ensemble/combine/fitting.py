"""The ensemble: fitted on blend, and asked for forecasts.

The steps, each monotone in every member as long as its weight is not negative:

1. Each member's logit (of its probability, clipped to 1e-6 from 0 and 1) is Platt scaled: slope ≥ 0 and intercept. Members
   trained with focal loss, class weights or too long speak on different scales; after this step their weights compare. Of a
   member that says scores the rank among blend's rows takes the logit's place.
2. The scaled logits are averaged, with weights that one of `weights.COMBINERS` finds.
3. The average is calibrated once more, by one of `scales.CALIBRATORS`.

So much for a binary task. Of a multiclass one the logs of the probabilities take the logits' place, with a temperature for
each member. Values of a regression are averaged as they are. Scores of a ranking are averaged less their group's mean and by
its spread, or by their ranks in it, so that each group and each member speaks on one scale; nothing is calibrated.

`combiner=auto` compares all combiners block by block inside blend (selection.py) and takes the best of them only if it beats
equal weights by more than half a standard error: fitted weights that are hardly better on blend are worse on test more often
than not (CONTRIBUTING has the figures). With fewer than 1,000 rows of the rarer class only weights that are ≥ 0 and sum to 1
are taken, and no isotonic calibration. `calibration=none` leaves out the steps 1 and 3. `calibration=auto` does the same
among the calibrators: Platt's is the default of a binary task, temperature that of a multiclass one.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ensemble.combine import selection
from ensemble.combine.combination import Combination, answer_of, distinct_members, fit_combinations
from ensemble.combine.losses import expit, log_of, logit_of
from ensemble.combine.scales import CALIBRATORS, ISOTONIC_LEAST, NONE
from ensemble.combine.selection import AUTO
from ensemble.combine.weights import COMBINERS, EQUAL, SAFE
from ensemble.errors import UserError
from ensemble.metrics import relative
from ensemble.predictions import OUTPUTS, TOLERANCE

OUTPUTS_OF = {
    "binary": ("probability", "score"),
    "multiclass": ("probabilities",),
    "regression": ("value",),
    "ranking": ("score", "value", "probability"),
}
"""By kind of task, what a member may say, its native output first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """A fitted combiner; `to_dict` and `from_dict` carry it through JSON without the loss of a bit."""

    kind: str
    """Of the task: binary, multiclass, regression or ranking."""
    member_names: tuple[str, ...]
    """In the order of the weights."""
    outputs: tuple[str, ...]
    """What each member says, of `OUTPUTS_OF` the kind."""
    method: str
    """The combiner, a key of `weights.COMBINERS[kind]`."""
    calibrator: str
    """A key of `scales.CALIBRATORS[kind]`; empty for values and for scores of a ranking."""
    combination: Combination
    """Scales, weights and calibration, fitted to all of blend."""
    cross_fitted: dict[str, dict[str, float]]
    """What each combiner, and choosing among them (auto), would have given on blocks after those that it was fitted on."""
    cross_fitted_calibrators: dict[str, dict[str, float]]
    """The same for the calibrators, with the combiner that was taken."""
    num_folds: int
    """Blocks that were forecast for that."""

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the members, in their order."""
        return self.combination.weights

    def predict(self, predictions: np.ndarray, member_names: Sequence[str], group: np.ndarray | None = None) -> np.ndarray:
        """The ensemble's probabilities, values or scores, shape (num_rows,); of classes (num_rows, num_classes).

        predictions: shape (num_rows, num_members), of classes (num_rows, num_members, num_classes); `member_names` names the
        members, in any order. group: (num_rows,), needed for a ranking, whose rows are compared within it. A member that is
        missing is warned of, and the others' weights grow to make up for it. Raises `UserError` for a member that was not
        there in `fit`, when none of those that are there has weight, and for NaN and what is no probability.
        """
        for name in member_names:
            if name not in self.member_names:
                raise UserError(f"member '{name}' was not there when the ensemble was fitted: leave it out, or fit again")
        there = self.of(member_names)
        columns = [list(member_names).index(name) for name in there.member_names]
        inputs = inputs_of(np.asarray(predictions)[:, columns], there.member_names, there.outputs)
        return answer_of(self.kind, there.combination(inputs, group))

    def probabilities(self, name: str, prediction: np.ndarray) -> np.ndarray:
        """One member's own forecast, of the shape of `prediction`: as it is, but of a binary task a score as the probability
        that its rank had on blend."""
        position = self.member_names.index(name)
        if self.kind == "binary" and self.outputs[position] == "score":
            return expit(self.combination.scales[position](prediction))
        return prediction

    def of(self, member_names: Sequence[str]) -> "Ensemble":
        """The ensemble of those members that are named, with a warning for each that is not; see `predict`."""
        missing = [name for name in self.member_names if name not in member_names]
        if not missing:
            return self
        present = [position for position, name in enumerate(self.member_names) if name in member_names]
        if not sum(self.weights[position] for position in present) > 0:
            raise UserError(f"without {', '.join(missing)} no member of the ensemble has weight: predict with them too")
        sentence = f"{', '.join(missing)} of the ensemble is missing: the others' weights make up for it"
        print(f"warning: {sentence}", file=sys.stderr)
        return dataclasses.replace(
            self,
            member_names=tuple(self.member_names[position] for position in present),
            outputs=tuple(self.outputs[position] for position in present),
            combination=self.combination.of(present),
        )

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
        try:
            combination = Combination.from_dict(content["combination"])
        except (KeyError, TypeError) as error:
            raise UserError(f"the combination of this ensemble is damaged ({error}): fit it again") from None
        named = {name: tuple(content[name]) for name in ("member_names", "outputs")}
        return cls(**{**content, **named, "combination": combination})


def fit(
    target: np.ndarray,
    predictions: np.ndarray,
    group: np.ndarray,
    member_names: Sequence[str],
    *,
    kind: str = "binary",
    outputs: Sequence[str] = (),
    combiner: str = AUTO,
    calibration: str = AUTO,
    num_folds: int = 5,
    weight: np.ndarray | None = None,
    is_forward: bool = True,
) -> Ensemble:
    """The ensemble of `fit_with_forecasts`."""
    return fit_with_forecasts(
        target,
        predictions,
        group,
        member_names,
        kind=kind,
        outputs=outputs,
        combiner=combiner,
        calibration=calibration,
        num_folds=num_folds,
        weight=weight,
        is_forward=is_forward,
    )[0]


def fit_with_forecasts(
    target: np.ndarray,
    predictions: np.ndarray,
    group: np.ndarray,
    member_names: Sequence[str],
    *,
    kind: str,
    outputs: Sequence[str],
    combiner: str,
    calibration: str,
    num_folds: int = 5,
    weight: np.ndarray | None,
    is_forward: bool,
    compare: bool = True,
) -> tuple[Ensemble, np.ndarray]:
    """Fit the combiner as the module's docstring says. Nothing in it is drawn at random.

    compare: whether ways that are named by `combiner` and `calibration` are still compared with all others.

    The second result is the forecast of each row by weights and calibration that were fitted on other blocks of groups, on
    blocks before it if `is_forward`: (num_rows,), of classes (num_rows, num_classes); NaN for rows that have none.

    target: shape (num_rows,), 0 or 1, the number of a class, a number, or a relevance. predictions: shape (num_rows,
    num_members), of classes (num_rows, num_members, num_classes). group: shape (num_rows,), the week as a number that grows
    with time, or what is ranked together. kind: of the task. outputs: what each member says, if empty what is native to the
    kind. With fewer weeks than `num_folds` + 1, each week but the first is a fold. weight: shape (num_rows,), how much each
    row counts, 0 for not at all; None for 1 each.

    Raises `UserError` for NaN (naming member and row), for predictions that are no probabilities, for targets that are none
    of the kind's or all alike, for a blend of one week, and for a combiner or calibrator that is unknown or needs more rows.
    """
    outputs = tuple(outputs) or OUTPUTS_OF[kind][:1] * len(member_names)
    _check_outputs(kind, member_names, outputs)
    target, group = np.asarray(target, float), np.asarray(group)
    inputs = inputs_of(predictions, member_names, outputs)
    assert target.shape == group.shape == inputs.shape[:1]
    num_rows = len(target)
    weight, counted = counted_rows(weight)
    target, group, inputs = target[counted], group[counted], inputs[counted]
    _check_target(kind, target, inputs)
    if group.min() == group.max():
        raise UserError(
            f"all rows of the blend split are of one group ({group[0]}), such as one week, but weights are chosen on groups "
            "that they were not fitted on: give blend at least 2"
        )
    is_large = kind != "binary" or min(target.sum(), (1 - target).sum()) >= ISOTONIC_LEAST
    calibrators = _calibrators(kind, target, calibration, is_large)
    if combiner not in (AUTO, *COMBINERS[kind]):
        raise UserError(f"there is no combiner '{combiner}' for {kind} targets: name {AUTO}, {', '.join(COMBINERS[kind])}")

    # In an order that neither the rows' nor the members' decides: sums have the same last bits, whatever comes first.
    distinct, _ = distinct_members(inputs)
    last = [] if weight is None else [weight]
    rows = np.lexsort((*last, *np.sort(distinct, axis=1).reshape(len(target), -1).T, target, group))
    target, group, inputs = target[rows], group[rows], inputs[rows]
    weight = None if weight is None else weight[rows]
    is_score = np.array(outputs) == "score"
    folds = selection.folds_of(group, num_folds, is_forward)

    def fit_ways(
        combiners: Sequence[str], calibrators: Sequence[str], of_name: int
    ) -> Callable[[np.ndarray], dict[str, Combination]]:
        ways = [(one, other) for one in combiners for other in calibrators]

        def fit_rows(rows: np.ndarray) -> dict[str, Combination]:
            of_rows = None if weight is None else weight[rows]
            found = fit_combinations(kind, ways, target[rows], inputs[rows], is_score, group[rows], of_rows)
            return {way[of_name]: combination for way, combination in found.items()}

        return fit_rows

    combiners = list(COMBINERS[kind]) if distinct.shape[1] > 1 else [EQUAL]  # one member has nothing to be weighed against
    if combiner != AUTO and len(combiners) > 1 and not compare:
        combiners = list(dict.fromkeys((EQUAL, "best_member", combiner)))
    if combiner != AUTO and len(combiners) > 1:
        eligible: Sequence[str] = (combiner,)
    else:
        eligible = combiners if is_large else [name for name in combiners if name in SAFE]
    first = fit_ways(combiners, calibrators[:1], 0)
    rest = (target, inputs, group, folds, weight, is_forward)
    method, cross_fitted, _, methods = _compare(kind, first, eligible, *rest)
    if calibration != AUTO and not compare:
        calibrators = [calibration]
    second = fit_ways([method], calibrators, 1)
    eligible = calibrators if calibration == AUTO else (calibration,)
    calibrator, cross_fitted_calibrators, forecast, _ = _compare(kind, second, eligible, *rest)
    for other in sorted(set(methods) - {method}):  # the blocks for which other blocks choose another way
        of_other = _compare(kind, fit_ways([other], calibrators, 1), eligible, *rest)[2]
        for (_, held), chosen in zip(folds, methods, strict=True):
            if chosen == other:
                forecast[held] = of_other[held]
    forecasts = np.full((num_rows, *forecast.shape[1:]), np.nan)
    forecasts[np.arange(num_rows)[counted][rows]] = answer_of(kind, forecast)
    ensemble = Ensemble(
        kind=kind,
        member_names=tuple(member_names),
        outputs=outputs,
        method=method,
        calibrator=calibrator,
        combination=second(np.ones(len(target), bool))[calibrator],
        cross_fitted=cross_fitted,
        cross_fitted_calibrators=cross_fitted_calibrators,
        num_folds=len(folds),
    )
    return ensemble, forecasts


def counted_rows(weight: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | slice]:
    """The weights of the rows that count, with mean 1, and which rows those are; all of them without weights."""
    if weight is None:
        return None, slice(None)
    counted = np.flatnonzero(np.asarray(weight) > 0)
    return relative(np.asarray(weight)[counted]), counted


def _check_outputs(kind: str, member_names: Sequence[str], outputs: Sequence[str]) -> None:
    """`UserError` for a member that says what no task knows, or what is no answer to this one."""
    for name, output in zip(member_names, outputs, strict=True):
        if output not in OUTPUTS:
            raise UserError(f"a member says '{output}', but the ensemble knows {', '.join(OUTPUTS)}: name one of them")
        if output not in OUTPUTS_OF[kind]:
            raise UserError(
                f"member '{name}' says {output}, but a {kind} task is answered by {' or '.join(OUTPUTS_OF[kind])}: leave it "
                "out, or train it on this task"
            )


def inputs_of(predictions: np.ndarray, member_names: Sequence[str], outputs: Sequence[str]) -> np.ndarray:
    """Logits of probabilities, logs of those of classes; scores and values as they are; in the shape of `predictions`.

    Raises `UserError`, with member and row, for NaN and what is no probability.
    """
    inputs = np.array(predictions, float)
    assert inputs.shape[1:2] == (len(member_names),) == (len(outputs),), "one name per column"
    assert len(set(member_names)) == len(member_names)
    is_probability, is_classes = (np.array(outputs) == output for output in ("probability", "probabilities"))
    assert is_classes.all() if inputs.ndim == 3 else not is_classes.any()
    if inputs.ndim == 3:
        fine = (inputs >= 0).all(2) & (np.abs(inputs.sum(2) - 1) <= TOLERANCE)
    else:
        fine = np.where(is_probability, (inputs >= 0) & (inputs <= 1), np.isfinite(inputs))
    bad = np.argwhere(~fine)
    if bad.size:
        row, member = bad[0]
        said = ", ".join(f"{value:g}" for value in np.atleast_1d(inputs[row, member])[:5])
        if inputs.ndim == 3:
            what = "are no probabilities with sum 1"
        else:
            what = "is no probability" if is_probability[member] else "is no number"
        raise UserError(
            f"member '{member_names[member]}' predicts {said} in row {row}, which {what}: "
            "look at its training log, and predict again"
        )
    if inputs.ndim == 3:
        return log_of(inputs)
    inputs[:, is_probability] = logit_of(inputs[:, is_probability])
    return inputs


def check_binary_target(target: np.ndarray) -> None:
    """Raise `UserError` for targets that are not 0 or 1, or all alike."""
    if not np.isin(target, (0, 1)).all():
        wrong = target[~np.isin(target, (0, 1))][0]
        raise UserError(
            f"the combiner is fitted on targets of 0 and 1, but blend has {wrong:g}: check the recipe and the split"
        )
    if target.all() or not target.any():
        kind = "positive" if not target.any() else "negative"
        raise UserError(f"not one of the {len(target)} rows of blend is {kind}: give blend more rows")


def _check_target(kind: str, target: np.ndarray, inputs: np.ndarray) -> None:
    if kind == "binary":
        return check_binary_target(target)
    if not np.isfinite(target).all():
        raise UserError(
            f"the target of row {np.flatnonzero(~np.isfinite(target))[0]} of blend is no number: check the split"
        )
    if kind == "multiclass" and not np.isin(target, np.arange(inputs.shape[2])).all():
        wrong = target[~np.isin(target, np.arange(inputs.shape[2]))][0]
        raise UserError(
            f"there are {inputs.shape[2]} classes, from 0, but blend has {wrong:g}: check the task and the split"
        )
    if kind == "ranking" and (target < 0).any():
        raise UserError(f"a relevance is 0 or more, but blend has {target.min():g}: check the task and the split")
    if kind in ("multiclass", "ranking") and target.min() == target.max():
        raise UserError(
            f"all {len(target)} rows of blend have the target {target[0]:g}, which tells no weights apart: give it more rows"
        )


def _calibrators(kind: str, target: np.ndarray, calibration: str, is_large: bool) -> list[str]:
    """The names of those that can be fitted to these targets, the default first."""
    if not CALIBRATORS[kind]:
        if calibration != AUTO:
            what = "values" if kind == "regression" else "scores"
            raise UserError(f"calibration={calibration} is of probabilities, and these members say {what}: leave it {AUTO}")
        return [""]
    if calibration not in (AUTO, NONE, *CALIBRATORS[kind]):
        raise UserError(f"there is no calibration '{calibration}': name {AUTO}, {NONE}, {', '.join(CALIBRATORS[kind])}")
    if calibration == NONE:
        return [NONE]
    if calibration == "isotonic" and not is_large:
        rarer = int(min(target.sum(), (1 - target).sum()))
        raise UserError(
            f"calibration=isotonic needs {ISOTONIC_LEAST:,} rows of the rarer class, and blend has {rarer:,}: "
            "use calibration=platt, or give blend more rows"
        )
    return [name for name in CALIBRATORS[kind] if is_large or name != "isotonic"]


def _compare(
    kind: str,
    fit_ways: Callable[[np.ndarray], dict[str, Combination]],
    eligible: Sequence[str],
    target: np.ndarray,
    inputs: np.ndarray,
    group: np.ndarray,
    folds: list[selection.Fold],
    weight: np.ndarray | None,
    is_forward: bool,
) -> tuple[str, dict[str, dict[str, float]], np.ndarray, list[str]]:
    """The way to take, of which the first eligible is the default, what each way and choosing would have given, what
    choosing forecasts, and the way that is chosen for each block."""
    forecasts = selection.forward_forecasts(fit_ways, inputs, folds, group)
    losses = {name: selection.losses_by_fold(kind, target, forecasts[name], folds, group, weight) for name in eligible}
    forecasts[AUTO] = selection.auto_forecast(losses, forecasts, eligible[0], folds, is_forward)
    scores = {name: selection.scores(kind, target, forecast, group, weight) for name, forecast in forecasts.items()}
    chosen = selection.chosen_by_fold(losses, eligible[0], is_forward)
    return selection.choose(losses, eligible[0]), scores, forecasts[AUTO], chosen
