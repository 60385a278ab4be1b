"""Cross-validation folds forward in time: each fold trains on earlier weeks and predicts a later block of weeks out of fold.

    python scripts/prepare_data.py out=runs/demo/prepared panel.folds=4

The past consists of the weeks whose horizon ends before test begins. The later half of its rows is divided into
`panel.folds` blocks of whole weeks. The folder folds/K of fold K is prepared data with its own manifest and fingerprint:

    train, validation    from the first week to `horizon_weeks` before the block, with `horizon_weeks` left out between them
    blend                the block, whose rows are predicted out of fold
    test, forecast       the same as without folds

The last fold is an additional one, which trains on all of the past and has neither a block nor a blend split. Data that
folders share are stored once, and a row has the same `row_id` in all folders.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.recipes.hot_sellers.splits import split_weeks

Weeks = tuple[int, int]
"""The first and the last week of a range, both included."""
FIRST_BLOCK = 0.5
"""Fraction of the rows of the past that are before the first block, so that the first fold has enough training data."""


def all_weeks(
    first_week: int, last_week: int, week: np.ndarray, panel: PanelConfig
) -> tuple[dict[str, Weeks], list[dict[str, Weeks]]]:
    """The weeks of the splits of data from `first_week` to `last_week`, and those of the splits of each fold.

    week : (num_rows,), the week of each row whose horizon lies inside the data. Raises `UserError` for too few weeks.
    """
    num_labelled = max(0, last_week - panel.horizon_weeks - first_week + 1)
    rows_per_week = np.bincount(week - first_week, minlength=num_labelled)
    weeks_of = split_weeks(first_week, last_week, rows_per_week, panel)
    return weeks_of, fold_weeks(weeks_of, rows_per_week, panel)


def fold_weeks(weeks_of: dict[str, Weeks], rows_per_week: np.ndarray, panel: PanelConfig) -> list[dict[str, Weeks]]:
    """For each fold, the first and the last week of each split: folds with a block in order of time, then the last fold.

    weeks_of : the weeks of the splits of all data. rows_per_week : (num_weeks,), beginning with the first week of train.
    Returns [] if `panel.folds` is 0. Raises `UserError` if the past is too short for the folds.
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
        training = _train_and_validation(first, begin - panel.horizon_weeks, total, panel)
        if training is None or next_begin == begin:
            raise UserError(
                f"panel.folds={panel.folds} is too many for the {past_end - first + 1} weeks before test, with a horizon of "
                f"{panel.horizon_weeks} weeks: choose fewer, set panel.horizon_weeks lower, or give more data"
            )
        block = {} if next_begin is None else {"blend": (begin, next_begin - 1)}
        folds.append({**training, **block, "test": weeks_of["test"]})
    return folds


def _train_and_validation(first: int, end: int, total: np.ndarray, panel: PanelConfig) -> dict[str, Weeks] | None:
    """Divide the weeks [first, end) into train and validation by `panel.shares`, with an embargo; None for too few weeks.

    `total[n]` is the number of rows in the first n weeks.
    """
    begin = np.arange(panel.horizon_weeks + 1, end - first)
    if not begin.size:
        return None
    in_train, in_validation = total[begin - panel.horizon_weeks], total[end - first] - total[begin]
    target_share = panel.shares[1] / (panel.shares[0] + panel.shares[1])
    share = in_validation / np.maximum(in_train + in_validation, 1)
    validation = first + int(begin[np.argmin(np.abs(share - target_share))])
    return {"train": (first, validation - panel.horizon_weeks - 1), "validation": (validation, end - 1)}


def pieces(ranges: Iterable[Weeks]) -> list[Weeks]:
    """The coarsest partition of the weeks in `ranges` such that each range is a union of pieces; in order of time."""
    distinct = set(ranges)
    cuts = sorted({begin for begin, _ in distinct} | {end + 1 for _, end in distinct})
    return [
        (begin, end - 1)
        for begin, end in itertools.pairwise(cuts)
        if any(first <= begin and end - 1 <= last for first, last in distinct)
    ]
