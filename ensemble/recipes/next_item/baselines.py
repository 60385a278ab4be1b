"""The baselines that every next_item member must beat: what is popular, and what followed the last item.

    python scripts/predict.py member=popularity data=runs/beauty/prepared out=runs/beauty/rankings
    python scripts/predict.py member=co_occurrence data=runs/beauty/prepared out=runs/beauty/rankings

popularity: items by how often they were taken in training; scores are these counts. co_occurrence: by how often each came
directly after the last item of the history, in training; those that tie, and so all that never did, by popularity. Its
scores are the counts plus a part of 1 for popularity. No table of items × items is made, only the pairs that occurred.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import Column, open_table, ranges
from ensemble.recipes.next_item.item_ranks import Ranks, ranked, sampled_items

NAMES = ("popularity", "co_occurrence")
SCORES_AT_ONCE = 1 << 22
"""Rows × items whose scores are in memory at once: 32 MB, and a few copies."""


def kinds(about: dict[str, Any]) -> dict[str, str]:
    """The baselines of data with this manifest, and what kind each is."""
    return dict.fromkeys(NAMES, "baseline")


def predict(data: str | Path, split: str, name: str) -> dict[str, Any]:
    """The rankings of a split by the baseline of that name: the arguments of `rankings.Rankings`, but split and member."""
    assert name in NAMES
    about = folders.read_manifest(data)
    rows = open_table(Path(data) / "rows" / split)
    row_id, user, begin, end = (Column(rows, column).all() for column in ("row_id", "user", "begin", "end"))
    item = Column(open_table(Path(data) / "events"), "item").all()
    counts, level = np.unique(Column(open_table(Path(data) / "items"), "count").all(), return_inverse=True)
    followers = _Followers(Path(data), item) if name == "co_occurrence" else None
    found = []
    at_once = max(1, SCORES_AT_ONCE // len(level))
    for first in range(0, len(row_id), at_once):
        here = slice(first, first + at_once)
        target = item[end[here] - 1].astype(np.int64)
        place, owner = ranges(begin[here], end[here] - 1)
        seen = item[place].astype(np.int64)
        everyone = np.arange(len(target))
        sampled = sampled_items(row_id[here], np.concatenate([owner, everyone]), np.concatenate([seen, target]), len(level))
        score = np.tile(level, (len(target), 1))
        if followers:
            owner_of_follower, follower, times = followers.of(item[end[here] - 2])
            score[owner_of_follower, follower - 1] += times * len(counts)
        found.append(ranked(score, owner, seen, target, sampled))
    ranks = Ranks(*(np.concatenate(column) for column in zip(*found, strict=True)))
    return {
        "row_id": row_id,
        "user": user,
        "target": item[end - 1],
        "length": end - begin - 1,
        **ranks._asdict(),
        "scores": ranks.scores / len(counts) if followers else counts[ranks.scores],
        "recipe": about["recipe"],
        "fingerprint": about["fingerprint"],
        "config": {"kind": "baseline", "score": name},
    }


class _Followers:
    """How often each item came directly after each other one in training: only pairs that occurred, sorted by the first."""

    def __init__(self, data: Path, item: np.ndarray) -> None:
        rows = open_table(data / "rows" / "train")
        place, _ = ranges(Column(rows, "begin").all(), Column(rows, "end").all() - 1)
        stride = np.int64(item.max()) + 1
        pairs, self.times = np.unique(item[place] * stride + item[place + 1], return_counts=True)
        self.before, self.after = np.divmod(pairs, stride)

    def of(self, item: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each item the place in `item`, the items that came after it, and how often; flat arrays."""
        first, last = (np.searchsorted(self.before, item, side=side) for side in ("left", "right"))
        pair, owner = ranges(first, last)
        return owner, self.after[pair], self.times[pair]
