"""Which rows train, test and are forecast, and the fold and the block of each.

All labelled rows are the split `train`, with the folds of `ensemble/data/cross_validation.py`. With `test` a part of them is
set aside: units drawn at random, or with `time` the last ones; of train, what lies within `embargo` before the test, and
rows of a group that is in the test, are then left out. Equal times, and equal rows of a group, stay together.
"""

import dataclasses

import numpy as np

from ensemble.data.census import Census
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.recipes.table.settings import PrepareConfig

TRAIN, TEST, FORECAST = 0, 1, 2
"""Numbers of the splits; -1 is a row that is left out."""
LEAST_ROWS = 20
LEAST_FOLDS = 3
MANY_FOLDS = 8
MANY_FOLDS_UNTIL, FOLDS_UNTIL = 10_000, 200_000
"""Labelled rows up to which there are 8 folds, and then 5; beyond, one part is held out."""
STOP_SHARE = 0.2
"""Part of a fold that stops a copy, of more than `MANY_FOLDS_UNTIL` rows."""
HELD_OUT_PERCENT = 15
"""Of the rows, what scheme=holdout predicts, and as many stop the training."""
FIRST_PART = 0.4
"""Part of the rows in time that only train, with the scheme forward."""
FORWARD_FOLDS = 4
NUM_BLOCKS, NUM_SLICES = 10, 20
NO_TIME, EMBARGO, ACROSS, NO_GROUP = "empty time", "embargo before the test", "group of the test", "empty group"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """Of each row, (num_rows,) int64."""

    split: np.ndarray
    fold: np.ndarray
    group: np.ndarray
    """Combiners are compared on blocks of it; with ranking, the query."""
    cross_validation: CrossValidation


def split_rows(
    config: PrepareConfig,
    kind: str,
    target: np.ndarray,
    moment: np.ndarray | None,
    unit: np.ndarray,
    census: Census,
) -> Splits:
    """Split the rows of a table. Rows that are left out are counted in `census`.

    kind : of the task. target, moment : (num_rows,) float64, NaN where empty. unit : (num_rows,), the number of what is
    never cut, -1 for none. Raises `UserError` if a split would be too small.
    """
    split = np.where(np.isnan(target), FORECAST, TRAIN)
    split[unit < 0] = -1
    census.drop(NO_GROUP, int((unit < 0).sum()))
    if moment is not None:
        lacks_time = np.isnan(moment) & (split == TRAIN)
        split[lacks_time] = -1
        census.drop(NO_TIME, int(lacks_time.sum()))
    _refuse_few(int((split == TRAIN).sum()))
    if config.test:
        _set_aside(config, split, moment, unit, census)
    rows = np.flatnonzero(split == TRAIN)
    fold = np.full(len(split), -1)
    if moment is not None:
        begins, fold[rows] = _forward(config, moment[rows])
        found = CrossValidation(scheme="forward", num_folds=len(begins) - 1, embargo=config.embargo, begins=begins)
    elif config.group or kind == "ranking":
        num_folds = _num_folds(config, len(np.unique(unit[rows])), rows.size, f"different values of group={config.group}")
        fold[rows] = _by_group(unit[rows], max(num_folds, LEAST_FOLDS), config.seed)
        found = CrossValidation(scheme="groups", num_folds=max(num_folds, LEAST_FOLDS))
    else:
        found, fold[rows] = _random(config, kind, target[rows])
    group = _groups(kind, split, moment, unit, config.seed)
    _refuse_empty(config, found, fold[rows], None if moment is None else moment[rows], unit[rows])
    if kind in ("binary", "multiclass"):
        _refuse_one_class(config, target[rows], fold[rows])
    return Splits(split=split, fold=fold, group=group, cross_validation=found)


def _refuse_few(num_rows: int) -> None:
    if num_rows < LEAST_ROWS:
        raise UserError(f"{num_rows} rows have a target, and at least {LEAST_ROWS} are needed: give more")


