"""What trees learn from prepared data, and how they are scored on validation.

`objective_of` combines the settings with the task of the data. Trees may learn another column than the task's target, or
another kind of objective: for example the growth as a number, while the target of the task is 0 or 1. Later scores
compare predictions with the task's target in any case, and so does early stopping of XGBoost and LightGBM.
"""

import dataclasses
import difflib

import numpy as np
import pyarrow as pa

from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.metrics.blocks import starts_of
from ensemble.metrics.weighting import relative_weights
from ensemble.task import ABSOLUTE_ERROR, KINDS, Task
from ensemble.trees.boosting import Scores
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

OUTPUT_OF = {"binary": "probability", "multiclass": "probabilities", "regression": "value", "ranking": "score"}
"""By kind of task, the output of a member that learned the task's own target with its own objective."""
LOSSES = (*KINDS, ABSOLUTE_ERROR)
"""The losses that trees minimise: that of each kind of task, and the absolute error of a regression."""
ORDER_METRICS = ("average_precision", "roc_auc", "ndcg_at_10")
"""Metrics that depend on the order of the predictions only, so they apply to scores on any scale."""
MIN_LEAF_WEIGHT, LEAST_LEAVES = {"binary": 10.0, "regression": 10.0, "multiclass": 1.0, "ranking": 10.0}, 20
"""The default of `config.min_leaf_weight` by objective, and the number of leaves that it must allow with a binary one."""
NUM_GRADES = 31
"""XGBoost and LightGBM accept a relevance from 0 to 30, with gains of 2^relevance − 1."""


def from_raw(output: str, raw: np.ndarray) -> np.ndarray:
    """Probabilities from log odds (n,), or from values before the softmax (n, K); the raw values of other outputs."""
    if output == "probability":
        return 1 / (1 + np.exp(-raw))
    if output == "probabilities":
        from scipy.special import softmax

        return softmax(raw, axis=1)
    return raw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What is learned, and by which metric training stops early; made by `objective_of`."""

    task: Task
    kind: str
    """binary, regression, multiclass or ranking."""
    loss: str
    """The name of the loss: the kind, or `task.ABSOLUTE_ERROR`, with which extra_trees and linear still minimise the squared
    error."""
    target: str
    """The column that is learned."""
    metric: str
    output: str
    """What predictions are: probability, probabilities, value, or score, of which only the order has a meaning."""
    monotone: tuple[int, ...]
    """1, -1 or 0 for each feature; empty if none is constrained."""
    scaling: Scaling
    """How a regression target is standardised; the identity for other objectives."""

    @property
    def num_classes(self) -> int:
        """The number of classes of a multiclass objective; 1 for others."""
        return len(self.task.classes) if self.kind == "multiclass" else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Rows with the target that is learned; for rows that are only predicted, the other fields are None."""

    rows: TreeData
    target: np.ndarray | None = None
    """(num_rows,) float32."""
    weight: np.ndarray | None = None
    """(num_rows,) float32, relative to `mean_weight`; None for 1 each. Rows of a group of a ranking share their mean."""
    group_sizes: np.ndarray | None = None
    """(num_groups,), for a ranking: the numbers of rows of consecutive groups."""


def objective_of(config: TreesConfig, rows: TreeData) -> Objective:
    """The objective of the settings for data like `rows`; `UserError` for invalid settings, or settings that do not fit."""
    task = rows.task
    loss, target, metric = config.objective or task.loss, config.target or task.target, config.metric or task.metric
    if loss not in LOSSES:
        raise UserError(f"objective={loss} is unknown: choose {', '.join(LOSSES)}, or leave it empty for the task's own")
    kind = "regression" if loss == ABSOLUTE_ERROR else loss
    features = set(rows.features)  # of which there may be thousands
    columns = [
        field.name
        for field in rows.table.schema
        if field.name not in features and (pa.types.is_floating(field.type) or field.name == task.target)
    ]
    if target not in columns:
        raise UserError(f"target={target} is not a column that can be learned: {_suggestion(target, columns)}")
    if metric not in METRIC_FUNCTIONS or task.kind not in METRIC_FUNCTIONS[metric].kinds:
        fitting = ", ".join(name for name, function in METRIC_FUNCTIONS.items() if task.kind in function.kinds)
        raise UserError(f"metric={metric} does not score a {task.kind} task: choose {fitting}")
    output = OUTPUT_OF[task.kind]
    if (kind, target) != (task.kind, task.target):
        needs_order_only = task.kind in ("binary", "ranking")
        if kind == "multiclass" or not needs_order_only:
            raise UserError(
                f"objective={loss} target={target} gives no {output} of {task.target}, which is what this {task.kind} "
                f"task needs: leave both out{', or choose regression or ranking' if needs_order_only else ''}"
            )
        output = "score"
        if metric not in ORDER_METRICS:
            fitting = ", ".join(name for name in ORDER_METRICS if task.kind in METRIC_FUNCTIONS[name].kinds)
            raise UserError(
                f"metric={metric} scores a {OUTPUT_OF[task.kind]}, and objective={loss} target={target} gives scores, "
                f"of which only the order has a meaning: choose {fitting}"
            )
    if kind == "multiclass" and len(task.classes) < 2:
        raise UserError("the data's task is multiclass and names fewer than two classes: prepare the data with all classes")
    return Objective(
        task=task,
        kind=kind,
        loss=loss,
        target=target,
        metric=metric,
        output=output,
        monotone=_monotone(config, rows, kind, loss),
        scaling=_scaling(rows, target) if kind == "regression" else Scaling(),
    )


