"""Metrics of rankings of items with one relevant item, the target: hit rate, NDCG, MRR, coverage and popularity.

If the rank of a target is at most k, NDCG@k of the row is 1 / log2(rank + 1), and its reciprocal rank is 1 / rank; else both
are 0. A rank is infinite if the target was taken before or is not among the candidates.
"""

import numpy as np

CUT_OFFS = (1, 5, 10, 20)
NUM_BEST = 10
"""Number of best items from which coverage and popularity are computed."""
LENGTHS = {"1–4": 1, "5–9": 5, "10–19": 10, "20–49": 20, "50+": 50}
"""The ranges of history lengths, with their lower bounds."""


def item_scores(
    rank: np.ndarray, items: np.ndarray, target: np.ndarray, count: np.ndarray, rank_of_101: np.ndarray | None = None
) -> dict[str, float]:
    """hr, ndcg and mrr at 1, 5, 10 and 20 (`ndcg_at_10`), coverage, popularity, and with `rank_of_101` sampled metrics.

    rank, target : (num_rows,), targets as numbers from 1 on. items : (num_rows, K), the best first, 0 for none. count :
    (num_items,), the training interactions of items. rank_of_101 : (num_rows,), among the target and 100 sampled items.

    coverage_at_10 is the share of all items that are among the ten best of any row. popularity_at_10 is the probability that
    a random item of the ten best has a higher count than a random target, plus half the probability of equal counts: 0.5 if
    the best items are as popular as the targets, towards 1 if only popular items are ranked high.
    """
    scores: dict[str, float] = {}
    for cut_off in CUT_OFFS:
        gains = {"hr": hit(rank, cut_off), "ndcg": ndcg(rank, cut_off), "mrr": hit(rank, cut_off) / rank}
        scores |= {f"{name}_at_{cut_off}": float(gain.mean()) for name, gain in gains.items()}
    best = items[:, :NUM_BEST]
    best = best[best > 0]
    scores["coverage_at_10"] = len(np.unique(best)) / len(count)
    target_count, best_count = np.sort(count[target - 1]), count[best - 1]
    less, at_most = (np.searchsorted(target_count, best_count, side=side) for side in ("left", "right"))
    scores["popularity_at_10"] = float((less + at_most).mean() / 2 / len(target)) if best.size else 0.0
    if rank_of_101 is not None:
        scores["hr_at_10_of_101"] = float(hit(rank_of_101, 10).mean())
        scores["ndcg_at_10_of_101"] = float(ndcg(rank_of_101, 10).mean())
    return scores


def scores_by_length(rank: np.ndarray, length: np.ndarray) -> dict[str, dict[str, float]]:
    """hr and ndcg at 10, and the number of rows, for each range of `LENGTHS`.

    rank, length : (num_rows,), the rank of the target and the length of the history. Ranges without rows are left out.
    """
    part = np.searchsorted(list(LENGTHS.values()), length, side="right") - 1
    ranks_of = {name: rank[part == number] for number, name in enumerate(LENGTHS)}
    return {
        name: {"rows": len(ranks), "hr_at_10": float(hit(ranks, 10).mean()), "ndcg_at_10": float(ndcg(ranks, 10).mean())}
        for name, ranks in ranks_of.items()
        if len(ranks)
    }


def hit(rank: np.ndarray, cut_off: int) -> np.ndarray:
    """1 for rows whose target is among the first `cut_off` items, else 0; (num_rows,)."""
    return (rank <= cut_off).astype(float)


def ndcg(rank: np.ndarray, cut_off: int) -> np.ndarray:
    """NDCG of each row, (num_rows,)."""
    return hit(rank, cut_off) / np.log2(rank + 1)
