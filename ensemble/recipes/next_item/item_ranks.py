"""Ranks of the target (the next item): among all items except those taken before, and among 100 sampled negatives.

Items that a user took before are not ranked. If the target is one of them, its rank among all items is infinite: to rank it,
and not the other items of the history, a model would have to know the target.

Items with equal scores are ranked in the order of fixed random numbers, see `tie_key`. So HR@k is the share of targets among
the first k items of a ranking, and its expectation is that of a random order. A mean rank has another one: of 20 tied items
each would have the rank 10.5, and none of them would count for HR@10.

Papers before 2020 often ranked the target among 100 items sampled from those that the user never took. Such sampled metrics
can order models differently than metrics over all items (Krichene & Rendle, KDD 2020). They are only for comparison with
those papers. The random numbers of a row are a function of its row id alone, so the sample is the same for every member,
batch size and number of processes.
"""

import functools

import numpy as np

from ensemble.data.splitmix import GOLDEN, finalised, mixed

NUM_TOP = 200
"""Number of best items of each row in a ranking file."""
NUM_SAMPLED = 100
"""Number of sampled items of each row."""


def ranks_of(
    score: np.ndarray, seen_row: np.ndarray, seen_item: np.ndarray, target: np.ndarray, sampled: np.ndarray
) -> dict[str, np.ndarray]:
    """Ranks by integer scores, for baselines; `training.NextItem.predict` does the same for networks.

    Returns the ranks `rank` and `rank_of_101`, (B,), and `items` and `scores`, (B, K), of the K best items, best first.
    `rank` is infinite if the target was taken before or is 0. If fewer than K items are left in a row, the remaining entries
    have item 0 and the lowest score of the row, 0 if none is left.

    score : (B, V) int64 ≥ 0, of the items 1 … V; it is overwritten. seen_row, seen_item : (n,), row index and item number of
    the items taken before. target : (B,), 0 if it is unknown. sampled : (B, 100), see `sampled_items`.
    """
    num_items = score.shape[1]
    # Distinct keys give a unique order, and the item can be found from its key
    place = places(num_items)
    key = score * num_items + place
    target_index = np.maximum(target, 1)[:, None] - 1
    target_key = np.take_along_axis(key, target_index, 1)
    sampled_key = np.where(sampled > 0, np.take_along_axis(key, np.maximum(sampled, 1) - 1, 1), -1)
    key[seen_row, seen_item - 1] = -1
    rank_of_101 = 1.0 + (sampled_key > target_key).sum(1)
    is_ranked = (target > 0) & (np.take_along_axis(key, target_index, 1)[:, 0] >= 0)
    rank = np.where(is_ranked, 1.0 + (key > target_key).sum(1), np.inf)
    num_top = min(NUM_TOP, num_items)
    best = np.sort(np.partition(key, num_items - num_top, axis=1)[:, num_items - num_top :], axis=1)[:, ::-1]
    is_shown = best >= 0
    lowest = np.maximum(np.take_along_axis(best, is_shown.sum(1, keepdims=True) - 1, 1), 0)
    items = np.where(is_shown, np.argsort(place)[best % num_items] + 1, 0).astype(np.int32)
    scores = np.where(is_shown, best, lowest) // num_items
    return {"rank": rank, "rank_of_101": rank_of_101, "items": items, "scores": scores}


@functools.lru_cache(maxsize=1)  # it is the same for each batch
def places(num_items: int) -> np.ndarray:
    """The index of each item in the descending order of `tie_key`: of tied items, that with the higher index is first."""
    return np.argsort(np.argsort(tie_key(np.arange(num_items) + 1))[::-1])


def tie_key(item: np.ndarray) -> np.ndarray:
    """Fixed random numbers, in the order of which items with equal scores are ranked; uint64, of the shape of `item`.

    Items are numbered in the order of the events, later ones included. In the order of their numbers, the next new item of a
    user would often be the first of those with equal scores, and trees would learn this from its place.
    """
    return mixed(item)


def sampled_items(row_id: np.ndarray, row: np.ndarray, taken: np.ndarray, num_items: int) -> np.ndarray:
    """Sample `NUM_SAMPLED` items for each row, uniformly with replacement, that its sequence does not have; (B, 100) int64.

    row_id : (B,). row, taken : (n,), row index and item number of the items of each row's sequence, including the target,
    in any order, repeats allowed. As in published protocols, later items of the user may be sampled. If the sequence has
    all items, the sampled items are 0.
    """
    stride = np.int64(num_items + 1)
    row, taken = np.divmod(np.unique(row * stride + taken), stride)
    start = np.searchsorted(row, np.arange(len(row_id) + 1))
    num_free = (num_items - np.diff(start))[:, None]
    number = (uniform(row_id) * num_free).astype(np.int64) + 1
    # The x-th item that was not taken is x + c. Here c counts the taken items whose number, minus the item's index among the
    # taken items of the row, is at most x
    shifted = row * stride + taken - (np.arange(len(taken)) - start[row])
    query = np.arange(len(row_id))[:, None] * stride + number
    item = number + np.searchsorted(shifted, query, side="right") - start[:-1, None]
    return np.where(num_free > 0, item, 0)


def uniform(row_id: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) by the generator SplitMix64, seeded with each row id; (B, 100)."""
    begin = finalised(np.asarray(row_id).astype(np.uint64) * GOLDEN)[:, None]
    return (finalised(begin + np.arange(1, NUM_SAMPLED + 1, dtype=np.uint64) * GOLDEN) >> np.uint64(11)) * 2.0**-53