def _scaling(rows: TreeData, target: str) -> Scaling:
    """The scaling by the rows of all ranks, so that all ranks use the same; after `TreeData.take`, by those rows only."""
    values = rows.column_of_all(target).astype(np.float64)
    return Scaling.fit(values[are_learned(rows, target) & np.isfinite(values)])


def are_learned(rows: TreeData, target: str) -> np.ndarray:
    """Which rows of all ranks have a target and a weight above 0: bool, (num_rows,)."""
    has_target = ~np.isnan(rows.column_of_all(target).astype(np.float64))
    return has_target & (rows.column_of_all(rows.task.weight) > 0) if rows.task.weight else has_target


def mean_weight(rows: TreeData, target: str) -> float:
    """The mean weight of the learned rows of all ranks; weights relative to it do not depend on their unit."""
    if not rows.task.weight:
        return 1.0
    learned = rows.column_of_all(rows.task.weight)[are_learned(rows, target)]
    return float(learned.mean(dtype=np.float64)) if learned.size else 1.0


def _monotone(config: TreesConfig, rows: TreeData, kind: str, loss: str) -> tuple[int, ...]:
    if not config.monotone:
        return ()
    if kind == "multiclass":
        raise UserError("monotone= is not possible with several classes, whose probabilities cannot all rise: leave it out")
    if loss == ABSOLUTE_ERROR:  # the libraries replace the values of leaves by medians after the splits were constrained
        raise UserError(
            "monotone= is not possible with the absolute error: add objective=regression, or leave monotone= out"
        )
    for name, sign in config.monotone.items():
        if name not in rows.features:
            raise UserError(f"monotone names the feature {name}, which does not exist: {_suggestion(name, rows.features)}")
        if sign not in (1, -1):
            raise UserError(
                f"monotone has {name}: {sign}: write 1 if the prediction may only rise with it, -1 if it may only fall"
            )
        if name in rows.categories:
            raise UserError(f"monotone names {name}, whose values are categories without an order: leave it out")
    return tuple(config.monotone.get(name, 0) for name in rows.features)


