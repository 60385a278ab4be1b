"""Weekly sums per product, and sums over any calendar window of them.

Most products have no review in most weeks. Only active weeks, which have reviews, are stored, sorted by product and week.
Other weeks count as zero. The sum over a window of calendar weeks is the difference of two cumulative sums, whose positions
are found by binary search.

All sums are integers (ratings in tenths of a star), so the sum over a window is exact and does not depend on other weeks.
Week 0 begins on Monday, 5 January 1970. Weeks end on Sunday, 24:00 UTC.
"""

import datetime

import numpy as np
import polars as pl

from ensemble.arrow import ranges

DAY_MS = 24 * 3600 * 1000
WEEK_MS, FIRST_MONDAY_MS = 7 * DAY_MS, 4 * DAY_MS
FIRST_MONDAY = datetime.date(1970, 1, 5)
SPAN = 1 << 16  # more weeks than any data have, so that product * SPAN + week sorts by product, then week

CHANNELS = {
    "reviews": "reviews",
    "rating": "ratings, tenths of a star",
    "rating_squared": "ratings², hundredths of a star²",
    "fives": "reviews with 4.5 stars or more",
    "ones": "reviews with 1.5 stars or less",
    "verified": "reviews of verified purchases",
    "images": "images in reviews",
    "words": "words in reviews",
    "sentiment": "positive minus negative words in reviews",
    "helpful_votes": "helpful votes, as of the crawl",
}


def week_of(time_ms: pl.Expr) -> pl.Expr:
    """The number of the week of a time in milliseconds since 1970 (UTC)."""
    return ((time_ms - FIRST_MONDAY_MS).floordiv(WEEK_MS)).cast(pl.Int32)


def monday(week: int) -> datetime.date:
    """The first day of a week."""
    return FIRST_MONDAY + datetime.timedelta(weeks=int(week))


def sunday(week: int) -> datetime.date:
    """The last day of a week."""
    return monday(week) + datetime.timedelta(days=6)


def last_complete_week(last_time_ms: int) -> int:
    """The last week that the data cover completely: that of the last review if it is on a Sunday, else the week before."""
    week, time_in_week_ms = divmod(last_time_ms - FIRST_MONDAY_MS, WEEK_MS)
    return week if time_in_week_ms >= 6 * DAY_MS else week - 1


def sum_by_week(reviews: pl.DataFrame) -> pl.DataFrame:
    """The sums of reviews, with a row for each week of a product that has reviews.

    `reviews` is sorted by product and week (both Int32) and has the columns rating, verified, num_images, words, sentiment
    and helpful_votes. The result has product, week and the columns of `CHANNELS` (Int32), and is sorted in the same way.
    """
    product, week = reviews["product"].to_numpy(), reviews["week"].to_numpy()
    key = product.astype(np.int64) * SPAN + week
    assert (key[1:] >= key[:-1]).all(), "reviews must be sorted by product and week"
    start = np.flatnonzero(np.diff(key, prepend=-1))
    rating = np.rint(reviews["rating"].to_numpy() * 10).astype(np.int64)
    columns = {
        "rating": rating,
        "rating_squared": rating * rating,
        "fives": rating >= 45,
        "ones": rating <= 15,
        "verified": reviews["verified"].to_numpy(),
        "images": reviews["num_images"].to_numpy(),
        "words": reviews["words"].to_numpy(),
        "sentiment": reviews["sentiment"].to_numpy(),
        "helpful_votes": reviews["helpful_votes"].to_numpy(),
    }
    sums = {name: np.add.reduceat(values, start, dtype=np.int64) for name, values in columns.items()}
    sums["reviews"] = np.diff(start, append=len(key))
    return pl.DataFrame(
        {"product": product[start], "week": week[start], **{name: sums[name].astype(np.int32) for name in CHANNELS}}
    )


class WeeklySeries:
    """The active weeks of some products, from the result of `sum_by_week`. Indices of active weeks refer to its rows.

    `key` (num_active,) is product * SPAN + week + 1, ascending.
    """

    def __init__(self, weeks: pl.DataFrame):
        self.week = weeks["week"].to_numpy()
        self.key = weeks["product"].to_numpy().astype(np.int64) * SPAN + self.week + 1
        self._weeks = weeks
        self._totals: dict[str, np.ndarray] = {}

    def totals(self, channel: str) -> np.ndarray:
        """Cumulative sums of a channel, or of reviews_squared, (num_active + 1,) int64, computed at their first use."""
        if channel not in self._totals:
            is_squared = channel == "reviews_squared"  # not a column of `weeks`, since it would not fit into 32 bits
            values = self._weeks["reviews" if is_squared else channel].to_numpy().astype(np.int64)
            self._totals[channel] = np.zeros(len(values) + 1, np.int64)
            np.cumsum(values * values if is_squared else values, out=self._totals[channel][1:])
        return self._totals[channel]


class Windows:
    """Rows (product, week), and sums over windows of calendar weeks; t is the week of a row."""

    def __init__(self, series: WeeklySeries, product: np.ndarray, week: np.ndarray):
        self.series, self.product, self.week = series, product, week
        self._positions: dict[int, np.ndarray] = {}

    def position(self, ago: int) -> np.ndarray:
        """The number of active weeks of a row's product up to week t − ago, plus those of all products before, (num_rows,).

        This is an index into each result of `totals`. A negative `ago` means later weeks.
        """
        if ago not in self._positions:
            key = self.product.astype(np.int64) * SPAN + np.maximum(self.week - ago + 1, 0)
            self._positions[ago] = np.searchsorted(self.series.key, key, side="right")
        return self._positions[ago]

    def sum(self, channel: str, weeks: int, ago: int = 0) -> np.ndarray:
        """The sum over (t − ago − weeks, t − ago], int64 of shape (num_rows,); weeks=SPAN for all weeks up to t − ago."""
        totals = self.series.totals(channel)
        return totals[self.position(ago)] - totals[self.position(ago + weeks)]

    def next(self, channel: str, weeks: int) -> np.ndarray:
        """The sum over (t, t + weeks]. This is the future, so it may be used for labels only."""
        return self.sum(channel, weeks, ago=-weeks)


def rows_with_recent_reviews(series: WeeklySeries, base_weeks: int, last_week: int) -> tuple[np.ndarray, np.ndarray]:
    """Every product and week ≤ `last_week` with a review in the last `base_weeks` weeks: two int32 arrays, sorted.

    These are the active weeks, and up to `base_weeks` − 1 weeks without reviews after each of them.
    """
    product = (series.key // SPAN).astype(np.int32)
    until_next = np.full(len(product), base_weeks, np.int64)
    same = product[1:] == product[:-1]
    until_next[:-1][same] = np.minimum(base_weeks, np.diff(series.week)[same])
    length = np.clip(np.minimum(until_next, last_week + 1 - series.week), 0, None)
    week, owner = ranges(series.week, series.week + length)
    return product[owner], week.astype(np.int32)
