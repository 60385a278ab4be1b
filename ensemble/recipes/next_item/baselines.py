"""Baselines of next_item: `popularity`, and `co_occurrence` with the last item.

    python scripts/predict.py member=popularity data=runs/beauty/prepared out=runs/beauty/rankings
    python scripts/predict.py member=co_occurrence data=runs/beauty/prepared out=runs/beauty/rankings

popularity: the score of an item is its number of training interactions. co_occurrence: the score is the number of times that
the item came directly after the last item of the history, in training. A fraction below 1 is added to it, by which the more
popular of two tied items ranks higher. These numbers are a sparse matrix, which stores only the pairs that occurred.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble import folders
from ensemble.arrow import ranges, read_columns
from ensemble.data.inputs import FORECAST
from ensemble.recipes.next_item.item_ranks import NUM_SAMPLED, ranks_of, sampled_items

NAMES = ("popularity", "co_occurrence")
SCORES_AT_ONCE = 1 << 22
"""Rows × items whose scores are computed at once; they need 32 MB, and a few copies of them are in memory."""


def kinds(manifest: dict[str, Any]) -> dict[str, str]:
    """The names of the baselines, each with its kind."""
    return dict.fromkeys(NAMES, "baseline")


def predict(data: str | Path, split: str, name: str) -> dict[str, Any]:
    """The rankings of a split by a baseline, as arguments of `rankings.Rankings` except split and member."""
    assert name in NAMES
    manifest = folders.read_manifest(data)
    row_id, user, begin, end = read_columns(Path(data) / "rows" / split, ("row_id", "user", "begin", "end")).values()
    item = read_columns(Path(data) / "events", ["item"])["item"]
    is_forecast = split == FORECAST
    last = end - (not is_forecast)  # the events before the target are [begin, last)
    target_of_row = np.zeros(len(last), np.int64) if is_forecast else item[last].astype(np.int64)
    # The level of an item is the position of its count among the distinct counts, so it orders items by popularity
    counts, level = np.unique(read_columns(Path(data) / "items", ["count"])["count"], return_inverse=True)
    followers = _followers(Path(data), item, len(level)) if name == "co_occurrence" else None
    blocks = []
    block_size = max(1, SCORES_AT_ONCE // len(level))
    for first in range(0, len(row_id), block_size):
        block = slice(first, first + block_size)
        target = target_of_row[block]
        event, row = ranges(begin[block], last[block])
        seen = item[event].astype(np.int64)
        sampled = np.zeros((len(target), NUM_SAMPLED), np.int64)
        if not is_forecast:
            row_of_taken, taken = np.concatenate([row, np.arange(len(target))]), np.concatenate([seen, target])
            sampled = sampled_items(row_id[block], row_of_taken, taken, len(level))
        score = np.tile(level, (len(target), 1))
        if followers is not None:
            times = followers[item[last[block] - 1]].tocoo()
            score[times.row, times.col - 1] += times.data * len(counts)
        blocks.append(ranks_of(score, row, seen, target, sampled))
    ranks = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    return {
        "row_id": row_id,
        "user": user,
        "target": target_of_row,
        "length": last - begin,
        **ranks,
        "scores": counts[ranks["scores"]] if followers is None else ranks["scores"] / len(counts),
        "recipe": manifest["recipe"],
        "fingerprint": manifest["fingerprint"],
        "config": {"kind": "baseline", "score": name},
    }


def _followers(data: Path, item: np.ndarray, num_items: int) -> Any:
    """A sparse matrix whose entry [i, j] is how often item j came directly after item i in training."""
    from scipy.sparse import csr_array

    begin, end = read_columns(data / "rows" / "train", ("begin", "end")).values()
    event, _ = ranges(begin, end - 1)
    ones = np.ones(len(event), np.int64)  # the constructor sums the elements of equal pairs
    return csr_array((ones, (item[event], item[event + 1])), shape=(num_items + 1, num_items + 1))
