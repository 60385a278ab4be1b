"""The weeks of each split, the growth of each row, and the growth above which a row of a week is hot."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PanelConfig
from ensemble.recipes.hot_sellers.weekly import WeeklySeries, Windows, rows_with_recent_reviews

SPLITS = ("train", "validation", "blend", "test")


def split_weeks(
    first_week: int, last_week: int, rows_per_week: np.ndarray, panel: PanelConfig
) -> dict[str, tuple[int, int]]:
    """The first and the last week of each split, both included; `panel.horizon_weeks` weeks are between two splits.

    rows_per_week : (num_labelled_weeks,), beginning with `first_week`. last_week : the last week of the data.

    The splits have `panel.shares` of the rows outside the embargoes, rounded to whole weeks. `UserError` for too few weeks.
    """
    total = np.concatenate([[0], np.cumsum(rows_per_week)])
    shares = np.array(panel.shares) / sum(panel.shares)

    def place(num_rows: float) -> list[tuple[int, int]]:
        """The weeks [begin, end) of each split, from 0: three splits have their shares of `num_rows`, the last the rest."""
        begin, placed = 0, []
        for share in shares[:-1]:
            end = max(begin + 1, int(np.searchsorted(total, total[min(begin, len(total) - 1)] + share * num_rows)))
            placed.append((begin, end))
            begin = end + panel.horizon_weeks
        return [*placed, (begin, len(rows_per_week))]

    low, high = 0.0, float(total[-1])
    for _ in range(60):  # bisection: more rows in the first three splits leave fewer for the last
        middle = (low + high) / 2
        begin, end = place(middle)[-1]
        if begin < end and total[end] - total[begin] >= shares[-1] * middle:
            low = middle
        else:
            high = middle
    placed = place(low)
    if placed[-1][0] >= placed[-1][1]:
        needed = len(SPLITS) * (panel.horizon_weeks + 1)
        raise UserError(
            f"the data cover {last_week - first_week + 1} complete weeks, but four splits with a horizon of "
            f"{panel.horizon_weeks} weeks need at least {needed}: set panel.horizon_weeks lower, or give more data"
        )
    return {split: (first_week + begin, first_week + end - 1) for split, (begin, end) in zip(SPLITS, placed, strict=True)}


def growth_of(rows: Windows, panel: PanelConfig) -> np.ndarray:
    """Reviews in the horizon ÷ (reviews in the base weeks + 1), (num_rows,) float32."""
    ahead = rows.next("reviews", panel.horizon_weeks)
    return (ahead / (rows.sum("reviews", panel.base_weeks) + 1)).astype(np.float32)


def growth_by_week(parts: Iterable[WeeklySeries], panel: PanelConfig, last_week: int) -> tuple[np.ndarray, np.ndarray]:
    """The week (int16) and the growth (float32) of each row whose horizon lies inside the data, (num_rows,) each.

    parts : the weekly series of all products, one part of the products at a time.
    """
    weeks, growths = [], []
    for series in parts:
        rows = Windows(series, *rows_with_recent_reviews(series, panel.base_weeks, last_week - panel.horizon_weeks))
        kept = rows.sum("reviews", panel.base_weeks) >= panel.min_reviews
        weeks.append(rows.week[kept].astype(np.int16))
        growths.append(growth_of(rows, panel)[kept])
    return np.concatenate(weeks), np.concatenate(growths)


def growth_thresholds(week: np.ndarray, growth: np.ndarray, top_fraction: float) -> dict[int, float]:
    """For each week, the growth that a hot row must exceed: the largest growth outside the top fraction.

    `week` and `growth` have shape (num_rows,). A week of n rows has at most ⌊top_fraction · n⌋ hot rows, fewer with ties.
    """
    # 1e-9 corrects the rounding of top_fraction × the number of rows: 2.9999… becomes 3
    num_hot = pl.min_horizontal((top_fraction * pl.len() + 1e-9).cast(pl.Int64), pl.len() - 1)
    by_week = pl.DataFrame({"week": week, "growth": growth}).group_by("week")
    return dict(by_week.agg(pl.col("growth").sort(descending=True).get(num_hot)).iter_rows())


def is_hot(week: np.ndarray, growth: np.ndarray, thresholds: dict[int, float]) -> np.ndarray:
    """Whether each row is hot, (num_rows,) bool. thresholds : the result of `growth_thresholds`."""
    weeks, row = np.unique(week, return_inverse=True)
    return growth > np.array([thresholds[number] for number in weeks.tolist()], np.float32)[row]
