"""Folds forward in time: on which weeks each copy of a member learns, and which later ones it then forecasts unseen.

    python scripts/prepare_data.py out=runs/demo/prepared panel.folds=4

The weeks whose horizon ends before test begins are the past. The later half of its rows is cut into `panel.folds` blocks of
whole weeks, and the folder folds/K of fold K is prepared data like any other, with a manifest and a fingerprint of its own:

    train, validation    from the past's first week to `horizon_weeks` before the block, with as many left out between them
    blend                the block: the weeks out of this fold
    test, forecast       those of the whole

One more fold, the last, learns from all of the past and has no block, hence no blend. Of what the folders share each byte is
on disk once, and a row has the same `row_id` in all of them.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PanelConfig

Weeks = tuple[int, int]
FIRST_BLOCK = 0.5
"""The part of the past's rows before the first block: the copy that knows least should still resemble the others."""


def fold_weeks(weeks_of: dict[str, Weeks], rows_per_week: np.ndarray, panel: PanelConfig) -> list[dict[str, Weeks]]:
    """First and last week, both included, of the splits of each fold: those with a block in order of time, and the last.

    `weeks_of` has those of the whole, and `rows_per_week` (num_weeks,) counts the rows from its first week on. Raises
    `UserError` when the past is too short for so many folds.
    """
    if not panel.folds:
        return []
    first, past_end = weeks_of["train"][0], weeks_of["blend"][1]
    total = np.concatenate([[0], np.cumsum(rows_per_week[: past_end - first + 1])])
    shares = np.linspace(FIRST_BLOCK, 1, panel.folds, endpoint=False)
    begins = [first + int(week) for week in np.searchsorted(total, shares * total[-1])]
    blocks = [*itertools.pairwise([*begins, past_end + 1]), (weeks_of["test"][0], None)]
    folds = []
    for begin, next_begin in blocks:
        known = _train_and_validation(first, begin - panel.horizon_weeks, total, panel)
        if known is None or next_begin == begin:
            raise UserError(
                f"panel.folds={panel.folds} is too many for the {past_end - first + 1} weeks before test, with a horizon of "
                f"{panel.horizon_weeks} weeks: choose fewer, set panel.horizon_weeks lower, or give more data"
            )
        block = {} if next_begin is None else {"blend": (begin, next_begin - 1)}
        folds.append({**known, **block, "test": weeks_of["test"]})
    return folds


def _train_and_validation(first: int, end: int, total: np.ndarray, panel: PanelConfig) -> dict[str, Weeks] | None:
    """The weeks [first, end) as train and validation by their shares, with an embargo between; None if they are too few.

    `total[n]` counts the rows of the first n weeks.
    """
    begin = np.arange(panel.horizon_weeks + 1, end - first)
    if not begin.size:
        return None
    in_train, in_validation = total[begin - panel.horizon_weeks], total[end - first] - total[begin]
    wanted = panel.shares[1] / (panel.shares[0] + panel.shares[1])
    share = in_validation / np.maximum(in_train + in_validation, 1)
    validation = first + int(begin[np.argmin(np.abs(share - wanted))])
    return {"train": (first, validation - panel.horizon_weeks - 1), "validation": (validation, end - 1)}


def pieces(ranges: Iterable[Weeks]) -> list[Weeks]:
    """Cut the weeks so that each range is some of the pieces whole, and drop those that are in none; in order of time."""
    wanted = set(ranges)
    cuts = sorted({begin for begin, _ in wanted} | {end + 1 for _, end in wanted})
    return [
        (begin, end - 1)
        for begin, end in itertools.pairwise(cuts)
        if any(first <= begin and end - 1 <= last for first, last in wanted)
    ]
