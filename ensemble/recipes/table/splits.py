"""Division of rows into train, test and forecast, and the fold and block of each row.

All labelled rows are the split `train`, with the folds of `ensemble/data/cross_validation.py`, except those with an empty
`time` or `group`, or a weight of 0. With `test` > 0, a part of them is the split `test` instead: a random sample of units
(the values of `group`, else single rows, or rows with their copies), or with `time` the last rows. Then, with `time`, train
rows within `embargo` before the test, and those of groups in the test, are left out. Rows with equal times stay together;
without `time`, rows of the same unit do.
"""

import dataclasses
import sys

import numpy as np

from ensemble.data.census import Census
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.recipes.table.settings import PrepareConfig

TRAIN, TEST, FORECAST = 0, 1, 2
"""Numbers of the splits; -1 is a row that is left out."""
LEAST_ROWS = 20
"""Minimum number of labelled rows, and of train rows."""
LEAST_FOLDS = 3
MANY_FOLDS = 8
MANY_FOLDS_UNTIL, FOLDS_UNTIL = 10_000, 200_000
"""Largest numbers of train rows for 8 folds and for 5 folds; with more rows, one part is held out."""
STOP_SHARE = 0.2
"""With scheme=random, the fraction of a fold that is used for early stopping, if there are more than `MANY_FOLDS_UNTIL` rows
without copies, and if these parts of all folds together have at least `STOP_OF_RARER` rows of the rarer value of a binary
target. Else the whole fold is used."""
STOP_OF_RARER = 20
HELD_OUT_PERCENT = 15
"""With scheme=holdout and at most `FOLDS_UNTIL` rows, the percentage of rows that are predicted; the same percentage is used
for early stopping."""
HELD_OUT_ROWS, HELD_OUT_OF_RARER, LEAST_STEP = 30_000, 1_000, 6
"""With more than `FOLDS_UNTIL` rows, `HELD_OUT_ROWS` are held out, which suffices to fit weights; or as many as have
`HELD_OUT_OF_RARER` of the rarer value of a binary target, if that is more; but at most one row of every `LEAST_STEP`.
Half as many are used for early stopping."""
FIRST_PART = 0.4
"""With scheme=forward, the fraction of the rows that precede fold −1; they are used only to fit copies."""
FORWARD_FOLDS = 4
NUM_BLOCKS, NUM_SLICES = 10, 20
NUM_BLOCKS_OF_ONE_TIME = 4
"""So few that the bootstrap does not draw these random blocks as slices of time (`LEAST_SLICES` in predictor/scoring.py)."""
NO_TIME, EMBARGO, ACROSS, NO_GROUP = "empty time", "embargo before the test", "group of the test", "empty group"
NO_WEIGHT = "weight 0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """The split, fold and group of each row as numbers, (num_rows,) int64."""

    split: np.ndarray
    fold: np.ndarray
    group: np.ndarray
    """The block on which combiners are compared; with ranking, the rows that are ranked against each other."""
    cross_validation: CrossValidation


def split_rows(
    config: PrepareConfig,
    kind: str,
    target: np.ndarray,
    time: np.ndarray | None,
    unit: np.ndarray,
    census: Census,
    weight: np.ndarray | None = None,
) -> Splits:
    """Split the rows of a table. Rows that are left out are counted in `census`.

    kind : of the task. target, time : (num_rows,) float64, NaN for empty cells. unit : (num_rows,), the unit of each
    row, -1 for none; no unit has rows in both train and test. weight : (num_rows,) float32 or None; a row with a target and
    the weight 0 is left out, since no copy can be fitted on a fold of such rows. Raises `UserError` if a split would be too
    small.
    """
    split = np.where(np.isnan(target), FORECAST, TRAIN)
    if weight is not None:
        _leave_out((split == TRAIN) & (weight == 0), NO_WEIGHT, split, census)
    _leave_out((split == TRAIN) & (unit < 0), NO_GROUP, split, census)
    if time is not None:
        _leave_out((split == TRAIN) & np.isnan(time), NO_TIME, split, census)
    num_labelled = int((split == TRAIN).sum())
    if num_labelled < LEAST_ROWS:
        above = "" if weight is None else " and a weight above 0"
        above += f" and a value of group={config.group}" if (unit < 0).any() else ""
        above += f" and a value of time={config.time}" if time is not None and np.isnan(time).any() else ""
        raise UserError(f"{num_labelled} rows have a target{above}, and at least {LEAST_ROWS} are needed: give more")
    if config.test:
        _mark_test(config, kind, target, split, time, unit, census)
    rows = np.flatnonzero(split == TRAIN)
    fold = np.full(len(split), -1)
    if time is not None:
        begins, fold[rows] = _forward(config, time[rows])
        scheme = CrossValidation(scheme="forward", num_folds=len(begins) - 1, embargo=config.embargo, begins=begins)
    elif config.group or kind == "ranking":
        what = f"different values of group={config.group}"
        num_folds = max(LEAST_FOLDS, _num_folds(config, len(np.unique(unit[rows])), rows.size, what))
        fold[rows] = _by_group(unit[rows], num_folds, config.seed)
        scheme = CrossValidation(scheme="groups", num_folds=num_folds)
    else:
        _, first, inverse = np.unique(unit[rows], return_index=True, return_inverse=True)
        scheme, fold_of_unit = _random(config, kind, target[rows[first]])
        fold[rows] = fold_of_unit[inverse]
        # A part of a fold for early stopping would leave copies of its rows to be fitted on
        if len(first) < rows.size and scheme.scheme == "random":
            scheme = dataclasses.replace(scheme, stop_share=1.0)
    group = _groups(kind, split, time, unit, config.seed)
    if time is not None and kind != "ranking":
        _divide_one_slice(config, group, rows[fold[rows] >= 0], time, unit)
    _refuse_empty(config, scheme, fold[rows], None if time is None else time[rows], unit[rows])
    if time is not None and config.group:
        _print_recurring_groups(config, scheme, fold[rows], time[rows], unit[rows])
    if kind in ("binary", "multiclass"):
        _refuse_one_class(config, target[rows], fold[rows])
    return Splits(split=split, fold=fold, group=group, cross_validation=scheme)


def _leave_out(rows: np.ndarray, reason: str, split: np.ndarray, census: Census) -> None:
    """Leave rows, (num_rows,) bool, out of all splits, and count them."""
    split[rows] = -1
    census.drop(reason, int(rows.sum()))


def _mark_test(
    config: PrepareConfig,
    kind: str,
    target: np.ndarray,
    split: np.ndarray,
    time: np.ndarray | None,
    unit: np.ndarray,
    census: Census,
) -> None:
    """Mark the rows of the test split in `split`; with `time`, leave out the train rows that are too close to them."""
    rows = np.flatnonzero(split == TRAIN)
    if time is None:
        units, inverse, size = np.unique(unit[rows], return_inverse=True, return_counts=True)
        order = np.random.default_rng([config.seed, 2]).permutation(len(units))
        before = np.empty(len(units))
        before[order] = np.cumsum(size[order]) - size[order] / 2  # rows up to the middle of each unit
        split[rows[(before < config.test * rows.size)[inverse]]] = TEST
        if kind == "multiclass":  # no class may be in the test only
            lacking = (split == TEST) & ~np.isin(target, target[split == TRAIN])
            split[(split == TEST) & np.isin(unit, unit[lacking])] = TRAIN
    else:
        times, size = np.unique(time[rows], return_counts=True)
        first = min(int(np.searchsorted(np.cumsum(size), (1 - config.test) * rows.size)) + 1, len(times) - 1)
        split[rows[time[rows] >= times[first]]] = TEST
        _leave_out((split == TRAIN) & (time + config.embargo >= times[first]), EMBARGO, split, census)
        _leave_out((split == TRAIN) & np.isin(unit, unit[split == TEST]), ACROSS, split, census)
    left, taken = int((split == TRAIN).sum()), int((split == TEST).sum())
    if not taken or left < LEAST_ROWS:
        reasons = [reason for reason in (EMBARGO, ACROSS) if reason in census.dropped]
        left_out = "".join(f", and {census.dropped[reason]} are left out ({reason})" for reason in reasons)
        if config.group and time is None:
            left_out += f" (the {len(units)} values of group={config.group} are not divided)"
        has_groups = config.group and (time is None or ACROSS in reasons)
        fix = f"leave group={config.group} out, change test" if has_groups else "change it"
        raise UserError(
            f"test={config.test:g} leaves {left} rows for train and {taken} for test{left_out}, but train needs "
            f"{LEAST_ROWS} and test 1: {fix}, or give more rows"
        )


def _num_folds(config: PrepareConfig, num_units: int, num_rows: int, what: str) -> int:
    """`config.num_folds`, or if it is 0 a number by the number of rows, at most `num_units`; 1 is a single held-out part.

    what : a description of the units in errors.
    """
    are = "is" if num_units == 1 else "are"
    if num_units < LEAST_FOLDS:
        raise UserError(f"a fit needs {LEAST_FOLDS} folds and as many {what}, but there {are} {num_units}: give more rows")
    if config.num_folds > num_units:
        raise UserError(
            f"num_folds={config.num_folds} needs as many {what}, but there {are} {num_units}: lower it, or leave it out"
        )
    if config.num_folds:
        return config.num_folds
    by_size = MANY_FOLDS if num_rows <= MANY_FOLDS_UNTIL else 5 if num_rows <= FOLDS_UNTIL else 1
    return min(by_size, num_units)


def _random(config: PrepareConfig, kind: str, target: np.ndarray) -> tuple[CrossValidation, np.ndarray]:
    """Random folds, stratified by the class or by ranges of the target."""
    num_units, what = len(target), "rows"
    if kind == "binary":
        num_units, what = int(min(target.sum(), (1 - target).sum())), f"rows of the rarer value of {config.target}"
    num_folds = _num_folds(config, num_units, len(target), what)
    generator = np.random.default_rng(config.seed)
    _, inverse, size = np.unique(target, return_inverse=True, return_counts=True)
    class_size = np.zeros(len(target)) if kind == "regression" else size[inverse]  # the rarest class is first in `order`
    order = np.lexsort((generator.permutation(len(target)), target, class_size))
    fold = np.empty(len(target), np.int64)
    if num_folds == 1:
        position = np.arange(len(target)) + generator.integers(100)
        if kind != "regression":  # positions begin at 0 in each class
            is_first = np.diff(target[order], prepend=np.nan) != 0
            position -= np.maximum.accumulate(np.where(is_first, position, 0))
        if is_large := len(target) > FOLDS_UNTIL:
            step = max(LEAST_STEP, min(len(target) // HELD_OUT_ROWS, num_units // HELD_OUT_OF_RARER))
            parts = [position % step == 0, position % (2 * step) == step // 2]
        else:
            percentile = position * HELD_OUT_PERCENT % 100
            parts = [percentile < HELD_OUT_PERCENT, percentile < 2 * HELD_OUT_PERCENT]
        fold[order] = np.select(parts, [0, 1], -1)
        if kind == "multiclass":
            fold[class_size < LEAST_FOLDS] = -1  # else no copy would know the class
        return CrossValidation(scheme="holdout", num_folds=1, stop_share=0.5 if is_large else 1.0), fold
    # Of num_folds consecutive rows in the order of the target, each is in another fold
    shuffled = np.concatenate([generator.permutation(num_folds) for _ in range(-(-len(target) // num_folds))])
    fold[order] = shuffled[: len(target)]
    stops_on_part = len(target) > MANY_FOLDS_UNTIL and STOP_SHARE * num_units >= STOP_OF_RARER
    stop_share = STOP_SHARE if stops_on_part else 1.0
    return CrossValidation(scheme="random", num_folds=num_folds, stop_share=stop_share), fold


def _by_group(unit: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Folds of whole groups: each group, the largest first, is assigned to the fold with the fewest rows."""
    units, inverse, size = np.unique(unit, return_inverse=True, return_counts=True)
    tie = np.random.default_rng(seed).permutation(len(units))
    rows_of, fold_of = np.zeros(num_folds), np.empty(len(units), np.int64)
    for number in np.lexsort((tie, -size)):
        fold_of[number] = least = int(rows_of.argmin())
        rows_of[least] += size[number]
    return fold_of[inverse]


