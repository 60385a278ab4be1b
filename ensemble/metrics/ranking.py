"""Metrics of the order of rows within groups, such as the results of a query, the items of a user or the products of a week.

The target is a relevance, 0 or more. Only the order of the predictions within a group counts. Rows with equal predictions
share their places: a score is its mean over all ways to break the tie, except that the reciprocal rank is 1 / the mean rank
of the first relevant row. So no score depends on the order of the rows. Groups without a relevant row are in no mean.
"""

import itertools

import numpy as np

from ensemble.metrics.blocks import starts_of
from ensemble.metrics.weighting import checked, refuse

PLACES = 10
MAX_RELEVANCE = 1000
"""The largest relevance: the sum of gains of 2^relevance − 1 must be a finite float."""


def ndcg_at_10(target: np.ndarray, prediction: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None) -> float:
    """The mean over groups of the normalised discounted cumulative gain of the first 10 places; NaN without a relevant row.

    The gain is 2^relevance − 1, the discount log2(place + 1) (Burges et al. 2005); the gain of the best order normalises it.
    weight : (num_rows,); `RankingScorer` describes the effect of weights on groups.
    """
    target, prediction = _checked(target, prediction)
    return Ndcg(target, group, weight)(prediction)


class Ndcg:
    """NDCG@10 of many predictions for the same rows, without sorting all rows by group and prediction each time.

    Groups of similar size are the rows of one table, so they are sorted together. For a group with one relevant row nothing
    is sorted: the rows above it are counted, and the discount of its place is the score. Rows of weight 0 do not count. If
    the other rows of a group have different weights, `RankingScorer` is used instead, which sorts all rows.
    """

    def __init__(self, target: np.ndarray, group: np.ndarray, weight: np.ndarray | None = None) -> None:
        self.counted: np.ndarray | None = None
        self.fallback: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        if weight is not None:
            self.counted = np.flatnonzero(weight > 0)
            target, group, weight = (np.asarray(column)[self.counted] for column in (target, group, weight))
        gain = np.append(np.exp2(target) - 1, 0.0)
        order = np.argsort(group, kind="stable")
        first = starts_of(np.asarray(group)[order])
        size = np.diff(np.append(first, len(order)))
        num_relevant = np.add.reduceat((gain[order] > 0).astype(int), first)
        self.num_groups = int((num_relevant > 0).sum())
        group_weight = np.ones(len(first))
        if weight is not None:
            least, group_weight = (bound.reduceat(weight[order], first) for bound in (np.minimum, np.maximum))
            if (least < group_weight).any():
                self.fallback = target, group, weight
                return
        self.total_weight = float(group_weight[num_relevant > 0].sum())
        self.discount = 1 / np.log2(np.arange(PLACES) + 2)
        self.tables, self.singles = [], []
        group_width = 2 ** np.ceil(np.log2(size)).astype(int)
        for width, is_single in itertools.product(np.unique(group_width[num_relevant > 0]), (True, False)):
            groups = (group_width == width) & ((num_relevant == 1) if is_single else (num_relevant > 1))
            position = np.arange(width)
            rows = np.full((groups.sum(), width), len(order))  # padded by a row without gain, which is sorted to the end
            is_row = position < size[groups, None]
            rows[is_row] = order[(first[groups, None] + position)[is_row]]
            if is_single:
                self.singles.append((rows, rows[gain[rows] > 0], group_weight[groups]))
            else:
                best = -np.sort(-gain[rows], axis=1)[:, :PLACES] @ self.discount[:width]
                self.tables.append((rows, gain[rows], best / group_weight[groups]))

    def __call__(self, prediction: np.ndarray) -> float:
        """The mean over groups with a relevant row, NaN without such a group; prediction : (num_rows,), finite."""
        if not self.num_groups:
            return float("nan")
        if self.counted is not None:
            prediction = prediction[self.counted]
        if self.fallback:
            target, group, weight = self.fallback
            return float(RankingScorer(target, prediction, group).scores(weight)[1])
        padded = np.append(-prediction, np.inf)
        total = 0.0
        cumulative = np.append(0.0, np.cumsum(self.discount))
        for rows, relevant_row, weight in self.singles:
            values, relevant_value = padded[rows], padded[relevant_row][:, None]
            num_higher, num_equal = (values < relevant_value).sum(1), (values == relevant_value).sum(1)
            end, begin = (cumulative[np.minimum(place, PLACES)] for place in (num_higher + num_equal, num_higher))
            total += float(((end - begin) / num_equal * weight).sum())
        for rows, gain, best in self.tables:
            values = padded[rows]
            order = np.argsort(values, axis=1)
            values, sorted_gain = np.take_along_axis(values, order, 1), np.take_along_axis(gain, order, 1)
            ties = values[:, 1:] == values[:, :-1]
            if ties[:, :PLACES].any():
                sorted_gain = _mean_of_ties(sorted_gain, ties)
            total += float((sorted_gain[:, :PLACES] @ self.discount[: rows.shape[1]] / best).sum())
        return total / self.total_weight


