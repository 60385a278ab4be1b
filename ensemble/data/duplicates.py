"""Reviews that the raw files hold more than once, also where one file writes their times more coarsely than another.

Two reviews are the same if product, user and time are. Between files whose times are of different precision (milliseconds,
seconds, days), times are the same if they agree to the coarser one. Of the copies, the one with the finest time is kept, and
of those the first in the files' order.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

UNITS_MS = (86_400_000, 60_000, 1000, 1)
UNIT_NAMES = dict(zip(UNITS_MS, ("days", "minutes", "seconds", "milliseconds"), strict=True))


def unit_of(time_ms: np.ndarray, coarsest_ms: int) -> int:
    """The coarsest unit, in milliseconds and at most `coarsest_ms`, of which all times (n,) are multiples."""
    return next(unit for unit in UNITS_MS if unit <= coarsest_ms and (time_ms % unit == 0).all())


def say(files: Sequence[Path], units_ms: Sequence[int]) -> None:
    """Print the precision of each file's times where they differ."""
    if len(set(units_ms)) > 1:
        precisions = ", ".join(f"{file.name} in {UNIT_NAMES[unit]}" for file, unit in zip(files, units_ms, strict=True))
        print(f"times are of different precision ({precisions}): duplicates are compared at the coarser one")


def are_first(reviews: pl.DataFrame, units_ms: Sequence[int]) -> np.ndarray:
    """Which reviews are no copy of another one, (num_reviews,) bool.

    reviews : product, time_ms, user and source_file, by product, time and place in the files. units_ms : of each file.
    """
    if len(set(units_ms)) == 1:
        return _first_of_equals(reviews)
    unit = np.array(units_ms)[reviews["source_file"].to_numpy()]
    kept = np.zeros(len(reviews), bool)
    finer = np.zeros(len(reviews), bool)
    for unit_ms in sorted(set(units_ms)):
        here = unit == unit_ms
        ours = reviews.filter(pl.Series(here))
        first = _first_of_equals(ours)
        key = ["product", "user", "time"]
        moment = (pl.col("time_ms") // unit_ms).alias("time")
        known = reviews.filter(pl.Series(finer)).select("product", "user", moment)
        numbered = ours.select("product", "user", moment).with_row_index("number")
        first[numbered.join(known, on=key, how="semi")["number"].to_numpy()] = False
        kept[here] = first
        finer |= here
    return kept


def _first_of_equals(reviews: pl.DataFrame) -> np.ndarray:
    # Only reviews of one product at one moment can be duplicates: few, so that the hashing is cheap
    with_next = (pl.col("product").diff(-1) == 0) & (pl.col("time_ms").diff(-1) == 0)
    suspect = reviews.select((with_next | with_next.shift(1, fill_value=False)).fill_null(False)).to_series()
    first = reviews.filter(suspect).select(pl.struct("product", "time_ms", "user").is_first_distinct()).to_series()
    kept = np.ones(len(reviews), bool)
    kept[suspect.to_numpy()] = first.to_numpy()
    return kept


def copies_in_later_files(frames: Sequence[pl.DataFrame], units_ms: Sequence[int]) -> list[pl.Series]:
    """Which events of each file stand in an earlier file too: (num_events,) bool each. Within a file nothing is a copy.

    frames : of each file the columns user, item and time, in milliseconds. units_ms : of each file.
    """
    key = ["user", "item", "moment"]
    earlier: dict[int, pl.DataFrame] = {}
    found = []
    for frame, unit in zip(frames, units_ms, strict=True):
        is_copy = np.zeros(frame.height, bool)
        for other_unit, others in earlier.items():
            moment = (pl.col("time") // max(unit, other_unit)).alias("moment")
            ours = frame.select("user", "item", moment).with_row_index("number")
            is_copy[ours.join(others.with_columns(moment), on=key, how="semi")["number"].to_numpy()] = True
        known = frame.select("user", "item", "time")
        earlier[unit] = pl.concat([earlier[unit], known]) if unit in earlier else known
        found.append(pl.Series(is_copy, dtype=pl.Boolean))
    return found
