"""Interactions to sequences: what each user took, in order, and from which of it which item is to be foretold.

    python scripts/prepare_data.py --recipe next_item 'source=[beauty.txt.gz]' out=runs/beauty/prepared

    items    item_id, count: item number k stands in row k − 1, since 0 is padding; count is that among training interactions
    users    user_id
    events   item, time (milliseconds): all interactions, one user after the other, oldest first
    rows/S   row_id, user, begin, end: the events [begin, end); of train all are to be learned, of the others the last one is
             to be foretold from those before it

leave_one_out: train has all but a user's last two events, validation ends with the last but one, test with the last.
time: train has the events before `validation_from`; each later one that has an event of its user before it is foretold,
in validation or test. That is honest: with leave_one_out, what one user took last was learned from what others took later.
For the same reason the core is then that of the events before `validation_from`: all users are foretold, of its items.
"""

import datetime
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import FILE, write_table
from ensemble.data import reviews
from ensemble.data.census import Census
from ensemble.errors import UserError
from ensemble.recipes.next_item import interactions
from ensemble.recipes.next_item.settings import PrepareConfig

KIND = "prepared data"
SPLITS = ("train", "validation", "test")
ROWS = pa.schema({"row_id": pa.int64(), "user": pa.int32(), "begin": pa.int64(), "end": pa.int64()})
WINDOW = ("validation_from", "test_from")
HISTORY = 2  # of an event and the one before it, something can be learned


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest; `UserError` for what the user can mend."""
    configuration.check(config, core=(config.core >= 1, "at least 1"))
    census = Census()
    raw = Path(config.raw or f"{config.out.rstrip('/')}-raw")
    files = reviews.expand_sources(config.source, raw)
    found, formats = interactions.read(files, config.format, config.columns, census)
    census.check(config.max_bad_fraction)
    if config.repeats == "first":
        found = interactions.ordered(found).unique(["user", "item"], keep="first", maintain_order=True)
    window = _window(config, formats) if config.split == "time" else None
    # Who and what is known well enough is decided by what is learned from: with split=time, by the past
    core = interactions.core(found.filter(pl.col("time") < window[0]) if window else found, config.core)
    kept = _of_its_items(found, core, config.core) if window else core
    events = interactions.ordered(kept)
    if events.is_empty():
        before = f" before {config.validation_from}" if window else ""
        past = found.filter(pl.col("time") < window[0]) if window else found
        largest = next((least for least in range(config.core - 1, 0, -1) if interactions.core(past, least).height), None)
        raise UserError(
            f"of {found.height:,} interactions none is left with core={config.core}{before}: "
            + (f"core={largest} is the largest that leaves any" if largest else "give more data")
        )
    users = events["user"].unique(maintain_order=True)
    items = events["item"].unique(maintain_order=True)
    user = events["user"].replace_strict(users, range(len(users)), return_dtype=pl.Int32).to_numpy()
    item = events["item"].replace_strict(items, range(1, len(items) + 1), return_dtype=pl.Int32).to_numpy()
    time = events["time"].to_numpy()
    end = np.cumsum(np.bincount(user, minlength=len(users)))
    begin = np.concatenate([[0], end[:-1]])
    if len(items) < 2:
        raise UserError(f"only item {items[0]} is left with core={config.core}: lower it, or give more data")
    if window:
        split = _by_time(user, time, begin, end, window, users.is_in(core["user"].unique().implode()).to_numpy())
    else:
        split = _last_ones(begin, end)
    for name in SPLITS:
        if not len(split[name][0]):
            raise UserError(f"the {name} split is empty: {_why_empty(config, time, formats)}")
    has_time = "pairs" not in formats and "sequences" not in formats
    learned = np.zeros(len(item), bool)
    for first, last in zip(*split["train"], strict=True):
        learned[first:last] = True
    with folders.new_folder(config.out, config.overwrite, KIND) as folder:
        count = np.bincount(item[learned], minlength=len(items) + 1)[1:]
        write_table(folder / "items", pa.table({"item_id": items.to_arrow(), "count": count}))
        write_table(folder / "users", pa.table({"user_id": users.to_arrow()}))
        write_table(folder / "events", pa.table({"item": item, "time": time}))
        next_id = 0
        for name in SPLITS:
            first, last = split[name]
            assert (last - first >= HISTORY).all(), "there would be nothing to foretell from"
            ids = np.arange(next_id, next_id + len(first))
            columns = {"row_id": ids, "user": user[first], "begin": first, "end": last}
            write_table(folder / "rows" / name, pa.table(columns).cast(ROWS))
            next_id += len(first)
        print("\n".join([census.table(), _core_in_words(config.core, found, events)]))
        return folders.write_manifest(
            folder,
            {
                "kind": KIND,
                "recipe": "next_item",
                "schema_version": 2,
                "sources": folders.sources(files),
                "config": {
                    name: getattr(config, name) for name in ("split", "core", "repeats", *(WINDOW if window else ()))
                },
                "users": len(users),
                "items": len(items),
                "events": len(item),
                "features": [],
                "has_time": has_time,
                "common_clock": set(formats) <= interactions.DATED,
                "alike": {"catalogue": folders.sha256(folder / "items" / FILE), "has_time": has_time},
                "splits": {
                    name: {"rows": len(split[name][0]), "events": int((split[name][1] - split[name][0]).sum())}
                    for name in SPLITS
                },
            },
        )


def _of_its_items(found: pl.DataFrame, core: pl.DataFrame, least: int) -> pl.DataFrame:
    """What anyone, of the core or not, took of the core's items; all, where there is no core."""
    return found.filter(pl.col("item").is_in(core["item"].unique().implode())) if least > 1 else found