def _mean_of_ties(values: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Replace each of the values (num_groups, width) by the mean of those tied with it.

    ties : (num_groups, width - 1), whether a value is tied with the next one.
    """
    begins = np.concatenate([np.ones((len(values), 1), bool), ~ties], axis=1).ravel()
    starts = np.flatnonzero(begins)
    size = np.diff(np.append(starts, begins.size))
    return np.repeat(np.add.reduceat(values.ravel(), starts) / size, size).reshape(values.shape)


class RankingScorer:
    """A `bootstrap.Scorer`; all sorting is done once, in the constructor.

    If all rows of a group have the same weight, the group counts that many times: a user who is drawn twice is two users.
    Otherwise a row of weight 2 counts as two rows with equal predictions: in a group of the products of a week, products are
    drawn, not the week. A row of weight 0 counts as absent.
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
        # Positions in `order`, sorted by group, then by decreasing relevance
        self.best_order = np.lexsort((-self.target, self.group))
        self.best_starts = starts_of(self.target[self.best_order], self.group)

    def scores(self, weight: np.ndarray) -> np.ndarray:
        return mean_scores(*self.by_group(weight))

    def by_group(self, weight: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The scores of each group, NaN without a relevant row, and the weights of the groups: (num_groups,) each, in the
        sorted order of the groups."""
        mass = weight[self.order]
        most = np.maximum.reduceat(mass, self.group_starts)
        least = np.minimum.reduceat(np.where(mass > 0, mass, most[self.group]), self.group_starts)
        # A group whose rows have one weight counts that many times, also 0 times. In other groups each row counts as many
        # times as its weight. A row of weight 0 counts as absent
        has_one_weight = least == most
        mass = np.where(has_one_weight[self.group] & ((mass > 0) | (most == 0)[self.group]), 1.0, mass)
        group_weight = np.where(has_one_weight, most, 1.0)
        return self._by_group(mass), group_weight

    def _by_group(self, mass: np.ndarray) -> list[np.ndarray]:
        """NDCG@5, NDCG@10, reciprocal rank and recall@10 of each group, (num_groups,); NaN without a relevant row."""
        sizes, first = self._places(mass, self.starts)
        relevant = np.add.reduceat(mass * (self.target > 0), self.starts)
        # The first of r relevant rows among n tied ones is on average (n+1)/(r+1) places after the last row above the tie
        place = np.where(relevant > 0, first + (sizes + 1) / (relevant + 1), np.nan)
        first_place = np.full(self.num_groups, np.nan)
        np.fmin.at(first_place, self.block_group, place)
        fraction = np.clip(PLACES - first, 0, sizes) / np.where(sizes > 0, sizes, 1)
        num_shown = np.bincount(self.block_group, relevant * fraction, self.num_groups)
        num_relevant = np.bincount(self.block_group, relevant, self.num_groups)
        with np.errstate(invalid="ignore"):  # 0 / 0 without a relevant row
            return [self._ndcg(mass, 5), self._ndcg(mass, PLACES), 1 / first_place, num_shown / num_relevant]

    def _ndcg(self, mass: np.ndarray, places: int) -> np.ndarray:
        gain = self._gain(mass, self.gain, self.starts, places)
        return gain / self._gain(mass[self.best_order], self.gain[self.best_order], self.best_starts, places)

    def _gain(self, mass: np.ndarray, gain: np.ndarray, starts: np.ndarray, places: int) -> np.ndarray:
        """The discounted gain of each group: the mean gain of each block times the discounts of its places."""
        sizes, first = self._places(mass, starts)
        gains = np.add.reduceat(mass * gain, starts) / np.where(sizes > 0, sizes, 1)
        discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(places) + 2))])
        end, begin = (np.interp(place, np.arange(places + 1), discounts) for place in (first + sizes, first))
        return np.bincount(self.group[starts], gains * (end - begin), self.num_groups)

    def _places(self, mass: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The number of rows in each block, and the number of rows above it in its group."""
        sizes = np.add.reduceat(mass, starts)
        group_size = np.bincount(self.group[starts], sizes, self.num_groups)
        above_group = np.cumsum(group_size) - group_size
        return sizes, np.maximum(np.cumsum(sizes) - sizes - above_group[self.group[starts]], 0)


def mean_scores(by_group: list[np.ndarray], group_weight: np.ndarray) -> np.ndarray:
    """The weighted mean over the groups of each of the scores of `RankingScorer.by_group`."""
    return np.array([_mean(score, group_weight) for score in by_group])


def _mean(score: np.ndarray, group_weight: np.ndarray) -> float:
    """The weighted mean over the groups for which the score is defined; NaN if there is none."""
    groups = np.isfinite(score) & (group_weight > 0)
    return float(score[groups] @ group_weight[groups] / group_weight[groups].sum()) if groups.any() else float("nan")


def _checked(target: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    target, prediction = checked(target, prediction)
    is_valid = np.isfinite(target) & (target >= 0)
    refuse(~is_valid, target, "a relevance must be 0 or more to be scored, but that of row {} is {:g}: check the split")
    sentence = (
        f"a relevance must be at most {MAX_RELEVANCE} to be scored, but that of row {{}} is {{:g}}: give grades instead"
    )
    refuse(target > MAX_RELEVANCE, target, sentence)
    refuse(~np.isfinite(prediction), prediction, "the prediction of row {} is {:g}, not a finite number: predict again")
    return target, prediction
