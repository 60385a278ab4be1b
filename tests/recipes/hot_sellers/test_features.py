"""Every feature against its meaning: recomputed from raw reviews with a dense table of weeks, one number at a time."""

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_market import config_for, prepare_every_week, product_metadata, write_metadata

from ensemble.arrow import open_table
from ensemble.recipes.hot_sellers import features, text, weekly
from ensemble.recipes.hot_sellers.features import FEATURES
from ensemble.recipes.hot_sellers.settings import PanelConfig

FIRST_DAY = datetime.datetime(2021, 1, 4, tzinfo=datetime.UTC)  # a Monday
NUM_WEEKS = 125
CATEGORIES = {"A": "Toys", "B": "Toys", "C": "Tools", "D": "Tools", "E": "Toys"}  # F to H are in no metadata
PRICES = {"A": 9.99, "C": 250.0}
VOCABULARY = ["great", "awful", "it's", "blue", "Wow", "refund", "size", "10", "loved", "broke"]
HOLIDAYS = {
    datetime.date.fromisoformat(day)
    for day in """2021-01-01 2021-01-18 2021-02-15 2021-05-31 2021-06-18 2021-06-19 2021-07-04 2021-07-05 2021-09-06
    2021-10-11 2021-11-11 2021-11-25 2021-12-24 2021-12-25 2021-12-31 2022-01-01 2022-01-17 2022-02-21 2022-05-30 2022-06-19
    2022-06-20 2022-07-04 2022-09-05 2022-10-10 2022-11-11 2022-11-24 2022-12-25 2022-12-26 2023-01-01 2023-01-02 2023-01-16
    2023-02-20 2023-05-29 2023-06-19 2023-07-04 2023-09-04 2023-10-09 2023-11-10 2023-11-11 2023-11-23 2023-12-25""".split()
}
THANKSGIVINGS = [datetime.date(2021, 11, 25), datetime.date(2022, 11, 24), datetime.date(2023, 11, 23)]


def some_reviews(generator: np.random.Generator) -> list[dict[str, Any]]:
    """Reviews of eight products: busy, seasonal, with gaps of months, new, or with reviews in one week only.

    Some ratings are half stars, and some texts are empty.
    """
    weeks_of_product = {
        "A": range(NUM_WEEKS),
        "B": [*range(5, 30), *range(60, 61), *range(110, NUM_WEEKS)],
        "C": range(3, NUM_WEEKS, 7),
        "D": [0, 1, 52, 53, 104, 105],
        "E": range(100, NUM_WEEKS),
        "F": generator.choice(NUM_WEEKS, 40, replace=False).tolist(),
        "G": [70],
        "H": [20, 24, 25, 80, 84, 88, 92],
    }
    reviews = []
    for product, weeks in weeks_of_product.items():
        for week in weeks:
            for _ in range(generator.integers(1, 9 if product == "A" else 4)):
                moment = FIRST_DAY + datetime.timedelta(weeks=int(week), seconds=int(generator.integers(0, 7 * 86_400)))
                reviews.append(
                    {
                        "parent_asin": product,
                        "user_id": f"user{len(reviews)}",
                        "timestamp": int(moment.timestamp() * 1000),
                        "rating": float(generator.integers(2, 11) / 2),
                        "title": " ".join(generator.choice(VOCABULARY, generator.integers(0, 3))),
                        "text": ", ".join(generator.choice(VOCABULARY, generator.integers(0, 12))),
                        "helpful_vote": int(generator.integers(0, 9)),
                        "verified_purchase": bool(generator.random() < 0.7),
                        "images": [{}] * int(generator.integers(0, 3)),
                        "asin": product,
                    }
                )
    last_sunday = FIRST_DAY + datetime.timedelta(weeks=NUM_WEEKS, seconds=-1)
    reviews[0]["timestamp"] = int(last_sunday.timestamp() * 1000)
    return [reviews[number] for number in generator.permutation(len(reviews))]


@pytest.fixture(scope="module")
def raw() -> list[dict[str, Any]]:
    return some_reviews(np.random.default_rng(4))


