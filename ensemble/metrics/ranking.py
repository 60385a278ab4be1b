"""Scores of an order within groups: the rows of a query, the items shown to a user, the products of a week.

Relevance is 0, 1, 2 …; only the order of the predictions within a group counts. Rows that tie share their places: each
score is its mean over all ways to break the tie (the reciprocal rank that of the mean rank), so no order of rows matters.
Groups without a relevant row say nothing of an order, and are left out of every mean.
"""

import functools
import itertools

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics.blocks import starts_of

PLACES = 10


def ndcg_at_10(target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Mean over groups of the normalised discounted cumulative gain of the first 10 places; NaN without a relevant row.

    The gain is 2^relevance − 1, the discount log2(place + 1) (Burges et al. 2005), the normaliser the best order's. What
    a `weight`, (num_rows,), means for a group is described in `RankingScorer`.
    """
    target, prediction = _checked(target, prediction)
    return Ndcg(target, group, weight)(prediction)


class Ndcg:
    """NDCG@10 of many predictions of the same rows, some ten times as fast as a sort of all rows by group and prediction.

    Groups of like size lie in one table, a group a row, so that they are sorted side by side. Of a group with one relevant
    row nothing is sorted: its score is the discount at that row's place, which is counted. Rows of weight 0 do not count;
    where the other rows of a group have unlike weights, `RankingScorer` is asked, which sorts all rows.
    """

    def __init__(self, target: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None) -> None:
        self.kept: np.ndarray | None = None
        self.unlike: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        if weight is not None:
            self.kept = np.flatnonzero(weight > 0)
            target, group, weight = (np.asarray(of)[self.kept] for of in (target, group, weight))
        gain = np.append(np.exp2(target) - 1, 0.0)
        order = np.argsort(group, kind="stable")
        first = starts_of(np.asarray(group)[order])
        size = np.diff(np.append(first, len(order)))
        num_relevant = np.add.reduceat((gain[order] > 0).astype(int), first)
        self.num_groups = int((num_relevant > 0).sum())
        times = np.ones(len(first))
        if weight is not None:
            least, times = (extreme.reduceat(weight[order], first) for extreme in (np.minimum, np.maximum))
            if (least < times).any():
                self.unlike = target, group, weight
                return
        self.total_times = float(times[num_relevant > 0].sum()) if weight is not None else self.num_groups
        self.discount = 1 / np.log2(np.arange(PLACES) + 2)
        self.tables, self.singles = [], []
        width = 2 ** np.ceil(np.log2(size)).astype(int)
        for wide, is_single in itertools.product(np.unique(width[num_relevant > 0]), (True, False)):
            here = (width == wide) & ((num_relevant == 1) if is_single else (num_relevant > 1))
            position = np.arange(wide)
            rows = np.full((here.sum(), wide), len(order))  # beyond the group's end: a row of no gain, last of all
            within = position < size[here, None]
            rows[within] = order[(first[here, None] + position)[within]]
            if is_single:
                self.singles.append((rows, rows[gain[rows] > 0], times[here]))
            else:
                best = -np.sort(-gain[rows], axis=1)[:, :PLACES] @ self.discount[:wide]
                self.tables.append((rows, gain[rows], best / times[here]))

    def __call__(self, prediction: np.ndarray) -> float:
        """The mean over groups with a relevant row, NaN without; prediction: (num_rows,), finite."""
        if not self.num_groups:
            return float("nan")
        if self.kept is not None:
            prediction = prediction[self.kept]
        if self.unlike:
            target, group, weight = self.unlike
            return float(RankingScorer(target, prediction, group).scores(weight)[1])
        padded = np.append(-prediction, np.inf)
        total = 0.0
        up_to = np.append(0.0, np.cumsum(self.discount))
        for rows, relevant, times in self.singles:
            falling, its_own = padded[rows], padded[relevant][:, None]
            higher, same = (falling < its_own).sum(1), (falling == its_own).sum(1)
            until, before = (up_to[np.minimum(place, PLACES)] for place in (higher + same, higher))
            total += float(((until - before) / same * times).sum())
        for rows, gain, best in self.tables:
            falling = padded[rows]
            order = np.argsort(falling, axis=1)
            falling, shown = np.take_along_axis(falling, order, 1), np.take_along_axis(gain, order, 1)
            ties = falling[:, 1:] == falling[:, :-1]
            if ties[:, :PLACES].any():
                shown = _mean_of_ties(shown, ties)
            total += float((shown[:, :PLACES] @ self.discount[: rows.shape[1]] / best).sum())
        return total / self.total_times


def _mean_of_ties(values: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Each value's mean over the run that it ties with; values: (num_groups, width), ties: the same with the next one."""
    begins = np.concatenate([np.ones((len(values), 1), bool), ~ties], axis=1).ravel()
    starts = np.flatnonzero(begins)
    size = np.diff(np.append(starts, begins.size))
    return np.repeat(np.add.reduceat(values.ravel(), starts) / size, size).reshape(values.shape)


class RankingScorer:
    """See `Scorer`: all sorting is done here, once.

    A group whose rows all have one weight counts that often: a user drawn twice is two users. In a group of unlike weights
    a row of weight 2 is two rows that tie, for there the week's products are drawn, and not the week.
    """

    def __init__(self, target: np.ndarray, prediction: np.ndarray, group: np.ndarray) -> None:
        target, prediction = _checked(target, prediction)
        groups, group = np.unique(group, return_inverse=True)
        assert group.shape == target.shape
        self.num_groups = len(groups)
        self.order = np.lexsort((-prediction, group))
        self.target, self.group = target[self.order], group[self.order]
        self.gain = np.exp2(self.target) - 1
        self.group_starts = starts_of(self.group)
        self.starts = starts_of(prediction[self.order], self.group)
        self.block_group = self.group[self.starts]
        # Within each group by falling relevance: positions in the order above.
        self.best_order = np.lexsort((-self.target, self.group))
        self.best_starts = starts_of(self.target[self.best_order], self.group)

    def scores(self, weight: np.ndarray) -> np.ndarray:
        mass, times = self.masses(weight)
        if (mass == 1).all():
            return self.scores_of_groups(times)
        return np.array([_mean(score, times) for score in self._of_groups(mass)])

    def scores_of_groups(self, times: np.ndarray) -> np.ndarray:
        """`scores`, where each group, in rising order, counts so many times: (num_groups,), not one for each row."""
        return np.array([_mean(score, times) for score in self._of_whole_groups])

    @functools.cached_property
    def _of_whole_groups(self) -> list[np.ndarray]:
        """The scores of the groups where each row counts once, whatever the group counts."""
        return self._of_groups(np.ones(len(self.order)))

    def _of_groups(self, mass: np.ndarray) -> list[np.ndarray]:
        return [self.ndcg(mass, 5), self.ndcg(mass, PLACES), self._reciprocal_rank(mass), self._recall(mass, PLACES)]

    def masses(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many rows each sorted row stands for, and how often each group counts."""
        mass = weight[self.order]
        least, most = (extreme.reduceat(mass, self.group_starts) for extreme in (np.minimum, np.maximum))
        is_one = least == most  # a group of weight 0 has scores too, and counts 0 times
        return np.where(is_one[self.group], 1.0, mass), np.where(is_one, most, 1.0)

    def ndcg(self, mass: np.ndarray, places: int) -> np.ndarray:
        """For each group; NaN for one without a relevant row."""
        gain = self._gain(mass, self.gain, self.starts, places)
        best = self._gain(mass[self.best_order], self.gain[self.best_order], self.best_starts, places)
        return np.divide(gain, best, out=np.full(self.num_groups, np.nan), where=best > 0)

    def _gain(self, mass: np.ndarray, gain: np.ndarray, starts: np.ndarray, places: int) -> np.ndarray:
        """The discounted gain of each group's first places: each block's mean gain at the discounts of its places."""
        sizes, first = self._places(mass, starts)
        gains = np.add.reduceat(mass * gain, starts) / np.where(sizes > 0, sizes, 1)
        discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(places) + 2))])
        until, before = (np.interp(place, np.arange(places + 1), discounts) for place in (first + sizes, first))
        return np.bincount(self.group[starts], gains * (until - before), self.num_groups)

    def _places(self, mass: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of rows of each block, and of those above it in its group."""
        sizes = np.add.reduceat(mass, starts)
        of_group = np.bincount(self.group[starts], sizes, self.num_groups)
        above_group = np.cumsum(of_group) - of_group
        return sizes, np.maximum(np.cumsum(sizes) - sizes - above_group[self.group[starts]], 0)

    def _reciprocal_rank(self, mass: np.ndarray) -> np.ndarray:
        """1 by the mean place of the first relevant row: of n rows that tie, r of them relevant, it is the (n+1)/(r+1)th."""
        sizes, first = self._places(mass, self.starts)
        relevant = np.add.reduceat(mass * (self.target > 0), self.starts)
        place = np.where(relevant > 0, first + (sizes + 1) / (relevant + 1), np.inf)
        best = np.full(self.num_groups, np.inf)
        np.minimum.at(best, self.block_group, place)
        return np.divide(1, best, out=np.full(self.num_groups, np.nan), where=np.isfinite(best))

    def _recall(self, mass: np.ndarray, places: int) -> np.ndarray:
        """The share of each group's relevant rows that is among its first places."""
        sizes, first = self._places(mass, self.starts)
        relevant = np.add.reduceat(mass * (self.target > 0), self.starts)
        shown = np.clip(places - first, 0, sizes) / np.where(sizes > 0, sizes, 1)
        found = np.bincount(self.block_group, relevant * shown, self.num_groups)
        of_group = np.bincount(self.block_group, relevant, self.num_groups)
        return np.divide(found, of_group, out=np.full(self.num_groups, np.nan), where=of_group > 0)


def _mean(score: np.ndarray, times: np.ndarray) -> float:
    """The mean over the groups for which a score is defined, each counting so many times."""
    there = np.isfinite(score) & (times > 0)
    return float(score[there] @ times[there] / times[there].sum()) if there.any() else float("nan")


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    target, prediction = np.asarray(target, float), np.asarray(prediction, float)
    assert target.shape == prediction.shape == (target.size,)
    if target.size == 0:
        raise UserError("there is not one row to score: check the split")
    bad = np.flatnonzero(~(np.isfinite(target) & (target >= 0)))
    if bad.size:
        raise UserError(
            f"a relevance must be 0 or more to be scored, but that of row {bad[0]} is {target[bad[0]]:g}: check the split"
        )
    bad = np.flatnonzero(~np.isfinite(prediction))
    if bad.size:
        raise UserError(f"the prediction of row {bad[0]} is {prediction[bad[0]]:g}, no number to rank by: predict again")
    return target, prediction
