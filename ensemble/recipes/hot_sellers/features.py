"""The features of a product at the end of week t: a table with name, unit, meaning and formula of each.

A feature uses no data after t. The exceptions are metadata and votes: the raw data contain them as they were when they were
crawled, years after most rows. Features of prices and helpful votes have the property `as_of_crawl` and are left out by
default; the category is used. `average_rating` and `rating_number` of the metadata are never features.

In the formulas, n(a, b] is the number of a product's reviews in the weeks after a, up to b; N is the same for its category;
means are over reviews. A value is NaN if it is unknown, such as a mean over a window without reviews, a value of a year ago
if the data begin later, or a price that the metadata do not have. A count without reviews is 0.
"""

import dataclasses
import datetime
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.recipes.hot_sellers.weekly import SPAN, WeeklySeries, Windows, sunday


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelContext:
    """Data that features use in addition to the series of the products.

    first_week : the number of the first week of the data
    category, price : (num_products,), the code of the category, 0 if unknown, and the price in dollars, NaN if unknown
    reviews_by_category : (num_categories + 1, num_weeks + 1), cumulative sums of reviews over weeks, beginning with zero;
        the last row is the whole market
    """

    first_week: int
    category: np.ndarray
    price: np.ndarray
    reviews_by_category: np.ndarray


class PanelBlock(Windows):
    """Rows (product, week), with the functions that the formulas of features use; each returns an array (num_rows,)."""

    def __init__(self, series: WeeklySeries, product: np.ndarray, week: np.ndarray, context: PanelContext):
        super().__init__(series, product, week)
        self.context = context

    def per_review(self, channel: str, weeks: int, ago: int = 0, scale: float = 1.0) -> np.ndarray:
        """Mean of a channel over the reviews in (t − ago − weeks, t − ago], times `scale`; NaN without reviews.

        weeks=SPAN for all reviews up to t − ago.
        """
        return ratio(self.sum(channel, weeks, ago), self.sum("reviews", weeks, ago)) * scale

    def deviation(self, channel: str, squares: str, count: np.ndarray, weeks: int, scale: float = 1.0) -> np.ndarray:
        """Standard deviation of `count` values of the last `weeks` weeks, times `scale`; NaN if `count` is 0.

        channel, squares : the channels of the sums of the values and of their squares.
        """
        mean = ratio(self.sum(channel, weeks), count)
        variance = ratio(self.sum(squares, weeks), count) - mean * mean
        return np.sqrt(np.maximum(variance, 0)) * scale

    def growth(self, weeks: int, ago: int = 0) -> np.ndarray:
        """Reviews in a window ÷ (reviews in the window before it + 1)."""
        return self.sum("reviews", weeks, ago) / (self.sum("reviews", weeks, ago + weeks) + 1)

    def share(self, short: int, long: int) -> np.ndarray:
        """Reviews in the last `short` weeks ÷ reviews in the last `long` weeks."""
        return ratio(self.sum("reviews", short), self.sum("reviews", long))

    def active_weeks(self, weeks: int) -> np.ndarray:
        """Number of weeks with a review among the last `weeks`."""
        return self.position(0) - self.position(weeks)

    def weeks_since(self, nth: int) -> np.ndarray:
        """Weeks since the nth last week with a review (1 is the last), NaN if there is none."""
        index = self.position(0) - nth
        return np.where(index >= self.position(SPAN), self.week - self.series.week[np.maximum(index, 0)], np.nan)

    def age(self) -> np.ndarray:
        """Weeks since the product's first review."""
        return self.week - self.series.week[self.position(SPAN)]

    def category_reviews(self, weeks: int, ago: int = 0, market: bool = False) -> np.ndarray:
        """N(t − ago − weeks, t − ago] of the product's category, or with `market` of all products."""
        totals = self.context.reviews_by_category
        row = np.full(len(self.week), -1) if market else self.context.category[self.product]
        end = np.clip(self.week - ago + 1 - self.context.first_week, 0, totals.shape[1] - 1)
        return totals[row, end] - totals[row, np.maximum(end - weeks, 0)]

    def category_growth(self, weeks: int, ago: int = 0, market: bool = False) -> np.ndarray:
        """Reviews of the category in a window ÷ (its reviews in the window before it + 1)."""
        before = self.category_reviews(weeks, ago + weeks, market)
        return self.category_reviews(weeks, ago, market) / (before + 1)

    def if_known(self, weeks_ago: int, values: np.ndarray) -> np.ndarray:
        """The values, NaN where a window that begins after week t − weeks_ago would begin before the data."""
        return np.where(self.week - weeks_ago >= self.context.first_week - 1, values, np.nan)

    def by_calendar(self, value_at: Callable[[datetime.date], float]) -> np.ndarray:
        """The result of `value_at` for the last day of week t; it is called once for each distinct week."""
        weeks, row = np.unique(self.week, return_inverse=True)
        return np.array([value_at(sunday(week)) for week in weeks], float)[row]


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Element-wise division, NaN where the denominator is zero."""
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator != 0)


def year_angle(day: datetime.date) -> float:
    """The time of the year as an angle in radians."""
    return 2 * np.pi * day.timetuple().tm_yday / 365.25


@functools.cache
def _calendar() -> Any:
    """Public holidays of the United States, by day. They are known in advance, so they do not leak the future."""
    import holidays

    return holidays.country_holidays("US", language="en_US")  # not that of the locale


def holidays_after(day: datetime.date, weeks: int) -> int:
    """The number of days in the `weeks` weeks after `day` that are public holidays."""
    return sum(day + datetime.timedelta(days=ahead) in _calendar() for ahead in range(1, 7 * weeks + 1))


def weeks_to_christmas(day: datetime.date) -> float:
    ahead = (datetime.date(day.year, 12, 25) - day).days
    return (ahead if ahead >= 0 else (datetime.date(day.year + 1, 12, 25) - day).days) / 7


def weeks_to_thanksgiving(day: datetime.date) -> float:
    days = ((ahead, day + datetime.timedelta(days=ahead)) for ahead in range(400))
    return next(n for n, later in days if later.month == 11 and "Thanksgiving" in (_calendar().get(later) or "")) / 7


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of the panel."""

    name: str
    unit: str
    label: str
    """A short description for the report."""
    meaning: str
    """The definition, as in the manifest."""
    formula: Callable[[PanelBlock], np.ndarray]
    source: str
    """The data from which the column is computed: a key of `TABLE`."""

    @property
    def as_of_crawl(self) -> bool:
        """Whether the values are those at the crawl, which was after the weeks of the rows."""
        return self.source in ("metadata", "votes")


