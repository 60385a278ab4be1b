"""What trees learn from prepared data, and how they are judged: the settings and the data's task make a goal.

Trees may learn another column than the task's target, or another kind of answer: growth in numbers, say, where the task asks
for the hot. They stop early by the task's metric on the task's target all the same, and so they are scored later.
"""

import dataclasses
import difflib

import numpy as np
import pyarrow as pa

from ensemble.errors import UserError
from ensemble.metrics import METRIC_OF
from ensemble.metrics.blocks import starts_of
from ensemble.task import KINDS, Task
from ensemble.trees.boosting import Scores
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

OUTPUT_OF = {"binary": "probability", "multiclass": "probabilities", "regression": "value", "ranking": "score"}
"""What a member says that learned a task of this kind itself."""
OF_ORDER = ("average_precision", "roc_auc", "ndcg_at_10")
"""The metrics that any scores can be judged by, since they look only at their order."""
NUM_GRADES = 31
"""Relevance that both libraries take: from 0 to 30, with gains of 2^relevance − 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What `goal_of` made of the settings."""

    task: Task
    """What the data ask for."""
    objective: str
    """What is learned: binary, regression, multiclass or ranking."""
    target: str
    """The column it is learned from."""
    metric: str
    """The metric of early stopping."""
    output: str
    """What predictions will be: probability, probabilities, value, or a score of which the order counts."""
    monotone: tuple[int, ...]
    """For each feature 1, -1 or 0; empty if none is constrained."""
    scaling: Scaling
    """On which a regression target is learned."""

    @property
    def num_classes(self) -> int:
        """Of the objective multiclass; 1 otherwise."""
        return len(self.task.classes) if self.objective == "multiclass" else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """Rows, and what is to be learned from each; the rest is None for rows that are only predicted."""

    rows: TreeData
    target: np.ndarray | None = None
    """(num_rows,) float32."""
    weight: np.ndarray | None = None
    """(num_rows,) float32; None for 1 each. In ranking, the rows of a group share the mean of theirs."""
    group_sizes: np.ndarray | None = None
    """(num_groups,), where groups are ranked: their rows follow each other."""


def goal_of(config: TreesConfig, rows: TreeData) -> Goal:
    """The settings' goal for data like `rows`; `UserError` for what does not exist or does not fit together."""
    task = rows.task
    objective, target, metric = config.objective or task.kind, config.target or task.target, config.metric or task.metric
    if objective not in KINDS:
        raise UserError(f"objective={objective} is unknown: choose {', '.join(KINDS)}, or leave it empty for the task's own")
    columns = [
        field.name
        for field in rows.table.schema
        if field.name not in rows.features and (pa.types.is_floating(field.type) or field.name == task.target)
    ]
    if target not in columns:
        raise UserError(f"target={target} is no column to learn from: {_nearest(target, columns)}")
    if metric not in METRIC_OF or task.kind not in METRIC_OF[metric].kinds:
        fitting = ", ".join(name for name, of in METRIC_OF.items() if task.kind in of.kinds)
        raise UserError(f"metric={metric} does not judge a {task.kind} task: choose {fitting}")
    output = OUTPUT_OF[task.kind]
    if (objective, target) != (task.kind, task.target):
        by_order = task.kind in ("binary", "ranking")
        if objective == "multiclass" or not by_order:
            raise UserError(
                f"objective={objective} target={target} gives no {output} of {task.target}, which is what this {task.kind} "
                f"task asks for: leave both out{', or take regression or ranking' if by_order else ''}"
            )
        output = "score"
        if metric not in OF_ORDER:
            raise UserError(
                f"metric={metric} judges a {OUTPUT_OF[task.kind]}, and objective={objective} target={target} gives scores, "
                f"whose order counts: choose {', '.join(name for name in OF_ORDER if task.kind in METRIC_OF[name].kinds)}"
            )
    if objective == "multiclass" and len(task.classes) < 2:
        raise UserError("the data's task is multiclass and names no two classes: prepare them again with their names")
    monotone = _monotone(config, rows, objective)
    return Goal(
        task=task,
        objective=objective,
        target=target,
        metric=metric,
        output=output,
        monotone=monotone,
        scaling=_scaling(rows, target) if objective == "regression" else Scaling(),
    )


def _scaling(rows: TreeData, target: str) -> Scaling:
    """Of the target of all ranks' rows, so that all ranks learn on one scale; of rows that were taken, of those alone."""
    values = rows.column_of_all(target).astype(np.float64)
    learned = np.isfinite(values)
    if rows.task.weight:
        learned &= rows.column_of_all(rows.task.weight) > 0
    return Scaling.of(values[learned])