def _set_aside(
    config: PrepareConfig, split: np.ndarray, moment: np.ndarray | None, unit: np.ndarray, census: Census
) -> None:
    """Mark the rows of the test split in `split`."""
    rows = np.flatnonzero(split == TRAIN)
    if moment is None:
        units, inverse, size = np.unique(unit[rows], return_inverse=True, return_counts=True)
        order = np.random.default_rng([config.seed, 2]).permutation(len(units))
        before = np.empty(len(units))
        before[order] = np.cumsum(size[order]) - size[order] / 2  # the middle of each
        split[rows[(before < config.test * rows.size)[inverse]]] = TEST
    else:
        moments, size = np.unique(moment[rows], return_counts=True)
        first = min(int(np.searchsorted(np.cumsum(size), (1 - config.test) * rows.size)) + 1, len(moments) - 1)
        begin = moments[first]
        split[rows[moment[rows] >= begin]] = TEST
        near = rows[(moment[rows] < begin) & (moment[rows] + config.embargo >= begin)]
        split[near] = -1
        census.drop(EMBARGO, near.size)
        across = np.flatnonzero((split == TRAIN) & np.isin(unit, unit[split == TEST]))
        split[across] = -1
        census.drop(ACROSS, across.size)
    left, taken = int((split == TRAIN).sum()), int((split == TEST).sum())
    if not taken or left < LEAST_ROWS:
        raise UserError(
            f"test={config.test:g} leaves {left} rows to train and {taken} to test: change it, or give more rows"
        )


def _num_folds(config: PrepareConfig, num_units: int, num_rows: int, what: str) -> int:
    """The number that was set, or one by the number of rows, as far as there are units; 1 stands for a holdout."""
    asked = config.num_folds
    if asked and asked > num_units:
        raise UserError(f"num_folds={asked}, and there are only {num_units} {what}: lower it, or leave it out")
    if num_units < LEAST_FOLDS:
        raise UserError(f"there are only {num_units} {what}, and at least {LEAST_FOLDS} folds are needed: give more rows")
    if asked:
        return asked
    by_size = MANY_FOLDS if num_rows <= MANY_FOLDS_UNTIL else 5 if num_rows <= FOLDS_UNTIL else 1
    return min(by_size, num_units)


