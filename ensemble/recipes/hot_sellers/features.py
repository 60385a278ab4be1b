"""The table of features of a product at the end of week t: name, unit, meaning and formula of each.

A feature uses no data after t. Metadata and vote counts are as of the crawl, years after most rows. Features computed from
them (price, helpful votes) are marked `as_of_crawl` and left out by default; `average_rating` and `rating_number` of the
metadata are never features.

In the formulas, n(a, b] is the number of a product's reviews in the weeks after a, up to b; N is the same for its category;
means are over reviews. Unknown values (no review in the window, no data a year ago) are NaN.
"""

import dataclasses
import datetime
import functools
from collections.abc import Callable

import numpy as np

from ensemble.recipes.hot_sellers.weekly import SPAN, WeeklySeries, Windows, monday


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelContext:
    """Data that features use besides the product's own series; `first_week` is the number of the first week of data.

    `reviews_by_category` has shape (num_categories + 1, num_weeks + 1): cumulative sums of reviews, beginning with zero; the
    last row is the whole market. `category` and `price` have shape (num_products,), price in dollars, NaN if unknown.
    """

    first_week: int
    category: np.ndarray
    price: np.ndarray
    reviews_by_category: np.ndarray


class PanelBlock(Windows):
    """Product-weeks, with the functions that the formulas of features use; each returns (num_rows,) floats."""

    def __init__(self, series: WeeklySeries, product: np.ndarray, week: np.ndarray, context: PanelContext):
        super().__init__(series, product, week)
        self.context = context

    def per_review(self, channel: str, weeks: int, ago: int = 0, unit: float = 1.0) -> np.ndarray:
        """Mean of a channel over the reviews in (t − ago − weeks, t − ago], NaN without reviews; weeks=SPAN means all."""
        return ratio(self.sum(channel, weeks, ago), self.sum("reviews", weeks, ago)) * unit

    def deviation(self, channel: str, squares: str, count: np.ndarray, weeks: int, unit: float = 1.0) -> np.ndarray:
        """Standard deviation over the last `weeks` weeks, from the channels of the sum and the sum of squares."""
        mean = ratio(self.sum(channel, weeks), count)
        variance = ratio(self.sum(squares, weeks), count) - mean * mean
        return np.sqrt(np.maximum(variance, 0)) * unit

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
        """Weeks since the nth last active week (1 is the last), NaN if there is none."""
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
        before = self.category_reviews(weeks, ago + weeks, market)
        return self.category_reviews(weeks, ago, market) / (before + 1)

    def if_known(self, weeks_ago: int, values: np.ndarray) -> np.ndarray:
        """The values, NaN where week t − weeks_ago is before the data."""
        return np.where(self.week - weeks_ago >= self.context.first_week - 1, values, np.nan)

    def by_calendar(self, value_at: Callable[[datetime.date], float]) -> np.ndarray:
        """A function of the last day of week t, called once per distinct week."""
        weeks, row = np.unique(self.week, return_inverse=True)
        return np.array([value_at(monday(week) + datetime.timedelta(days=6)) for week in weeks], float)[row]

    def price(self) -> np.ndarray:
        return self.context.price[self.product]


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Element-wise division, NaN where the denominator is zero."""
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator != 0)


def year_angle(day: datetime.date) -> float:
    return 2 * np.pi * day.timetuple().tm_yday / 365.25


class Holidays:
    """Public holidays of the United States, from the `holidays` library. They are known in advance, so this is no leak."""

    def __init__(self) -> None:
        import holidays

        self._calendar = holidays.country_holidays("US")

    def count(self, day: datetime.date, weeks: int) -> int:
        """Holidays in the `weeks` weeks after `day`."""
        return sum(day + datetime.timedelta(days=ahead) in self._calendar for ahead in range(1, 7 * weeks + 1))

    @staticmethod
    def weeks_to_christmas(day: datetime.date) -> float:
        ahead = (datetime.date(day.year, 12, 25) - day).days
        return (ahead if ahead >= 0 else (datetime.date(day.year + 1, 12, 25) - day).days) / 7

    def weeks_to_thanksgiving(self, day: datetime.date) -> float:
        for ahead in range(0, 400):
            later = day + datetime.timedelta(days=ahead)
            if later.month == 11 and "Thanksgiving" in (self._calendar.get(later) or ""):
                return ahead / 7
        raise AssertionError("every 400 days hold a Thanksgiving")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of the panel. `source` names the data that it is computed from."""

    name: str
    unit: str
    meaning: str
    source: str
    formula: Callable[[PanelBlock], np.ndarray]
    as_of_crawl: bool = False


