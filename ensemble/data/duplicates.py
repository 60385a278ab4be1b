"""Find duplicate reviews, also between files whose times have different precision.

Two reviews are duplicates if they have the same product, user and time. If the times of two files differ in precision
(milliseconds, seconds, minutes, days), they are compared at the coarser precision. Of several duplicates, the one with the
finest time is kept, and of those the first in the order of the files.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

UNIT_NAMES = {86_400_000: "days", 60_000: "minutes", 1000: "seconds", 1: "milliseconds"}
NO_TIMES = 10**15
"""The unit of a file without rows, longer than any other."""


def unit_of(time_ms: np.ndarray, coarsest_ms: int = NO_TIMES) -> int:
    """The coarsest unit, in milliseconds and at most `coarsest_ms`, of which all times (n,) are multiples.

    Without times it is `coarsest_ms`.
    """
    if not len(time_ms):
        return coarsest_ms
    return next(unit for unit in UNIT_NAMES if unit <= coarsest_ms and (time_ms % unit == 0).all())


def print_precisions(files: Sequence[Path], units_ms: Sequence[int]) -> None:
    """Print the precision of the times of each file with rows if the precisions differ."""
    known = [(file.name, UNIT_NAMES[unit]) for file, unit in zip(files, units_ms, strict=True) if unit != NO_TIMES]
    if len({unit for _, unit in known}) > 1:
        precisions = ", ".join(f"{name} in {unit}" for name, unit in known)
        print(f"times have different precision ({precisions}): duplicates are compared at the coarser one")


def are_kept(reviews: pl.DataFrame, units_ms: Sequence[int]) -> np.ndarray:
    """Whether each review is kept, (num_reviews,) bool: of several duplicates only one is kept.

    reviews : product, time_ms, user and source_file, sorted by product, time and position in the files. units_ms : the
    precision of each file's times, from `unit_of`.
    """
    if len(set(units_ms)) == 1:
        return _first_of_equals(reviews)
    unit = np.array(units_ms)[reviews["source_file"].to_numpy()]
    is_kept = np.zeros(len(reviews), bool)
    for unit_ms in set(units_ms):
        of_unit, finer = (reviews.filter(pl.Series(is_wanted)) for is_wanted in (unit == unit_ms, unit < unit_ms))
        is_first = _first_of_equals(of_unit)
        is_first[_positions_in(of_unit, finer, "product", "time_ms", unit_ms)] = False
        is_kept[unit == unit_ms] = is_first
    return is_kept


def _first_of_equals(reviews: pl.DataFrame) -> np.ndarray:
    """Whether each review is the first of those with its product, time and user, (num_reviews,) bool."""
    # Only neighbours with the same product and time can be duplicates. They are few, so hashing them is cheap
    with_next = (pl.col("product").diff(-1) == 0) & (pl.col("time_ms").diff(-1) == 0)
    suspect = reviews.select((with_next | with_next.shift(1, fill_value=False)).fill_null(False)).to_series()
    first = reviews.filter(suspect).select(pl.struct("product", "time_ms", "user").is_first_distinct()).to_series()
    is_first = np.ones(len(reviews), bool)
    is_first[suspect.to_numpy()] = first.to_numpy()
    return is_first


def _positions_in(events: pl.DataFrame, others: pl.DataFrame, item: str, time: str, unit_ms: int) -> np.ndarray:
    """The positions of the events that are also in `others`, with times compared in units of `unit_ms` milliseconds.

    Times are cut to this unit. For seconds they are also compared after rounding, since whole seconds may have been cut or
    rounded from milliseconds.
    """
    positions = []
    for added in (0, unit_ms // 2) if unit_ms == 1000 else (0,):
        moments, other_moments = (
            frame.select("user", item, (pl.col(time) + added) // unit_ms) for frame in (events, others)
        )
        common = moments.with_row_index("position").join(other_moments, on=["user", item, time], how="semi")
        positions.append(common["position"].to_numpy())
    return np.unique(np.concatenate(positions))


def copies_of_other_files(frames: Sequence[pl.DataFrame], units_ms: Sequence[int]) -> list[np.ndarray]:
    """For each file, whether each event is also in a file of finer times, or in an earlier one of the same precision.

    Events of the same file are not compared with each other. frames : for each file, the columns user, item and time, in
    milliseconds. units_ms : the precision of each file's times. Returns bool, (num_events,) for each file.
    """
    copies = [np.zeros(frame.height, bool) for frame in frames]
    compared = frames[0].select("user", "item", "time").clear()
    for number in np.argsort(units_ms, kind="stable"):
        copies[number][_positions_in(frames[number], compared, "item", "time", units_ms[number])] = True
        compared = pl.concat([compared, frames[number].select("user", "item", "time")])
    return copies