def _random(config: PrepareConfig, kind: str, target: np.ndarray) -> tuple[CrossValidation, np.ndarray]:
    """Folds with as equal a share of each class, or of each range of values, as there can be."""
    num_units, what = len(target), "rows"
    if kind == "binary":
        num_units, what = int(min(target.sum(), (1 - target).sum())), f"rows of the rarer value of {config.target}"
    num_folds = _num_folds(config, num_units, len(target), what)
    generator = np.random.default_rng(config.seed)
    _, inverse, size = np.unique(target, return_inverse=True, return_counts=True)
    rarity = np.zeros(len(target)) if kind == "regression" else size[inverse]  # so that the rarest class begins a run
    order = np.lexsort((generator.permutation(len(target)), target, rarity))
    fold = np.empty(len(target), np.int64)
    if num_folds == 1:
        place = np.arange(len(target)) + generator.integers(100)
        if kind != "regression":  # anew for each class
            is_first = np.diff(target[order], prepend=np.nan) != 0
            place -= np.maximum.accumulate(np.where(is_first, place, 0))
        dealt = place * HELD_OUT_PERCENT % 100
        fold[order] = np.select([dealt < HELD_OUT_PERCENT, dealt < 2 * HELD_OUT_PERCENT], [0, 1], -1)
        return CrossValidation(scheme="holdout", num_folds=1), fold
    # Each run of num_folds neighbours in the order of the target has one row in each fold
    dealt = np.concatenate([generator.permutation(num_folds) for _ in range(-(-len(target) // num_folds))])
    fold[order] = dealt[: len(target)]
    stop_share = STOP_SHARE if len(target) > MANY_FOLDS_UNTIL else 1.0
    return CrossValidation(scheme="random", num_folds=num_folds, stop_share=stop_share), fold


def _by_group(unit: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Whole groups, the largest first, each to the fold with the fewest rows."""
    units, inverse, size = np.unique(unit, return_inverse=True, return_counts=True)
    tie = np.random.default_rng(seed).permutation(len(units))
    rows_of, fold_of = np.zeros(num_folds), np.empty(len(units), np.int64)
    for number in np.lexsort((tie, -size)):
        fold_of[number] = least = int(rows_of.argmin())
        rows_of[least] += size[number]
    return fold_of[inverse]


def _forward(config: PrepareConfig, moment: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The first time of the folds -1, 0, 1 …, and the fold of each row."""
    moments, size = np.unique(moment, return_counts=True)
    num_folds = config.num_folds or min(FORWARD_FOLDS, len(moments) - 2)
    if num_folds < 1 or num_folds + 2 > len(moments):
        raise UserError(
            f"time={config.time} has {len(moments)} different values, and {max(num_folds, 1)} folds forward in time need "
            f"{max(num_folds, 1) + 2}: name another column{', or lower num_folds' if config.num_folds > 1 else ''}"
        )
    shares = np.linspace(FIRST_PART, 1, num_folds + 2)[:-1]  # where each fold begins
    first = np.searchsorted(np.cumsum(size) - size, shares * len(moment))
    for number in range(len(first)):  # at least one moment in each
        first[number] = max(first[number], first[number - 1] + 1 if number else 1)
    for number in reversed(range(len(first))):
        first[number] = min(first[number], len(moments) - (len(first) - number))
    begins = moments[first]
    return tuple(begins.tolist()), np.searchsorted(begins, moment, side="right") - 2


def _refuse_empty(
    config: PrepareConfig, found: CrossValidation, fold: np.ndarray, moment: np.ndarray | None, unit: np.ndarray
) -> None:
    """Each copy needs rows to be fitted on, and to be stopped on."""
    for number in range(found.num_folds):
        rows = found.fold(number, fold, moment, unit)
        if not rows.fit.size or not rows.stop.size:
            why = (
                f"embargo={config.embargo:g}" if config.embargo else f"group={config.group}" if config.group else "num_folds"
            )
            raise UserError(f"no row is left to train the model that predicts fold {number}: lower {why}, or give more rows")


def _refuse_one_class(config: PrepareConfig, target: np.ndarray, fold: np.ndarray) -> None:
    """The rows on which the ensemble is fitted need two classes."""
    if len(np.unique(target[fold >= 0])) < 2:
        raise UserError(
            f"{config.target} is the same in all {(fold >= 0).sum()} rows that are predicted out of fold, the last in time: "
            f"give more rows, or leave time={config.time} out"
        )


def _groups(kind: str, split: np.ndarray, moment: np.ndarray | None, unit: np.ndarray, seed: int) -> np.ndarray:
    """The column `group`, as `prepare.py` describes it: (num_rows,) int64."""
    group = np.zeros(len(split), np.int64)
    generator, begin = np.random.default_rng([seed, 1]), 0
    for number in (TRAIN, TEST, FORECAST):
        rows = np.flatnonzero(split == number)
        if not rows.size:
            continue
        if moment is not None and kind != "ranking":
            _, inverse, size = np.unique(moment[rows], return_inverse=True, return_counts=True)
            middle = (np.cumsum(size) - size / 2) / rows.size
            slices = np.zeros(rows.size, np.int64)
            if number != FORECAST:
                slices = (NUM_SLICES * middle).astype(np.int64)[inverse]
            group[rows] = begin + np.unique(slices, return_inverse=True)[1]
            begin = int(group[rows].max()) + 1
            continue
        units, inverse = np.unique(unit[rows], return_inverse=True)
        if moment is None:
            place = generator.permutation(len(units))
        else:
            first = np.full(len(units), np.inf)
            np.minimum.at(first, inverse, moment[rows])
            place = np.argsort(np.argsort(first, kind="stable"))
        if kind == "ranking":
            group[rows] = begin + place[inverse]
            begin += len(units)
        else:
            group[rows] = (NUM_BLOCKS * place // len(units))[inverse]
    return group
