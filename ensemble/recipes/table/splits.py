"""Which rows of a table learn, stop, blend and test, and the block of each: what `table.prepare` writes as split and group.

Splits are train | validation | blend | test. With `time` they follow each other, and what lies within `embargo` after the
end of one is left out; equal times stay together, and a group with rows on both sides of a border is left out. Without,
groups, or rows, are dealt at random.
"""

import numpy as np

from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.table.settings import PrepareConfig

SPLITS = ("train", "validation", "blend", "test")
MIN_ROWS = 10  # of a split
NUM_BLOCKS = 10  # of a split
NO_TIME, EMBARGO, ACROSS, NO_GROUP = "empty time", "embargo between two splits", "group across a border", "empty group"


def split_of(
    config: PrepareConfig, is_forecast: np.ndarray, moment: np.ndarray | None, unit: np.ndarray, census: Census
) -> np.ndarray:
    """The number of each row's split, 0 to 3 or 4 for the forecast, -1 for those left out and counted: (num_rows,)."""
    split = np.full(len(unit), -1)
    split[is_forecast] = len(SPLITS)
    split[unit < 0] = -1
    census.drop(NO_GROUP, int((unit < 0).sum()))
    shares = np.cumsum(config.shares) / sum(config.shares)
    if moment is None:
        rows = np.flatnonzero(~is_forecast & (unit >= 0))
        _refuse_few(rows.size)
        units, inverse, size = np.unique(unit[rows], return_inverse=True, return_counts=True)
        if len(units) < len(SPLITS):
            raise UserError(
                f"group={config.group} has {len(units)} different values, fewer than four splits: name another column"
            )
        order = np.random.default_rng(config.seed).permutation(len(units))
        before = np.empty(len(units))
        before[order] = np.cumsum(size[order]) - size[order] / 2  # the middle of each
        split[rows] = np.searchsorted(shares[:-1], before / size.sum(), side="right")[inverse]
        return split
    lacks_time = np.isnan(moment) & (unit >= 0)
    split[lacks_time] = -1
    census.drop(NO_TIME, int(lacks_time.sum()))
    rows = np.flatnonzero(~is_forecast & ~lacks_time & (unit >= 0))
    _refuse_few(rows.size)
    moments, inverse, size = np.unique(moment[rows], return_inverse=True, return_counts=True)
    if len(moments) < len(SPLITS):
        raise UserError(
            f"time={config.time} has {len(moments)} different values, fewer than four splits: name another column"
        )
    until = np.cumsum(size)
    of_moment = np.full(len(moments), -1)
    begin = 0
    for number, share in enumerate(shares):
        end = len(moments) if number == len(SPLITS) - 1 else int(np.searchsorted(until, share * rows.size)) + 1
        if end <= begin:
            raise UserError(
                f"embargo={config.embargo:g} and the times that stay together leave no rows for the {SPLITS[number]} split: "
                "lower embargo, change shares, or give more data"
            )
        of_moment[begin:end] = number
        begin = int(np.searchsorted(moments, moments[end - 1] + config.embargo, side="right"))
    split[rows] = of_moment[inverse]
    census.drop(EMBARGO, int((split[rows] < 0).sum()))
    if config.group:
        low, high = np.full(unit.max() + 1, len(SPLITS)), np.full(unit.max() + 1, -2)
        np.minimum.at(low, unit[rows], split[rows])
        np.maximum.at(high, unit[rows], split[rows])
        across = rows[(low < high)[unit[rows]] & (split[rows] >= 0)]
        split[across] = -1
        census.drop(ACROSS, across.size)
    return split


def _refuse_few(num_rows: int) -> None:
    if num_rows < len(SPLITS) * MIN_ROWS:
        raise UserError(f"{num_rows} rows have a target, too few for four splits of {MIN_ROWS}: give more")


def group_of(kind: str, split: np.ndarray, moment: np.ndarray | None, unit: np.ndarray, seed: int) -> np.ndarray:
    """The column `group`, as `table` says: (num_rows,) int64."""
    group = np.zeros(len(split), np.int64)
    generator, begin = np.random.default_rng([seed, 1]), 0
    for number in range(len(SPLITS) + 1):
        rows = np.flatnonzero(split == number)
        if not rows.size:
            continue
        if moment is not None and kind != "ranking":
            _, inverse, size = np.unique(moment[rows], return_inverse=True, return_counts=True)
            middle = (np.cumsum(size) - size / 2) / rows.size
            slices = (
                (NUM_BLOCKS * middle).astype(np.int64)[inverse] if number < len(SPLITS) else np.zeros(rows.size, np.int64)
            )
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
