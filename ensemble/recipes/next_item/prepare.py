"""Preparation of interactions as sequences: each user's items in order of time, divided into train, validation and test.

    python scripts/prepare_data.py --recipe next_item 'source=[beauty.txt.gz]' out=runs/beauty/prepared

    items    item_id, count: item number k is row k − 1, since 0 is padding; count is the number of training interactions
    users    user_id
    events   item, time (milliseconds): all interactions, sorted by user, then by time
    rows/S   row_id, user, begin, end: the sequence is events [begin, end). In train, each event after the first is a target;
             in validation and test, only the last event is. The split forecast has all events of each user with at least
             `core` events, and no target.

split=leave_one_out: train has all but each user's last two events. Sequences of validation end with the second last event,
those of test with the last. Users with only two events are in train only.

split=time: train has the events before `validation_from` of users in the k-core (users and items with at least `core`
events). Each later event of a user with an earlier event is a target of validation or test. Unlike with leave_one_out, no
model is trained on events later than those that it predicts. For the same reason the k-core is computed from the events
before `validation_from`. Targets are events of all users, but with `core` above 1 only of items in the core.
"""

import datetime
import sys
from bisect import bisect
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import FILE, ranges, write_table
from ensemble.data import raw_files
from ensemble.data.census import Census
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.recipes.next_item import interactions
from ensemble.recipes.next_item.settings import PrepareConfig

SPLITS = ("train", "validation", "test")
ROWS = pa.schema({"row_id": pa.int64(), "user": pa.int32(), "begin": pa.int64(), "end": pa.int64()})
STARTS = ("validation_from", "test_from")
"""The settings of split=time: the times from which on events are validation and test."""
MIN_EVENTS = 2  # of a sequence: a target and one event before it


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest. Raises `UserError` for settings and data that cannot be used."""
    configuration.check(config, at_least_1="core", fractions="max_bad_fraction")
    with folders.new_folder(config.out, config.overwrite, folders.PREPARED) as folder:  # before large files are read
        return _write(config, folder)


def _write(config: PrepareConfig, folder: Path) -> dict[str, Any]:
    """Read the files, write the prepared data into `folder`, and return their manifest."""
    census = Census()
    raw = Path(config.raw or f"{config.out.rstrip('/')}-raw")
    files = raw_files.expand_sources(config.source, raw)
    raw_events, formats = interactions.read(files, config.format, config.columns, census)
    census.check(config.max_bad_fraction)
    if config.repeats == "first":
        raw_events = interactions.ordered(raw_events).unique(["user", "item"], keep="first", maintain_order=True)
    starts = _starts(config, formats) if config.split == "time" else None
    core, events = _core_events(config, raw_events, starts)
    users = events["user"].unique(maintain_order=True)
    items = events["item"].unique(maintain_order=True)
    user = events["user"].replace_strict(users, range(len(users)), return_dtype=pl.Int32).to_numpy()
    item = events["item"].replace_strict(items, range(1, len(items) + 1), return_dtype=pl.Int32).to_numpy()
    time = events["time"].to_numpy()
    end = np.cumsum(np.bincount(user, minlength=len(users)))
    begin = np.concatenate([[0], end[:-1]])
    if len(items) < 2:
        fix = "lower it, or give more data" if config.core > 1 else "give data with at least two items"
        raise UserError(f"only item {items[0]} is left with core={config.core}: {fix}")
    if starts:
        split = _by_time(user, time, begin, starts, users.is_in(core["user"].unique().implode()).to_numpy())
    else:
        split = _by_leave_one_out(begin, end)
    for name in SPLITS:
        if not len(split[name][0]):
            raise UserError(f"the {name} split is empty: {_why_empty(config, time, formats)}")
    is_forecast = end - begin >= config.core
    split[FORECAST] = begin[is_forecast], end[is_forecast]
    has_time = "pairs" not in formats and "sequences" not in formats
    in_train, _ = ranges(*split["train"])
    count = np.bincount(item[in_train], minlength=len(items) + 1)[1:]
    write_table(folder / "items", pa.table({"item_id": items.to_arrow(), "count": count}))
    write_table(folder / "users", pa.table({"user_id": users.to_arrow()}))
    write_table(folder / "events", pa.table({"item": item, "time": time}))
    _write_rows(folder / "rows", split, user)
    print("\n".join([census.table(), _describe_core(config.core, raw_events, events)]))
    _print_repeats(events, split["test"][1] - 1)
    if has_time:
        _print_ties(time, split["test"][1] - 1)
    return folders.write_manifest(
        folder,
        {
            **folders.first_entries("next_item", 2),
            "sources": folders.sources(files),
            "config": {name: getattr(config, name) for name in ("split", "core", "repeats", *(STARTS if starts else ()))},
            "users": len(users),
            "items": len(items),
            "events": len(item),
            "features": [],
            "has_time": has_time,
            "common_clock": set(formats) <= interactions.DATED,
            "alike": {"catalogue": folders.sha256(folder / "items" / FILE), "has_time": has_time},
            "splits": {
                name: {"rows": len(split[name][0]), "events": int((split[name][1] - split[name][0]).sum())} for name in split
            },
        },
    )


def _write_rows(folder: Path, split: dict[str, tuple[np.ndarray, np.ndarray]], user: np.ndarray) -> None:
    """Write the rows of each split, with ids that count the rows of all splits. user : (num_events,)."""
    next_id = 0
    for name, (begin, end) in split.items():
        assert name == FORECAST or (end - begin >= MIN_EVENTS).all(), "each target needs an event before it"
        ids = np.arange(next_id, next_id + len(begin))
        columns = {"row_id": ids, "user": user[begin], "begin": begin, "end": end}
        write_table(folder / name, pa.table(columns).cast(ROWS))
        next_id += len(begin)


def _core_events(
    config: PrepareConfig, raw_events: pl.DataFrame, starts: tuple[int, int] | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The k-core, and the ordered events of the prepared data. Raises `UserError` if none is left.

    With split=leave_one_out the two have the same events. With split=time, the core has only events before
    `validation_from`. The prepared data then have the events of all users; with `core` above 1 only those with items of the
    core.
    """
    past = raw_events.filter(pl.col("time") < starts[0]) if starts else raw_events
    core = events = interactions.core(past, config.core)
    if starts:
        is_core_item = pl.col("item").is_in(core["item"].unique().implode())
        events = raw_events.filter(is_core_item) if config.core > 1 else raw_events
    if events.is_empty():
        before = f" before {config.validation_from}" if starts else ""
        largest = bisect(range(1, config.core), False, key=lambda least: interactions.core(past, least).is_empty())
        raise UserError(
            f"of {raw_events.height:,} interactions none is left with core={config.core}{before}: "
            + (f"core={largest} is the largest that leaves any" if largest else "give more data")
        )
    return core, interactions.ordered(events)