def _core_in_words(least: int, found: pl.DataFrame, kept: pl.DataFrame) -> str:
    """What core=… left of users, items and interactions; a warning where most interactions are lost."""
    counts = [(frame["user"].n_unique(), frame["item"].n_unique(), frame.height) for frame in (kept, found)]
    parts = [
        f"{left:,} of {all_of:,} {what}"
        for left, all_of, what in zip(*counts, ("users", "items", "interactions"), strict=True)
    ]
    if 2 * kept.height < found.height:
        print(
            f"warning: core={least} leaves out more than half of the interactions: a lower core keeps more, core=1 all",
            file=sys.stderr,
        )
    return f"core={least} keeps {', '.join(parts)}"


def _why_empty(config: PrepareConfig, time: np.ndarray, formats: list[str]) -> str:
    if config.split == "leave_one_out":
        read_as = ", ".join(sorted(set(formats)))
        others = ", ".join(interactions.TEXT_FORMATS)
        return (
            f"no user has enough interactions for split=leave_one_out. The files were read as {read_as}: if they are of "
            f"another kind, name it with format=… (of {others})"
        )
    first, last = pl.Series([time.min(), time.max()]).cast(pl.Datetime("ms"))
    return (
        f"with validation_from={config.validation_from} and test_from={config.test_from} no user has enough interactions, "
        f"which go from {first} to {last}: choose other moments"
    )


def _last_ones(begin: np.ndarray, end: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Begin and end of each split's rows; a user with one or two events is only learned from."""
    long = end - begin > HISTORY
    learned = np.where(long, end - 2, end)
    enough = learned - begin >= HISTORY
    return {
        "train": (begin[enough], learned[enough]),
        "validation": (begin[long], end[long] - 1),
        "test": (begin[long], end[long]),
    }


def _by_time(
    user: np.ndarray, time: np.ndarray, begin: np.ndarray, end: np.ndarray, window: tuple[int, int], is_core: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Begin and end of each split's rows: every event from the first moment on that has one before it is a row's last.

    is_core : (num_users,) bool, of those who are learned from.
    """
    validation_from, test_from = window
    early = begin + np.bincount(user, time < validation_from, len(begin)).astype(np.int64)
    enough = (early - begin >= HISTORY) & is_core
    found = {"train": (begin[enough], early[enough])}
    place = np.arange(len(user))
    for name, since, until in (("validation", validation_from, test_from), ("test", test_from, np.inf)):
        foretold = (time >= since) & (time < until) & (place > begin[user])
        found[name] = (begin[user[foretold]], place[foretold] + 1)
    return found


def _window(config: PrepareConfig, formats: list[str]) -> tuple[int, int]:
    """The first moments of validation and test, in milliseconds."""
    if not set(formats) & interactions.DATED:
        raise UserError(f"split=time needs the time of day, and {formats[0]} have none: use split=leave_one_out")
    validation_from, test_from = (_moment(name, getattr(config, name)) for name in WINDOW)
    if validation_from >= test_from:
        raise UserError(
            f"validation_from={config.validation_from} must come before test_from={config.test_from}: exchange them"
        )
    return validation_from, test_from


def _moment(name: str, text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{name}={text} is no moment: write it as 2022-07-16 or 2022-07-16 20:18:49.837") from None
    return round(1000 * (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())
