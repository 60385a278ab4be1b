"""The rank of the item that came next: among all items but those taken before, and among 100 that are drawn.

1 positive + 100 negatives is how papers before 2020 measured: the target's rank among itself and 100 items drawn from
those that the user never took. Such figures order models otherwise than ranks among all items do (Krichene & Rendle, KDD
2020); they serve to compare with those tables, and no more. The draw is a function of the row's id alone: the same for
every member, number of ranks and size of a batch.
"""

from typing import NamedTuple

import numpy as np

NUM_TOP = 200
"""The best items of each row that are kept."""
NUM_SAMPLED = 100
SEED = 0
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Ranks(NamedTuple):
    """Of B rows: ranks (B,), where items that tie share their mean place; and the K best items, best first, (B, K)."""

    rank: np.ndarray
    rank_of_101: np.ndarray
    items: np.ndarray
    """0 where there are fewer."""
    scores: np.ndarray
    """Theirs; where the item is 0, the row's lowest."""


def ranked(score: np.ndarray, seen_row: np.ndarray, seen_item: np.ndarray, target: np.ndarray, sampled: np.ndarray) -> Ranks:
    """Rank by whole numbers, for members without a network; `next_item.NextItem.predict` does the same on a device.

    score : (B, V) int64 from 0 on, of the items 1 … V; used up. seen_row, seen_item : (n,), what was taken before. target :
    (B,). sampled : (B, 100), see `sampled_items`. Of items that tie, those of a lower number are shown first.
    """
    num_items = score.shape[1]
    target_score = np.take_along_axis(score, target[:, None] - 1, 1)
    of_sampled = np.where(sampled > 0, np.take_along_axis(score, np.maximum(sampled, 1) - 1, 1), -1)
    score[seen_row, seen_item - 1] = -1
    np.put_along_axis(score, target[:, None] - 1, target_score, 1)
    rank, rank_of_101 = (
        1 + (of > target_score).sum(1) + ((of == target_score).sum(1) - its_own) / 2
        for of, its_own in ((score, 1), (of_sampled, 0))
    )
    # No two alike, so that there is one order, and the item can be read from the number
    key = score * num_items + np.arange(num_items - 1, -1, -1)
    num_top = min(NUM_TOP, num_items)
    best = np.sort(np.partition(key, num_items - num_top, axis=1)[:, num_items - num_top :], axis=1)[:, ::-1]
    is_shown = best >= 0
    lowest = np.take_along_axis(best, is_shown.sum(1, keepdims=True) - 1, 1)
    items = np.where(is_shown, num_items - best % num_items, 0).astype(np.int32)
    return Ranks(rank, rank_of_101, items, np.where(is_shown, best, lowest) // num_items)


def sampled_items(row_id: np.ndarray, owner: np.ndarray, taken: np.ndarray, num_items: int) -> np.ndarray:
    """`NUM_SAMPLED` items of each row that are not among its taken ones, all alike, with replacement; int64, (B, 100).

    row_id : (B,). owner, taken : (n,), place in `row_id` and item number of everything that the row's user took, the target
    too, in any order, repeats allowed. Where nothing is left to draw, the item is 0.
    """
    stride = np.int64(num_items + 1)
    owner, taken = np.divmod(np.unique(owner * stride + taken), stride)
    start = np.searchsorted(owner, np.arange(len(row_id) + 1))
    num_free = (num_items - np.diff(start))[:, None]
    number = (_uniform(row_id) * num_free).astype(np.int64) + 1
    # The x-th item that was not taken is x + the number of those taken that are, less their place among them, at most x
    at_most = owner * stride + taken - (np.arange(len(taken)) - start[owner])
    asked = np.arange(len(row_id))[:, None] * stride + number
    found = number + np.searchsorted(at_most, asked, side="right") - start[:-1, None]
    return np.where(num_free > 0, found, 0)


def _uniform(row_id: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) by the generator splitmix64 (Steele, Lea & Flood 2014), begun anew for each row; (B, 100)."""
    begin = _mixed(np.asarray(row_id).astype(np.uint64) * _STEP + np.uint64(SEED))[:, None]
    return (_mixed(begin + np.arange(1, NUM_SAMPLED + 1, dtype=np.uint64) * _STEP) >> np.uint64(11)) * 2.0**-53


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