def _describe_core(least: int, before: pl.DataFrame, kept: pl.DataFrame) -> str:
    """Text with the numbers of users, items and interactions that are kept. Prints a warning if most are dropped.

    least : `core`. before, kept : all interactions, and those of the prepared data.
    """
    counts = [(frame["user"].n_unique(), frame["item"].n_unique(), frame.height) for frame in (kept, before)]
    parts = [
        f"{num_kept:,} of {total:,} {unit}"
        for num_kept, total, unit in zip(*counts, ("users", "items", "interactions"), strict=True)
    ]
    if 2 * kept.height < before.height:
        print(
            f"warning: core={least} leaves out more than half of the interactions: a lower core keeps more, core=1 all",
            file=sys.stderr,
        )
    return f"core={least} keeps {', '.join(parts)}"


def _print_repeats(events: pl.DataFrame, target: np.ndarray) -> None:
    """Print how many test targets were taken before, if there are any. target : indices of the targets among the events."""
    is_repeat = ~events.select(pl.struct("user", "item").is_first_distinct()).to_series().to_numpy()
    if num_repeats := int(is_repeat[target].sum()):
        print(
            f"{num_repeats:,} of {len(target):,} test targets were taken before by their user and score 0: repeats=first "
            "leaves repeats out"
        )


def _print_ties(time: np.ndarray, target: np.ndarray) -> None:
    """Print how many test targets have the time of the event before, if there are any: in files sorted by item, the last of
    tied items is the target, and a member can learn this order. target : indices of the targets among the events."""
    if num_ties := int((time[target] == time[target - 1]).sum()):
        print(
            f"{num_ties:,} of {len(target):,} test targets have the same time as the event before: their order is that of "
            "the files, and scores depend on it"
        )


def _why_empty(config: PrepareConfig, time: np.ndarray, formats: list[str]) -> str:
    if config.split == "leave_one_out":
        read_as = ", ".join(sorted(set(formats)))
        others = ", ".join(interactions.TEXT_FORMATS)
        return (
            "no user has enough interactions for split=leave_one_out: at least four, the last two for validation and test. "
            f"The files were read as {read_as}: if that is wrong, "
            f"name the format with format=… (of {others})"
        )
    first, last = pl.Series([time.min(), time.max()]).cast(pl.Datetime("ms"))
    return (
        f"with validation_from={config.validation_from} and test_from={config.test_from} no user has enough interactions. "
        f"The interactions are from {first} to {last}: choose other times"
    )


def _by_leave_one_out(begin: np.ndarray, end: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Begin and end of each split's rows. Users with only two events are in no split but train."""
    long = end - begin > MIN_EVENTS
    train_end = np.where(long, end - 2, end)
    enough = train_end - begin >= MIN_EVENTS
    return {
        "train": (begin[enough], train_end[enough]),
        "validation": (begin[long], end[long] - 1),
        "test": (begin[long], end[long]),
    }


def _by_time(
    user: np.ndarray, time: np.ndarray, begin: np.ndarray, starts: tuple[int, int], is_core: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Begin and end of each split's rows. Validation and test have a row for each event that is not its user's first.

    starts : of validation and of test, in milliseconds. is_core : (num_users,) bool, users in the k-core.
    """
    validation_from, test_from = starts
    train_end = begin + np.bincount(user, time < validation_from, len(begin)).astype(np.int64)
    enough = (train_end - begin >= MIN_EVENTS) & is_core
    split = {"train": (begin[enough], train_end[enough])}
    index = np.arange(len(user))
    for name, since, until in (("validation", validation_from, test_from), ("test", test_from, np.inf)):
        is_target = (time >= since) & (time < until) & (index > begin[user])
        split[name] = (begin[user[is_target]], index[is_target] + 1)
    return split


def _starts(config: PrepareConfig, formats: list[str]) -> tuple[int, int]:
    """The start of validation and of test, in milliseconds since 1970."""
    if not set(formats) & interactions.DATED:
        raise UserError(f"split=time needs times since 1970, and the format {formats[0]} has none: use split=leave_one_out")
    validation_from, test_from = (_milliseconds(name, getattr(config, name)) for name in STARTS)
    if validation_from >= test_from:
        fix = "choose a later test_from" if validation_from == test_from else "swap them"
        raise UserError(f"validation_from={config.validation_from} must come before test_from={config.test_from}: {fix}")
    return validation_from, test_from


def _milliseconds(name: str, text: str) -> int:
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{name}={text} is not a time: write it as 2022-07-16 or 2022-07-16 20:18:49.837") from None
    return round(1000 * (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp())