def _monotone(config: TreesConfig, rows: TreeData, objective: str) -> tuple[int, ...]:
    if not config.monotone:
        return ()
    if objective == "multiclass":
        raise UserError("monotone= means nothing with several classes, whose probabilities cannot all rise: leave it out")
    for name, sign in config.monotone.items():
        if name not in rows.features:
            raise UserError(f"monotone names the feature {name}, which is not there: {_nearest(name, rows.features)}")
        if sign not in (1, -1):
            raise UserError(f"monotone has {name}: {sign}: write 1 if the prediction may only rise with it, -1 if only fall")
        if name in rows.categories:
            raise UserError(f"monotone names {name}, whose values are categories without an order: leave it out")
    return tuple(config.monotone.get(name, 0) for name in rows.features)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def lesson_of(goal: Goal, rows: TreeData) -> Lesson:
    """What `rows` teach. Those without a target and those of weight 0 are left out; for ranking, groups are gathered.

    A target that is ranked and is no relevance (growth, say) becomes one of `NUM_GRADES` grades: 31 × the number of lower
    values in the group ÷ the group's rows, rounded down, so that equal values have one grade. Raises `UserError` for values
    that the objective cannot learn, and for weights and categories that are none.
    """
    task = goal.task
    target = rows.column(goal.target).astype(np.float64)
    weight = _weights(rows) if task.weight else None
    _check_categories(rows)
    known = ~np.isnan(target) if weight is None else ~np.isnan(target) & (weight > 0)
    if not known.any():
        raise UserError(f"no row to learn from has a {goal.target}{f' and a {task.weight}' if task.weight else ''}")
    taken, group_sizes = None, None
    if goal.objective == "ranking":
        taken = np.flatnonzero(known)
        group = rows.column(task.group)[taken]
        taken = taken[np.argsort(group, kind="stable")]
        _, group_sizes = np.unique(group, return_counts=True)
    elif not known.all():
        taken = np.flatnonzero(known)
    if taken is not None:
        rows, target = rows.take(taken), target[taken]
        weight = None if weight is None else weight[taken]
    if group_sizes is not None:
        target = _relevance(goal, target, group_sizes)
        if weight is not None:
            starts = np.cumsum(group_sizes) - group_sizes
            weight = np.repeat((np.add.reduceat(weight, starts) / group_sizes).astype(np.float32), group_sizes)
    else:
        _check_target(goal, target)
    return Lesson(rows=rows, target=goal.scaling.learned(target), weight=weight, group_sizes=group_sizes)


def _check_target(goal: Goal, target: np.ndarray) -> None:
    if goal.objective == "regression":
        good, rule = np.isfinite(target), "finite"
    elif goal.objective == "binary":
        good, rule = (target == 0) | (target == 1), "0 or 1"
    else:
        last = goal.num_classes - 1
        good, rule = (target % 1 == 0) & (target >= 0) & (target <= last), f"the number of a class, 0 to {last}"
    if not good.all():
        mend = ": take objective=regression or ranking" if goal.objective == "binary" else ": look at the prepared data"
        raise UserError(f"{goal.target} is {target[~good][0]:g}, and for objective={goal.objective} it must be {rule}{mend}")


def _relevance(goal: Goal, target: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    is_relevance = (target % 1 == 0) & (target >= 0) & (target < NUM_GRADES)
    if is_relevance.all():
        return target
    if goal.target == goal.task.target and goal.task.kind == "ranking":
        raise UserError(
            f"{goal.target} is {target[~is_relevance][0]:g}, and a relevance must be a whole number from 0 to "
            f"{NUM_GRADES - 1}: prepare it so"
        )
    return grades(target, group_sizes)


def grades(values: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Of values (num_rows,), the rows of a group behind each other: the grade of each within its group, float32."""
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    order = np.lexsort((values, group))
    starts = starts_of(values[order], group)
    first_alike = np.repeat(starts, np.diff(np.append(starts, len(order))))
    num_lower = first_alike - (np.cumsum(group_sizes) - group_sizes)[group]
    found = np.empty(len(values), np.float32)
    found[order] = NUM_GRADES * num_lower // group_sizes[group]
    return found


def _weights(rows: TreeData) -> np.ndarray:
    weight = rows.column(rows.task.weight).astype(np.float32)
    good = np.isfinite(weight) & (weight >= 0)
    if not good.all():
        raise UserError(f"the weight {rows.task.weight} is {weight[~good][0]:g}, and must be 0 or more: prepare it so")
    return weight


def _check_categories(rows: TreeData) -> None:
    for name, num_categories in rows.categories.items():
        codes = rows.column(name)
        good = np.isnan(codes) | (codes % 1 == 0) & (codes >= 0) & (codes < num_categories)
        if not good.all():
            raise UserError(
                f"the feature {name} is {codes[~good][0]:g}, and must be the number of a category, 0 to "
                f"{num_categories - 1}, or NaN: prepare it so"
            )


class Judge:
    """Scores predictions for a whole split as the task asks for it, whatever was learned.

    Rows count by their weight, where the task has weights; without, no bit differs from scores that know no weights. Raises
    `UserError` where what is to be scored against is missing.
    """

    def __init__(self, goal: Goal, split: TreeData):
        self._target, self._group = split.column(goal.task.target), split.column(goal.task.group)
        if np.isnan(self._target.astype(np.float64)).any():
            raise UserError(f"a row to be judged by has no {goal.task.target}: prepare the data without such rows")
        self._counted, self._weight = None, None
        if goal.task.weight:
            weight = _weights(split)
            self._counted = np.flatnonzero(weight > 0)
            if not self._counted.size:
                raise UserError(f"no row of the validation split has a {goal.task.weight} above 0: give it some")
            self._weight = weight[self._counted].astype(np.float64)
            self._target, self._group = self._target[self._counted], self._group[self._counted]
        self._scaling = goal.scaling
        names = ["log_loss"] if goal.output == "probability" else []
        self._metrics = list(dict.fromkeys([*names, goal.metric]))

    def __call__(self, prediction: np.ndarray) -> Scores:
        """`prediction`: probabilities, values or scores (num_rows,), probabilities of classes (num_rows, num_classes).

        Values are those that the library learned, and are scored in the target's unit.
        """
        prediction = self._scaling.value(prediction)
        if self._counted is not None:
            prediction = prediction[self._counted]
        return {
            name: METRIC_OF[name].function(self._target, prediction, self._group, self._weight) for name in self._metrics
        }