@functools.cache
def _calendar() -> Holidays:
    return Holidays()


F = Feature
YEAR = 52


def _count(k: int) -> Feature:
    return F(f"reviews_{k}w", "reviews", f"n(t−{k}, t]", "counts", lambda r: r.sum("reviews", k))


def _growth(k: int) -> Feature:
    formula = f"n(t−{k}, t] ÷ (n(t−{2 * k}, t−{k}] + 1)"
    return F(f"growth_{k}w", "ratio", formula, "counts", lambda r: r.growth(k))


def _rating(k: int) -> Feature:
    formula = f"mean rating in (t−{k}, t]"
    return F(f"rating_{k}w", "stars", formula, "ratings", lambda r: r.per_review("rating", k, unit=0.1))


FEATURES: tuple[Feature, ...] = (
    # Counts in windows that end at t
    *map(_count, (1, 2, 4, 8, 12, 26, 52)),
    F("reviews_total", "reviews", "n(−∞, t]", "counts", lambda r: r.total("reviews")),
    # Growth: each window relative to the one before it
    *map(_growth, (1, 2, 4, 8, 12, 26)),
    F("growth_4w_a_month_ago", "ratio", "growth_4w at t−4", "counts", lambda r: r.growth(4, 4)),
    F("acceleration_4w", "ratio", "growth_4w − growth_4w at t−4", "counts", lambda r: r.growth(4) - r.growth(4, 4)),
    F("share_1w_of_4w", "share", "n(t−1, t] ÷ n(t−4, t]", "counts", lambda r: r.share(1, 4)),
    F("share_4w_of_12w", "share", "n(t−4, t] ÷ n(t−12, t]", "counts", lambda r: r.share(4, 12)),
    F("share_4w_of_52w", "share", "n(t−4, t] ÷ n(t−52, t]", "counts", lambda r: r.share(4, 52)),
    F("share_12w_of_52w", "share", "n(t−12, t] ÷ n(t−52, t]", "counts", lambda r: r.share(12, 52)),
    F("share_52w_of_total", "share", "n(t−52, t] ÷ n(−∞, t]", "counts", lambda r: r.share(52, SPAN)),
    # Regularity
    F("active_weeks_4w", "weeks", "weeks with a review in (t−4, t]", "counts", lambda r: r.active_weeks(4)),
    F("active_weeks_12w", "weeks", "weeks with a review in (t−12, t]", "counts", lambda r: r.active_weeks(12)),
    F("active_weeks_52w", "weeks", "weeks with a review in (t−52, t]", "counts", lambda r: r.active_weeks(52)),
    F(
        "weekly_deviation_12w",
        "reviews",
        "standard deviation of weekly reviews in (t−12, t]",
        "counts",
        lambda r: r.deviation("reviews", "reviews_squared", np.full(len(r.week), 12), 12),
    ),
    F(
        "weekly_deviation_52w",
        "reviews",
        "standard deviation of weekly reviews in (t−52, t]",
        "counts",
        lambda r: r.deviation("reviews", "reviews_squared", np.full(len(r.week), 52), 52),
    ),
    # Age
    F("age", "weeks", "weeks since the first review", "age", lambda r: r.age()),
    F("reviews_per_week", "reviews/week", "n(−∞, t] ÷ (age + 1)", "age", lambda r: r.total("reviews") / (r.age() + 1)),
    F("weeks_since_review", "weeks", "since the last week with a review", "age", lambda r: r.weeks_since(1)),
    F("weeks_since_second", "weeks", "since the second last such week", "age", lambda r: r.weeks_since(2)),
    # A year ago
    F(
        "reviews_same_12w_last_year",
        "reviews",
        "n(t−52, t−40]: the weeks that lie ahead, a year ago; NaN if the data are younger",
        "season",
        lambda r: r.if_known(52, r.sum("reviews", 12, 40)),
    ),
    F(
        "reviews_same_4w_last_year",
        "reviews",
        "n(t−56, t−52]",
        "season",
        lambda r: r.if_known(56, r.sum("reviews", 4, 52)),
    ),
    F(
        "growth_last_year",
        "ratio",
        "n(t−52, t−40] ÷ (n(t−56, t−52] + 1): what the label was a year ago",
        "season",
        lambda r: r.if_known(56, r.sum("reviews", 12, 40) / (r.sum("reviews", 4, 52) + 1)),
    ),
    F(
        "expected_by_last_year",
        "ratio",
        "n(t−52, t−40] ÷ (n(t−4, t] + 1)",
        "season",
        lambda r: r.if_known(52, r.sum("reviews", 12, 40) / (r.sum("reviews", 4) + 1)),
    ),
    # Season and holidays
    F(
        "year_sine",
        "1",
        "sin(2π · day of year ÷ 365.25)",
        "calendar",
        lambda r: r.by_calendar(lambda d: np.sin(year_angle(d))),
    ),
    F(
        "year_cosine",
        "1",
        "cos(2π · day of year ÷ 365.25)",
        "calendar",
        lambda r: r.by_calendar(lambda d: np.cos(year_angle(d))),
    ),
    F(
        "weeks_to_thanksgiving",
        "weeks",
        "from the end of t to the next Thanksgiving",
        "calendar",
        lambda r: r.by_calendar(_calendar().weeks_to_thanksgiving),
    ),
    F(
        "weeks_to_christmas",
        "weeks",
        "from the end of t to the next 25 December",
        "calendar",
        lambda r: r.by_calendar(_calendar().weeks_to_christmas),
    ),
    F(
        "holidays_next_4w",
        "days",
        "US public holidays in the 4 weeks after t",
        "calendar",
        lambda r: r.by_calendar(lambda day: _calendar().count(day, 4)),
    ),
    F(
        "holidays_next_12w",
        "days",
        "US public holidays in the 12 weeks after t",
        "calendar",
        lambda r: r.by_calendar(lambda day: _calendar().count(day, 12)),
    ),
    # Ratings
    *map(_rating, (4, 12, 52)),
    F("rating_total", "stars", "mean rating up to t", "ratings", lambda r: r.per_review("rating", SPAN, unit=0.1)),
    F(
        "rating_change_4w",
        "stars",
        "rating_4w − rating_52w",
        "ratings",
        lambda r: r.per_review("rating", 4, unit=0.1) - r.per_review("rating", 52, unit=0.1),
    ),
    F(
        "rating_change_12w",
        "stars",
        "rating_12w − mean rating in (t−24, t−12]",
        "ratings",
        lambda r: r.per_review("rating", 12, unit=0.1) - r.per_review("rating", 12, 12, unit=0.1),
    ),
    F(
        "rating_deviation_52w",
        "stars",
        "standard deviation of ratings in (t−52, t]",
        "ratings",
        lambda r: r.deviation("rating", "rating_squared", r.sum("reviews", 52), 52, unit=0.1),
    ),
    F("fives_12w", "share", "ratings of 4.5 or more in (t−12, t]", "ratings", lambda r: r.per_review("fives", 12)),
    F("ones_12w", "share", "ratings of 1.5 or less in (t−12, t]", "ratings", lambda r: r.per_review("ones", 12)),
    F("ones_4w", "share", "ratings of 1.5 or less in (t−4, t]", "ratings", lambda r: r.per_review("ones", 4)),
    # Properties of reviews
    F("verified_4w", "share", "verified purchases in (t−4, t]", "reviews", lambda r: r.per_review("verified", 4)),
    F("verified_52w", "share", "verified purchases in (t−52, t]", "reviews", lambda r: r.per_review("verified", 52)),
    F("images_4w", "images/review", "mean in (t−4, t]", "reviews", lambda r: r.per_review("images", 4)),
    F("images_52w", "images/review", "mean in (t−52, t]", "reviews", lambda r: r.per_review("images", 52)),
    F("words_4w", "words/review", "mean in (t−4, t]", "text", lambda r: r.per_review("words", 4)),
    F("words_52w", "words/review", "mean in (t−52, t]", "text", lambda r: r.per_review("words", 52)),
    F(
        "sentiment_4w",
        "words/review",
        "positive − negative words, mean in (t−4, t]",
        "text",
        lambda r: r.per_review("sentiment", 4),
    ),
    F(
        "sentiment_52w",
        "words/review",
        "positive − negative words, mean in (t−52, t]",
        "text",
        lambda r: r.per_review("sentiment", 52),
    ),
    # The category and the market
    F(
        "category",
        "code",
        "number of the category in the manifest's list",
        "category",
        lambda r: r.context.category[r.product],
    ),
    F("category_reviews_4w", "reviews", "N(t−4, t]", "category", lambda r: r.category_reviews(4)),
    F("category_growth_4w", "ratio", "N(t−4, t] ÷ (N(t−8, t−4] + 1)", "category", lambda r: r.category_growth(4)),
    F("category_growth_12w", "ratio", "N(t−12, t] ÷ (N(t−24, t−12] + 1)", "category", lambda r: r.category_growth(12)),
    F(
        "category_growth_last_year",
        "ratio",
        "N(t−52, t−40] ÷ (N(t−64, t−52] + 1)",
        "category",
        lambda r: r.if_known(64, r.category_growth(12, 40)),
    ),
    F(
        "share_of_category_4w",
        "share",
        "n(t−4, t] ÷ N(t−4, t]",
        "category",
        lambda r: ratio(r.sum("reviews", 4), r.category_reviews(4)),
    ),
    F(
        "market_growth_4w",
        "ratio",
        "category_growth_4w over all categories",
        "category",
        lambda r: r.category_growth(4, market=True),
    ),
    # As of the crawl: left out by default, since the crawl was after the weeks that are forecast
    F("price", "dollars", "the metadata's price", "metadata", lambda r: r.price(), as_of_crawl=True),
    F("price_missing", "0 or 1", "the metadata have no price", "metadata", lambda r: np.isnan(r.price()), as_of_crawl=True),
    F(
        "helpful_4w",
        "votes/review",
        "mean in (t−4, t]",
        "votes",
        lambda r: r.per_review("helpful_votes", 4),
        as_of_crawl=True,
    ),
    F(
        "helpful_52w",
        "votes/review",
        "mean in (t−52, t]",
        "votes",
        lambda r: r.per_review("helpful_votes", 52),
        as_of_crawl=True,
    ),
)


def selection(as_of_crawl: bool) -> list[Feature]:
    """The features of a panel: those known at t, and with `as_of_crawl` also those known only at the crawl."""
    return [feature for feature in FEATURES if as_of_crawl or not feature.as_of_crawl]


def compute(rows: PanelBlock, features: list[Feature]) -> dict[str, np.ndarray]:
    """The values of each feature, (num_rows,) float32."""
    return {feature.name: np.asarray(feature.formula(rows), np.float32) for feature in features}
