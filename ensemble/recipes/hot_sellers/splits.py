"""Which weeks go to which split, and which growth makes a row of a week hot."""

import numpy as np

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PanelConfig

SPLITS = ("train", "validation", "blend", "test")


def split_weeks(
    first_week: int, last_week: int, rows_per_week: np.ndarray, panel: PanelConfig
) -> dict[str, tuple[int, int]]:
    """First and last week of each split, both included, with the embargo between them.

    `rows_per_week` (num_labelled_weeks,) counts the rows from `first_week` on; `last_week` is the last of the data. The
    splits get their `shares` of the rows that the embargoes leave, to the week. Raises `UserError` when the data are too
    short for four splits.
    """
    total = np.concatenate([[0], np.cumsum(rows_per_week)])
    shares = np.array(panel.shares) / sum(panel.shares)

    def place(num_rows: float) -> list[tuple[int, int]]:
        """Weeks [begin, end) of each split when all four together are to have `num_rows`; the last takes what is left."""
        begin, placed = 0, []
        for share in shares[:-1]:
            end = max(begin + 1, int(np.searchsorted(total, total[min(begin, len(total) - 1)] + share * num_rows)))
            placed.append((begin, end))
            begin = end + panel.horizon_weeks
        return [*placed, (begin, len(rows_per_week))]

    low, high = 0.0, float(total[-1])
    for _ in range(60):  # the more rows the first three get, the fewer are left for the last: bisect
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


def borders(week: np.ndarray, growth: np.ndarray, top_fraction: float) -> dict[int, float]:
    """For each week the growth that a hot row must exceed: that of the best row which is not among the top fraction.

    `week` and `growth` have shape (num_rows,). A week of n rows has at most ⌊top_fraction · n⌋ hot ones, fewer with ties.
    """
    by_week = -growth[np.argsort(week, kind="stable")]  # int16 weeks sort in linear time
    weeks, start, count = np.unique(np.sort(week, kind="stable"), return_index=True, return_counts=True)
    found = {}
    for number, begin, rows in zip(weeks.tolist(), start, count, strict=True):
        # 1e-9: a fraction such as 0.05 times 60 rows is 3, not 2.9999…
        first_cold = int(top_fraction * rows + 1e-9)
        found[number] = -float(np.partition(by_week[begin : begin + rows], first_cold)[first_cold])
    return found