Row = tuple[str, str, str, str, Callable[[PanelBlock], np.ndarray]]
"""Name, unit, label, meaning and formula of a feature."""


def _windows(
    weeks: tuple[int, ...], name: str, unit: str, label: str, meaning: str, formula: Callable[[PanelBlock, int], np.ndarray]
) -> list[Row]:
    """A feature for each number of weeks k in `weeks`. In the texts, {0} stands for k, and {1} in `meaning` for 2k."""

    def row(k: int) -> Row:
        label_of_k = label.format(k).replace(" 1 weeks", " 1 week")
        return name.format(k), unit, label_of_k, meaning.format(k, 2 * k), lambda block: formula(block, k)

    return [row(k) for k in weeks]


def _means(
    channel: str, weeks: tuple[int, ...], unit: str, label: str, meaning: str, name: str = "", scale: float = 1.0
) -> list[Row]:
    """A feature for each number of weeks: the mean of a channel over the reviews of the last weeks, times `scale`."""
    label, meaning = f"{label} in {{0}} weeks", f"{meaning} in (t−{{0}}, t]"
    return _windows(
        weeks, f"{name or channel}_{{0}}w", unit, label, meaning, lambda r, k: r.per_review(channel, k, 0, scale)
    )


# fmt: off
TABLE: dict[str, list[Row]] = {
    "counts": [
        *_windows((1, 2, 4, 8, 12, 26, 52), "reviews_{0}w", "reviews", "reviews in {0} weeks", "n(t−{0}, t]",
                  lambda r, k: r.sum("reviews", k)),
        ("reviews_total", "reviews", "reviews ever", "n(−∞, t]", lambda r: r.sum("reviews", SPAN)),
        # Growth: each window relative to the one before it
        *_windows((1, 2, 4, 8, 12, 26), "growth_{0}w", "ratio", "growth in reviews over {0} weeks",
                  "n(t−{0}, t] ÷ (n(t−{1}, t−{0}] + 1)", lambda r, k: r.growth(k)),
        ("growth_4w_a_month_ago", "ratio", "growth in reviews over 4 weeks, a month ago",
         "growth_4w at t−4", lambda r: r.growth(4, 4)),
        ("acceleration_4w", "ratio", "change in a month of the growth over 4 weeks",
         "growth_4w − growth_4w at t−4", lambda r: r.growth(4) - r.growth(4, 4)),
        ("share_1w_of_4w", "share", "share of 4 weeks’ reviews in the last week",
         "n(t−1, t] ÷ n(t−4, t]", lambda r: r.share(1, 4)),
        ("share_4w_of_12w", "share", "share of 12 weeks’ reviews in the last 4",
         "n(t−4, t] ÷ n(t−12, t]", lambda r: r.share(4, 12)),
        ("share_4w_of_52w", "share", "share of 52 weeks’ reviews in the last 4",
         "n(t−4, t] ÷ n(t−52, t]", lambda r: r.share(4, 52)),
        ("share_12w_of_52w", "share", "share of 52 weeks’ reviews in the last 12",
         "n(t−12, t] ÷ n(t−52, t]", lambda r: r.share(12, 52)),
        ("share_52w_of_total", "share", "share of all its reviews in the last 52 weeks",
         "n(t−52, t] ÷ n(−∞, t]", lambda r: r.share(52, SPAN)),
        # Regularity
        *_windows((4, 12, 52), "active_weeks_{0}w", "weeks", "weeks with a review, of the last {0}",
                  "weeks with a review in (t−{0}, t]", lambda r, k: r.active_weeks(k)),
        *_windows((12, 52), "weekly_deviation_{0}w", "reviews", "spread of weekly reviews in {0} weeks",
                  "standard deviation of weekly reviews in (t−{0}, t]",
                  lambda r, k: r.deviation("reviews", "reviews_squared", np.full(len(r.week), k), k)),
    ],
    "age": [
        ("age", "weeks", "weeks since its first review", "weeks since the first review", lambda r: r.age()),
        ("reviews_per_week", "reviews/week", "reviews a week since its first",
         "n(−∞, t] ÷ (age + 1)", lambda r: r.sum("reviews", SPAN) / (r.age() + 1)),
        ("weeks_since_review", "weeks", "weeks since the last week with a review",
         "since the last week with a review", lambda r: r.weeks_since(1)),
        ("weeks_since_second", "weeks", "weeks since the second last week with a review",
         "since the second last such week", lambda r: r.weeks_since(2)),
    ],
    # A year ago
    "season": [
        ("reviews_same_12w_last_year", "reviews", "reviews in the same 12 weeks a year ago",
         "n(t−52, t−40]: the next 12 weeks, a year ago; NaN if the data are younger",
         lambda r: r.if_known(52, r.sum("reviews", 12, 40))),
        ("reviews_same_4w_last_year", "reviews", "reviews in the same 4 weeks a year ago",
         "n(t−56, t−52]", lambda r: r.if_known(56, r.sum("reviews", 4, 52))),
        ("growth_last_year", "ratio", "growth in reviews in the next 12 weeks, one year earlier",
         "n(t−52, t−40] ÷ (n(t−56, t−52] + 1): the growth over 12 weeks, a year ago",
         lambda r: r.if_known(56, r.sum("reviews", 12, 40) / (r.sum("reviews", 4, 52) + 1))),
        ("expected_by_last_year", "ratio",
         "reviews in the next 12 weeks, one year earlier, relative to the last 4 weeks",
         "n(t−52, t−40] ÷ (n(t−4, t] + 1)",
         lambda r: r.if_known(52, r.sum("reviews", 12, 40) / (r.sum("reviews", 4) + 1))),
    ],
    "calendar": [
        ("year_sine", "1", "time of the year (sine)",
         "sin(2π · day of year ÷ 365.25)", lambda r: r.by_calendar(lambda day: np.sin(year_angle(day)))),
        ("year_cosine", "1", "time of the year (cosine)",
         "cos(2π · day of year ÷ 365.25)", lambda r: r.by_calendar(lambda day: np.cos(year_angle(day)))),
        ("weeks_to_thanksgiving", "weeks", "weeks to Thanksgiving", "from the end of t to the next Thanksgiving",
         lambda r: r.by_calendar(weeks_to_thanksgiving)),
        ("weeks_to_christmas", "weeks", "weeks to Christmas", "from the end of t to the next 25 December",
         lambda r: r.by_calendar(weeks_to_christmas)),
        *_windows((4, 12), "holidays_next_{0}w", "days", "public holidays in the next {0} weeks",
                  "US public holidays in the {0} weeks after t",
                  lambda r, k: r.by_calendar(lambda day: holidays_after(day, k))),
    ],
    "ratings": [
        *_means("rating", (4, 12, 52), "stars", "mean rating", "mean rating", scale=0.1),
        ("rating_total", "stars", "mean rating ever", "mean rating up to t",
         lambda r: r.per_review("rating", SPAN, scale=0.1)),
        ("rating_change_4w", "stars", "mean rating in 4 weeks minus that in 52 weeks", "rating_4w − rating_52w",
         lambda r: r.per_review("rating", 4, scale=0.1) - r.per_review("rating", 52, scale=0.1)),
        ("rating_change_12w", "stars", "mean rating in 12 weeks minus that in the 12 weeks before",
         "rating_12w − mean rating in (t−24, t−12]",
         lambda r: r.per_review("rating", 12, scale=0.1) - r.per_review("rating", 12, 12, scale=0.1)),
        ("rating_deviation_52w", "stars", "spread of ratings in 52 weeks", "standard deviation of ratings in (t−52, t]",
         lambda r: r.deviation("rating", "rating_squared", r.sum("reviews", 52), 52, scale=0.1)),
        *_means("fives", (12,), "share", "share of five-star ratings", "ratings of 4.5 or more"),
        *_means("ones", (12, 4), "share", "share of one-star ratings", "ratings of 1.5 or less"),
    ],
    "reviews": [
        *_means("verified", (4, 52), "share", "share of verified purchases", "verified purchases"),
        *_means("images", (4, 52), "images/review", "images per review", "mean"),
    ],
    "text": [
        *_means("words", (4, 52), "words/review", "words per review", "mean"),
        *_means("sentiment", (4, 52), "words/review", "positive minus negative words per review",
                "positive − negative words, mean"),
    ],
    # The category and the market
    "category": [
        ("category", "code", "category", "number of the category in the manifest's list",
         lambda r: r.context.category[r.product]),
        ("category_reviews_4w", "reviews", "its category’s reviews in 4 weeks", "N(t−4, t]",
         lambda r: r.category_reviews(4)),
        *_windows((4, 12), "category_growth_{0}w", "ratio", "its category’s growth over {0} weeks",
                  "N(t−{0}, t] ÷ (N(t−{1}, t−{0}] + 1)", lambda r, k: r.category_growth(k)),
        ("category_growth_last_year", "ratio", "its category’s growth in the next 12 weeks, one year earlier",
         "N(t−52, t−40] ÷ (N(t−64, t−52] + 1)", lambda r: r.if_known(64, r.category_growth(12, 40))),
        ("share_of_category_4w", "share", "share of its category’s reviews in 4 weeks", "n(t−4, t] ÷ N(t−4, t]",
         lambda r: ratio(r.sum("reviews", 4), r.category_reviews(4))),
        ("market_growth_4w", "ratio", "the whole market’s growth over 4 weeks", "category_growth_4w over all categories",
         lambda r: r.category_growth(4, market=True)),
    ],
    # Known only at the crawl: left out by default
    "metadata": [
        ("price", "dollars", "price", "the metadata's price", lambda r: r.context.price[r.product]),
        ("price_missing", "0 or 1", "price unknown", "the metadata have no price",
         lambda r: np.isnan(r.context.price[r.product])),
    ],
    "votes": _means("helpful_votes", (4, 52), "votes/review", "helpful votes per review", "mean", name="helpful"),
}
"""The features, by the data from which they are computed."""
# fmt: on
FEATURES = tuple(Feature(*row, source) for source, rows in TABLE.items() for row in rows)


def selection(as_of_crawl: bool) -> list[Feature]:
    """The features known at t, and with `as_of_crawl` also those whose values are known only at the crawl."""
    return [feature for feature in FEATURES if as_of_crawl or not feature.as_of_crawl]


def compute(rows: PanelBlock, features: list[Feature]) -> dict[str, np.ndarray]:
    """The values of each feature, (num_rows,) float32."""
    return {feature.name: np.asarray(feature.formula(rows), np.float32) for feature in features}