@pytest.fixture(scope="module")
def rows(raw: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All rows up to the last labelled week, and those of the forecast, with `product_id` and `t`, the week from 0."""
    folder = tmp_path_factory.mktemp("features")
    metadata = [product_metadata(name, category, price=PRICES.get(name)) for name, category in CATEGORIES.items()]
    panel = PanelConfig(as_of_crawl=True, top_fraction=0.4, horizon_weeks=2)
    config = config_for(folder, raw, panel, metadata=(write_metadata(folder, metadata),))
    manifest = prepare_every_week(config)
    assert manifest["categories"] == ["", "Tools", "Toys"]
    ids = open_table(folder / "out" / "products")["product_id"].to_pylist()
    first_week = (FIRST_DAY.date() - weekly.FIRST_MONDAY).days // 7
    all_rows = [
        {**row, "product_id": ids[row["product"]], "t": row["week"] - first_week}
        for split in ("train", "forecast")
        for row in open_table(folder / "out" / "rows" / split).to_pylist()
    ]
    assert len(all_rows) > 400
    assert max(row["t"] for row in all_rows) == NUM_WEEKS - 1
    return all_rows


class Product:
    """A product at week t by brute force: lists of its reviews in calendar windows."""

    def __init__(self, by_week: dict[str, list[list[dict[str, Any]]]], product: str, t: int):
        self.by_week, self.product, self.t = by_week, product, t
        self.end = (FIRST_DAY + datetime.timedelta(weeks=t, days=6)).date()
        self.first = next(week for week, reviews in enumerate(by_week[product]) if reviews)

    def reviews(self, begin: int, end: int = 0, product: str | None = None) -> list[dict[str, Any]]:
        """The reviews of the weeks in (t + begin, t + end]."""
        weeks = range(max(0, self.t + begin + 1), max(0, self.t + end + 1))
        return [review for week in weeks for review in self.by_week[product or self.product][week]]

    def n(self, begin: int, end: int = 0) -> int:
        return len(self.reviews(begin, end))

    def N(self, begin: int, end: int = 0, market: bool = False) -> int:
        mine = CATEGORIES.get(self.product, "")
        return sum(len(self.reviews(begin, end, p)) for p in self.by_week if market or CATEGORIES.get(p, "") == mine)

    def mean(self, of: Callable[[dict[str, Any]], float], begin: int, end: int = 0) -> float:
        values = [of(review) for review in self.reviews(begin, end)]
        return float(np.mean(values)) if values else np.nan

    def counts(self, weeks: int) -> list[int]:
        return [self.n(-ago - 1, -ago) for ago in range(weeks)]

    def active(self) -> list[int]:
        return [week for week in range(self.t + 1) if self.by_week[self.product][week]]

    def known(self, weeks_ago: int, value: float) -> float:
        """The value, or NaN if the window's first week is before the data."""
        return value if self.t - weeks_ago + 1 >= 0 else np.nan

    def holidays(self, weeks: int) -> int:
        return sum(self.end < day <= self.end + datetime.timedelta(weeks=weeks) for day in HOLIDAYS)

    def weeks_to(self, days: list[datetime.date]) -> float:
        return min((day - self.end).days for day in days if day >= self.end) / 7


def part(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else np.nan


def words(review: dict[str, Any]) -> list[str]:
    return re.findall(r"[a-z0-9']+", f"{review['title']}\n{review['text']}".lower())


def sentiment(review: dict[str, Any]) -> int:
    return sum((word in text.POSITIVE) - (word in text.NEGATIVE) for word in words(review))


def angle(p: Product) -> float:
    return 2 * np.pi * ((p.end - datetime.date(p.end.year, 1, 1)).days + 1) / 365.25


def rating(review: dict[str, Any]) -> float:
    return review["rating"]


EVER = -1000
EXPECTED: dict[str, Callable[[Product], float]] = {
    **{f"reviews_{k}w": lambda p, k=k: p.n(-k) for k in (1, 2, 4, 8, 12, 26, 52)},
    "reviews_total": lambda p: p.n(EVER),
    **{f"growth_{k}w": lambda p, k=k: p.n(-k) / (p.n(-2 * k, -k) + 1) for k in (1, 2, 4, 8, 12, 26)},
    "growth_4w_a_month_ago": lambda p: p.n(-8, -4) / (p.n(-12, -8) + 1),
    "acceleration_4w": lambda p: p.n(-4) / (p.n(-8, -4) + 1) - p.n(-8, -4) / (p.n(-12, -8) + 1),
    "share_1w_of_4w": lambda p: part(p.n(-1), p.n(-4)),
    "share_4w_of_12w": lambda p: part(p.n(-4), p.n(-12)),
    "share_4w_of_52w": lambda p: part(p.n(-4), p.n(-52)),
    "share_12w_of_52w": lambda p: part(p.n(-12), p.n(-52)),
    "share_52w_of_total": lambda p: part(p.n(-52), p.n(EVER)),
    **{f"active_weeks_{k}w": lambda p, k=k: sum(count > 0 for count in p.counts(k)) for k in (4, 12, 52)},
    "weekly_deviation_12w": lambda p: float(np.std(p.counts(12))),
    "weekly_deviation_52w": lambda p: float(np.std(p.counts(52))),
    "age": lambda p: p.t - p.first,
    "reviews_per_week": lambda p: p.n(EVER) / (p.t - p.first + 1),
    "weeks_since_review": lambda p: p.t - p.active()[-1],
    "weeks_since_second": lambda p: p.t - p.active()[-2] if len(p.active()) > 1 else np.nan,
    "reviews_same_12w_last_year": lambda p: p.known(52, p.n(-52, -40)),
    "reviews_same_4w_last_year": lambda p: p.known(56, p.n(-56, -52)),
    "growth_last_year": lambda p: p.known(56, p.n(-52, -40) / (p.n(-56, -52) + 1)),
    "expected_by_last_year": lambda p: p.known(52, p.n(-52, -40) / (p.n(-4) + 1)),
    "year_sine": lambda p: float(np.sin(angle(p))),
    "year_cosine": lambda p: float(np.cos(angle(p))),
    "weeks_to_thanksgiving": lambda p: p.weeks_to(THANKSGIVINGS),
    "weeks_to_christmas": lambda p: p.weeks_to([datetime.date(year, 12, 25) for year in (2021, 2022, 2023)]),
    "holidays_next_4w": lambda p: p.holidays(4),
    "holidays_next_12w": lambda p: p.holidays(12),
    **{f"rating_{k}w": lambda p, k=k: p.mean(rating, -k) for k in (4, 12, 52)},
    "rating_total": lambda p: p.mean(rating, EVER),
    "rating_change_4w": lambda p: p.mean(rating, -4) - p.mean(rating, -52),
    "rating_change_12w": lambda p: p.mean(rating, -12) - p.mean(rating, -24, -12),
    "rating_deviation_52w": lambda p: float(np.std([rating(review) for review in p.reviews(-52)])),
    "fives_12w": lambda p: p.mean(lambda review: rating(review) >= 4.5, -12),
    "ones_12w": lambda p: p.mean(lambda review: rating(review) <= 1.5, -12),
    "ones_4w": lambda p: p.mean(lambda review: rating(review) <= 1.5, -4),
    **{f"verified_{k}w": lambda p, k=k: p.mean(lambda r: r["verified_purchase"], -k) for k in (4, 52)},
    **{f"images_{k}w": lambda p, k=k: p.mean(lambda r: len(r["images"]), -k) for k in (4, 52)},
    **{f"words_{k}w": lambda p, k=k: p.mean(lambda r: len(words(r)), -k) for k in (4, 52)},
    **{f"sentiment_{k}w": lambda p, k=k: p.mean(sentiment, -k) for k in (4, 52)},
    "category": lambda p: ["", "Tools", "Toys"].index(CATEGORIES.get(p.product, "")),
    "category_reviews_4w": lambda p: p.N(-4),
    "category_growth_4w": lambda p: p.N(-4) / (p.N(-8, -4) + 1),
    "category_growth_12w": lambda p: p.N(-12) / (p.N(-24, -12) + 1),
    "category_growth_last_year": lambda p: p.known(64, p.N(-52, -40) / (p.N(-64, -52) + 1)),
    "share_of_category_4w": lambda p: part(p.n(-4), p.N(-4)),
    "market_growth_4w": lambda p: p.N(-4, market=True) / (p.N(-8, -4, market=True) + 1),
    "price": lambda p: PRICES.get(p.product, np.nan),
    "price_missing": lambda p: float(p.product not in PRICES),
    **{f"helpful_{k}w": lambda p, k=k: p.mean(lambda r: r["helpful_vote"], -k) for k in (4, 52)},
}


@pytest.fixture(scope="module")
def products(raw: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[Product]:
    """The same rows by brute force."""
    by_week: dict[str, list[list[dict[str, Any]]]] = {product: [[] for _ in range(NUM_WEEKS)] for product in "ABCDEFGH"}
    for review in raw:
        week = (datetime.datetime.fromtimestamp(review["timestamp"] / 1000, datetime.UTC) - FIRST_DAY).days // 7
        by_week[review["parent_asin"]][week].append(review)
    return [Product(by_week, row["product_id"], row["t"]) for row in rows]


def test_the_table_names_every_feature_once() -> None:
    """A feature would be without a test, or two columns would have one name."""
    assert [feature.name for feature in FEATURES] == list(EXPECTED)
    assert len(features.selection(as_of_crawl=False)) >= 54
    for feature in FEATURES:
        assert feature.name
        assert feature.unit
        assert feature.meaning
        assert feature.source


@pytest.mark.parametrize("name", EXPECTED)
def test_feature(name: str, rows: list[dict[str, Any]], products: list[Product]) -> None:
    """The column would not be what its meaning says, in gaps, at the beginning of the data, or for a new product."""
    actual = np.array([row[name] for row in rows], np.float32)
    expected = np.array([EXPECTED[name](product) for product in products])
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-6)
    assert len(np.unique(actual[np.isfinite(actual)])) > 1, "the data must make the feature vary"


def test_unknown_is_nan_and_nothing_is_infinite(rows: list[dict[str, Any]]) -> None:
    """A member would take a missing value for zero, or meet an infinity."""
    table = {feature.name: np.array([row[feature.name] for row in rows], float) for feature in FEATURES}
    assert not any(np.isinf(values).any() for values in table.values())
    sometimes_unknown = {name for name, values in table.items() if np.isnan(values).any()}
    assert sometimes_unknown == {
        "weeks_since_second", "reviews_same_12w_last_year", "reviews_same_4w_last_year", "growth_last_year",
        "expected_by_last_year", "rating_change_12w", "category_growth_last_year", "price",
    }  # fmt: skip


def test_what_the_crawl_knew_is_left_out(prepared: Path) -> None:
    """Votes and prices that were recorded years later would make every score too good, without a message."""
    crawl = {"price", "price_missing", "helpful_4w", "helpful_52w"}
    assert {feature.name for feature in FEATURES if feature.as_of_crawl} == crawl
    assert {feature.name for feature in FEATURES} - {feature.name for feature in features.selection(False)} == crawl
    assert not crawl & set(open_table(prepared / "rows" / "train").column_names)


def test_the_language_of_the_computer_does_not_matter() -> None:
    """With a Thai locale, the name of no holiday would contain "Thanksgiving", and any preparation end in a traceback."""
    script = """import datetime
from ensemble.recipes.hot_sellers import features
print(features.weeks_to_thanksgiving(datetime.date(2021, 11, 18)))"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"LANG": "th_TH.UTF-8"}, capture_output=True, text=True
    )
    assert done.stdout == "1.0\n", done.stderr


def test_thanksgiving_is_the_fourth_thursday_of_november() -> None:
    """The holiday library would have Thanksgiving for some years only, or under another name."""
    for year in range(1996, 2040):
        first = datetime.date(year, 11, 1)
        thanksgiving = first + datetime.timedelta(days=(3 - first.weekday()) % 7 + 21)
        assert features.weeks_to_thanksgiving(thanksgiving - datetime.timedelta(days=10)) == 10 / 7
        assert features.weeks_to_thanksgiving(thanksgiving) == 0
        assert features.weeks_to_thanksgiving(thanksgiving + datetime.timedelta(days=1)) > 50