def _forward(config: PrepareConfig, time: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The first time of each fold from −1 on, and the fold of each row: -2 for rows before these folds."""
    times, size = np.unique(time, return_counts=True)
    num_folds = config.num_folds or min(FORWARD_FOLDS, len(times) - 2)
    if num_folds < 1 or num_folds + 2 > len(times):
        values = f"{len(times)} different value{'s' if len(times) > 1 else ''}"
        needed = (
            f"{num_folds} folds forward in time need {num_folds + 2}" if num_folds > 1 else "folds forward in time need 3"
        )
        fix = "name another column, or lower num_folds" if num_folds > 1 else "name another column"
        raise UserError(f"time={config.time} has {values}, and {needed}: {fix}")
    shares = np.linspace(FIRST_PART, 1, num_folds + 2)[:-1]  # where each fold begins
    first = np.searchsorted(np.cumsum(size) - size, shares * len(time))
    # At least one distinct time in each fold
    number = np.arange(len(first))
    first = np.maximum.accumulate(np.maximum(first - number, 1)) + number
    begins = times[np.minimum(first, len(times) - len(first) + number)]
    return tuple(begins.tolist()), np.searchsorted(begins, time, side="right") - 2


def _refuse_empty(
    config: PrepareConfig, scheme: CrossValidation, fold: np.ndarray, time: np.ndarray | None, unit: np.ndarray
) -> None:
    """Raise `UserError` if a fold has no rows to fit a copy on, or none for early stopping."""
    for number in range(scheme.num_folds):
        rows = scheme.fold(number, fold, time, unit)
        if not rows.fit.size or not rows.stop.size:
            fix = f"leave group={config.group} out" if config.group else "lower num_folds"
            rows = dataclasses.replace(scheme, embargo=0.0).fold(number, fold, time, unit)
            if rows.fit.size and rows.stop.size:
                fix = f"lower embargo={config.embargo:g}"
            raise UserError(f"no row is left to train the model that predicts fold {number}: {fix}, or give more rows")


def _print_recurring_groups(
    config: PrepareConfig, scheme: CrossValidation, fold: np.ndarray, time: np.ndarray, unit: np.ndarray
) -> None:
    """Print a warning if most of the rows to fit the copies on are left out, since their groups have later rows."""
    each_alone = np.arange(len(unit))
    fitted, all_earlier = (
        [scheme.fold(number, fold, time, cluster).fit.size for number in range(scheme.num_folds)]
        for cluster in (unit, each_alone)
    )
    if 2 * sum(fitted) < sum(all_earlier):
        numbers = f"{', '.join(map(str, fitted))} instead of {', '.join(map(str, all_earlier))}"
        print(
            f"warning: groups of {config.group} recur over time, and the rows of a group are in one part only: the copies "
            f"are fitted on {numbers} rows; leave group out if new rows are of known groups",
            file=sys.stderr,
        )


def _refuse_one_class(config: PrepareConfig, target: np.ndarray, fold: np.ndarray) -> None:
    """Raise `UserError` if the rows predicted out of fold, on which the ensemble is fitted, have one class."""
    if len(np.unique(target[fold >= 0])) < 2:
        which, fix = "", "choose another seed"
        if config.time:
            which, fix = ", the last in time", f"leave time={config.time} out"
        raise UserError(
            f"target={config.target} is the same in all {(fold >= 0).sum()} rows that are predicted out of fold{which}: "
            f"give more rows, or {fix}"
        )


def _groups(kind: str, split: np.ndarray, time: np.ndarray | None, unit: np.ndarray, seed: int) -> np.ndarray:
    """The column `group` of prepare.py, (num_rows,) int64."""
    group = np.zeros(len(split), np.int64)
    generator, begin = np.random.default_rng([seed, 1]), 0
    for number in (TRAIN, TEST, FORECAST):
        rows = np.flatnonzero(split == number)
        if not rows.size:
            continue
        if time is not None and kind != "ranking":
            _, inverse, size = np.unique(time[rows], return_inverse=True, return_counts=True)
            middle = (np.cumsum(size) - size / 2) / rows.size
            num_slices = 1 if number == FORECAST else NUM_SLICES
            slices = (num_slices * middle).astype(np.int64)[inverse]
            group[rows] = begin + np.unique(slices, return_inverse=True)[1]
            begin = int(group[rows].max()) + 1
            continue
        units, appears, inverse = np.unique(unit[rows], return_index=True, return_inverse=True)
        if number == FORECAST:  # like those of new rows in new_data.py: by first appearance, rows without a group last
            place = np.argsort(np.lexsort((appears, units < 0)))
        elif time is None:
            place = generator.permutation(len(units))
        else:
            first = np.full(len(units), np.inf)
            np.minimum.at(first, inverse, time[rows])
            place = np.argsort(np.argsort(first, kind="stable"))
        if kind == "ranking":
            group[rows] = begin + place[inverse]
            begin += len(units)
        else:
            group[rows] = (NUM_BLOCKS * place // len(units))[inverse]
    return group


def _divide_one_slice(
    config: PrepareConfig, group: np.ndarray, held_out: np.ndarray, time: np.ndarray, unit: np.ndarray
) -> None:
    """Replace the `group` of the rows that are predicted out of fold by blocks if their slices of time give only one group.

    Weights and intervals are compared on several groups. The blocks are of times, or if there is one time, of random units.
    Raises `UserError` if these rows have one time and one unit.
    """
    if len(np.unique(group[held_out])) > 1:
        return
    begin = group.max() + 1
    times, inverse = np.unique(time[held_out], return_inverse=True)
    if len(times) > 1:
        group[held_out] = begin + (NUM_BLOCKS * np.arange(len(times)) // len(times))[inverse]
        return
    units, inverse = np.unique(unit[held_out], return_inverse=True)
    if len(units) < 2:
        what, fix = (f"have one {config.group}", "time or group") if config.group else ("are copies of one row", "time")
        raise UserError(
            f"all rows that are predicted out of fold have the same {config.time} and {what}: leave {fix} out, or give more "
            "rows"
        )
    place = np.random.default_rng([config.seed, 3]).permutation(len(units))
    group[held_out] = begin + (NUM_BLOCKS_OF_ONE_TIME * place // len(units))[inverse]
