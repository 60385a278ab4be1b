"""How good a ranking of items is, one item of which came next: hit rate, NDCG, MRR, and what the best items are like.

With one relevant item, a row's NDCG@k is 1 / log2(rank + 1) and its reciprocal rank 1 / rank where the rank is at most k,
and 0 beyond. Ranks may be halves, where items tie, and infinite, where the item was not even a candidate.
"""

import itertools

import numpy as np

CUT_OFFS = (1, 5, 10, 20)
BEST = 10
"""Items that are shown to a user, of which coverage and popularity are taken."""
LENGTHS = (1, 5, 10, 20, 50)
"""Where the parts by length of history begin."""


def item_scores(
    rank: np.ndarray, items: np.ndarray, target: np.ndarray, count: np.ndarray, rank_of_101: np.ndarray | None = None
) -> dict[str, float]:
    """hr, ndcg and mrr at 1, 5, 10 and 20, as `ndcg_at_10`; coverage and popularity; sampled figures if asked for.

    rank, target : (num_rows,), target by item number, 1 …. items : (num_rows, K), the best first, 0 for none. count :
    (num_items,), how often each was taken in training. rank_of_101 : (num_rows,), among the target and 100 negatives.

    coverage_at_10 is the part of all items that is among anyone's ten best. popularity_at_10 is the chance that one of the
    ten best was taken more often than the item that a row's user took next, where equal counts are one half: 0.5 when
    what is shown is as popular as what is taken, 1 when only best-sellers are shown.
    """
    scores = {}
    for cut_off in CUT_OFFS:
        for name, of_row in (("hr", hit), ("ndcg", ndcg), ("mrr", reciprocal_rank)):
            scores[f"{name}_at_{cut_off}"] = float(of_row(rank, cut_off).mean())
    best = items[:, :BEST]
    best = best[best > 0]
    scores["coverage_at_10"] = len(np.unique(best)) / len(count)
    taken, shown = np.sort(count[target - 1]), count[best - 1]
    less, at_most = (np.searchsorted(taken, shown, side=side) for side in ("left", "right"))
    scores["popularity_at_10"] = float((less + at_most).mean() / 2 / len(taken)) if best.size else 0.0
    if rank_of_101 is not None:
        scores["hr_at_10_of_101"] = float(hit(rank_of_101, BEST).mean())
        scores["ndcg_at_10_of_101"] = float(ndcg(rank_of_101, BEST).mean())
    return scores


def scores_by_length(rank: np.ndarray, length: np.ndarray) -> dict[str, dict[str, float]]:
    """hr and ndcg at 10, and the number of rows, of the histories of 1–4, 5–9, 10–19, 20–49 and 50+ items.

    rank, length : (num_rows,). A part without rows is left out.
    """
    part = np.searchsorted(LENGTHS, length, side="right") - 1
    names = [f"{begin}–{end - 1}" for begin, end in itertools.pairwise(LENGTHS)] + [f"{LENGTHS[-1]}+"]
    return {
        names[number]: {
            "rows": int((part == number).sum()),
            "hr_at_10": float(hit(rank[part == number], BEST).mean()),
            "ndcg_at_10": float(ndcg(rank[part == number], BEST).mean()),
        }
        for number in np.unique(part)
    }


def hit(rank: np.ndarray, cut_off: int) -> np.ndarray:
    """Of each row, whether the target is among the first."""
    return (rank <= cut_off).astype(float)


def ndcg(rank: np.ndarray, cut_off: int) -> np.ndarray:
    """Of each row."""
    return hit(rank, cut_off) / np.log2(rank + 1)


def reciprocal_rank(rank: np.ndarray, cut_off: int) -> np.ndarray:
    """Of each row, and 0 beyond the cut-off."""
    return hit(rank, cut_off) / rank