def _suggestion(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"


def dataset_of(objective: Objective, rows: TreeData) -> Dataset:
    """The rows to learn: those with a target and a weight above 0, for a ranking sorted by group.

    In a ranking, a target that is not a relevance, such as growth, is converted to `NUM_GRADES` grades: 31 × the number of
    lower values in the group ÷ the number of rows in the group, rounded down, so equal values have the same grade. Raises
    `UserError` for values that the objective cannot learn, and for invalid weights and categories.
    """
    task = objective.task
    target = rows.column(objective.target).astype(np.float64)
    weight = _weights(rows) / np.float32(mean_weight(rows, objective.target)) if task.weight else None
    _check_categories(rows)
    is_learned = ~np.isnan(target) if weight is None else ~np.isnan(target) & (weight > 0)
    if not is_learned.any():
        weight_above_0 = f" and a {task.weight} above 0" if task.weight else ""
        raise UserError(f"no training row has a value of {objective.target}{weight_above_0}: correct the prepared data")
    order, group_sizes = np.flatnonzero(is_learned), None
    if objective.kind == "ranking":
        group = rows.column(task.group)[order]
        order = order[np.argsort(group, kind="stable")]
        _, group_sizes = np.unique(group, return_counts=True)
    if group_sizes is not None or not is_learned.all():
        rows, target = rows.take(order), target[order]
        weight = None if weight is None else weight[order]
    if group_sizes is not None:
        target = _relevance(objective, target, group_sizes)
        if weight is not None:
            starts = np.cumsum(group_sizes) - group_sizes
            weight = np.repeat((np.add.reduceat(weight, starts) / group_sizes).astype(np.float32), group_sizes)
    else:
        _check_target(objective, target)
    return Dataset(rows=rows, target=objective.scaling.learned(target), weight=weight, group_sizes=group_sizes)


def _check_target(objective: Objective, target: np.ndarray) -> None:
    fix = "correct the prepared data"
    if objective.kind == "regression":
        is_valid, rule = np.isfinite(target), "finite"
    elif objective.kind == "binary":
        is_valid, rule, fix = (target == 0) | (target == 1), "0 or 1", "choose objective=regression or ranking"
    else:
        is_valid, rule = _is_number_below(objective.num_classes, target), f"a class, 0 to {objective.num_classes - 1}"
    _check(objective.target, target, is_valid, f"{rule} for objective={objective.kind}: {fix}")


def _check(name: str, values: np.ndarray, is_valid: np.ndarray, rule_and_fix: str) -> None:
    """Raise `UserError` with the first value that is not valid."""
    if not is_valid.all():
        raise UserError(f"{name} is {values[~is_valid][0]:g}, but must be {rule_and_fix}")


def _is_number_below(end: int, values: np.ndarray) -> np.ndarray:
    return (values >= 0) & (values < end) & (values == np.floor(values))  # inf % 1 would print a warning


def _relevance(objective: Objective, target: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    is_relevance = _is_number_below(NUM_GRADES, target)
    if objective.target == objective.task.target and objective.task.kind == "ranking":
        rule = f"a relevance, a whole number from 0 to {NUM_GRADES - 1}: correct the prepared data"
        _check(objective.target, target, is_relevance, rule)
    return target if is_relevance.all() else grades(target, group_sizes)


def grades(values: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """The grade of each value within its group, (num_rows,) float32; the rows of a group are consecutive."""
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    order = np.lexsort((values, group))
    starts = starts_of(values[order], group)
    first_equal = np.repeat(starts, np.diff(np.append(starts, len(order))))
    num_lower = first_equal - (np.cumsum(group_sizes) - group_sizes)[group]
    result = np.empty(len(values), np.float32)
    result[order] = NUM_GRADES * num_lower // group_sizes[group]
    return result


def _weights(rows: TreeData) -> np.ndarray:
    weight = rows.column(rows.task.weight).astype(np.float32)
    _check(f"the weight {rows.task.weight}", weight, np.isfinite(weight) & (weight >= 0), "0 or more: correct the data")
    return weight


def _check_categories(rows: TreeData) -> None:
    for name, num_categories in rows.categories.items():
        codes = rows.column(name)
        rule = f"the number of a category, 0 to {num_categories - 1}, or NaN: correct the prepared data"
        _check(f"the feature {name}", codes, np.isnan(codes) | _is_number_below(num_categories, codes), rule)


def default_min_leaf_weight(library: str, objective: Objective, rows: TreeData) -> float:
    """The default of `config.min_leaf_weight` for the training rows.

    It is smaller for few rows of the rarer class, and for LightGBM with few groups of a ranking. LightGBM's second
    derivatives of a group sum to a few units, however many rows it has: otherwise no leaf would reach the default, and all
    rows would have the same prediction. NDCG@10 of 30 trees on new groups, 12 groups of 300 rows and 4 of 5,000: .70 and .91
    with a tenth of the number of groups, .58 and .19 with 10.
    """
    default = MIN_LEAF_WEIGHT[objective.kind]
    if objective.kind != "binary" and (objective.kind, library) != ("ranking", "lightgbm"):
        return default
    is_learned = are_learned(rows, objective.target)
    if objective.kind == "ranking":
        return min(default, len(np.unique(rows.column_of_all(objective.task.group)[is_learned])) / 10)
    target, weight = rows.column_of_all(objective.target), objective.task.weight
    weights = rows.column_of_all(weight) if weight else np.ones(len(target))
    share = float((weights * target)[is_learned].sum()) / (float(weights[is_learned].sum()) or 1.0)
    return min(default, share * (1 - share) * float(is_learned.sum()) / LEAST_LEAVES)


class ValidationMetrics:
    """Scores predictions of a whole split by `objective.metric`, and probabilities also by the log loss.

    Rows count by their relative weight if the task has weights; otherwise the bits are those of the unweighted scores.
    Raises `UserError` if a target is missing, if a weight is invalid, or if no weight is above 0.
    """

    def __init__(self, objective: Objective, split: TreeData):
        self._target, self._group = split.column(objective.task.target), split.column(objective.task.group)
        if np.isnan(self._target.astype(np.float64)).any():
            raise UserError(f"a validation row has no {objective.task.target}: prepare the data without such rows")
        self._counted, self._weight = None, None
        if objective.task.weight:
            weight = _weights(split)
            self._counted = np.flatnonzero(weight > 0)
            if not self._counted.size:
                raise UserError(f"no row of the validation split has a {objective.task.weight} above 0: correct the data")
            self._weight = relative_weights(weight[self._counted])
            self._target, self._group = self._target[self._counted], self._group[self._counted]
        self._scaling = objective.scaling
        names = ["log_loss"] if objective.output == "probability" else []
        self._names = list(dict.fromkeys([*names, objective.metric]))

    def __call__(self, prediction: np.ndarray) -> Scores:
        """The scores of probabilities, values or scores (num_rows,), or probabilities of classes (num_rows, num_classes).

        Values are on the scale of the learned target; they are scored in the target's own unit.
        """
        prediction = self._scaling.value(prediction)
        if self._counted is not None:
            prediction = prediction[self._counted]
        rows = (self._target, prediction, self._group, self._weight)
        return {name: METRIC_FUNCTIONS[name].function(*rows) for name in self._names}
