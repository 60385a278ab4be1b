"""Weekly sums: where weeks begin and end, and windows of calendar weeks against a dense table."""

import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble.recipes.hot_sellers import weekly
from ensemble.recipes.hot_sellers.weekly import CHANNELS, SPAN, WeeklySeries, Windows

NUM_PRODUCTS, FIRST_WEEK, NUM_WEEKS = 4, 2600, 30
ACTIVE_WEEKS = st.dictionaries(
    st.tuples(st.integers(0, NUM_PRODUCTS - 1), st.integers(FIRST_WEEK, FIRST_WEEK + NUM_WEEKS - 1)), st.integers(1, 9)
)


def milliseconds(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC).timestamp() * 1000)


def some_reviews(counts: dict[tuple[int, int], int], generator: np.random.Generator) -> pl.DataFrame:
    """As many reviews as `counts` says for each product and week, sorted by both."""
    num_reviews = [counts[place] for place in sorted(counts)]
    places = np.repeat(np.array(sorted(counts), np.int32).reshape(-1, 2), num_reviews, axis=0)
    num = len(places)
    return pl.DataFrame(
        {
            "product": places[:, 0],
            "week": places[:, 1],
            "rating": generator.integers(1, 11, num).astype(np.float32) / 2,
            "verified": generator.random(num) < 0.5,
            "num_images": generator.integers(0, 4, num).astype(np.int32),
            "words": generator.integers(0, 200, num).astype(np.int32),
            "sentiment": generator.integers(-5, 6, num).astype(np.int32),
            "helpful_votes": generator.integers(0, 50, num).astype(np.int32),
        }
    )


def series_of(counts: dict[tuple[int, int], int]) -> WeeklySeries:
    return WeeklySeries(weekly.sum_by_week(some_reviews(counts, np.random.default_rng(0))))


@pytest.mark.parametrize(
    ("moment", "monday"),
    [
        ("1970-01-05T00:00:00", "1970-01-05"),
        ("2023-09-03T23:59:59.999", "2023-08-28"),  # a Sunday's last millisecond
        ("2023-09-04T00:00:00", "2023-09-04"),
        ("2024-02-29T12:00:00", "2024-02-26"),
        ("2020-12-31T23:59:59.999", "2020-12-28"),
    ],
)
def test_weeks_begin_on_monday_at_midnight_utc(moment: str, monday: str) -> None:
    """A review on Sunday night would count for the week after it, and a feature would contain the future."""
    week = pl.select(weekly.week_of(pl.lit(milliseconds(moment)))).item()
    assert str(weekly.monday(week)) == monday


@pytest.mark.parametrize(
    ("last_review", "monday"),
    [
        ("2023-09-10T23:59:59.999", "2023-09-04"),
        ("2023-09-10T00:00:00", "2023-09-04"),
        ("2023-09-09T23:59:59.999", "2023-08-28"),  # Saturday: the week is not over
        ("2023-09-04T00:00:00", "2023-08-28"),
    ],
)
def test_a_week_is_complete_when_its_sunday_came(last_review: str, monday: str) -> None:
    """In an incomplete week all products would seem to lose reviews, or a complete week would be left out."""
    assert str(weekly.monday(weekly.last_complete_week(milliseconds(last_review)))) == monday


def test_sums_of_a_week() -> None:
    """The sum of a channel would be wrong, or half stars would be rounded away."""
    reviews = pl.DataFrame(
        {
            "product": [0, 1, 1],
            "week": [9, 7, 7],
            "rating": [1.5, 4.5, 0.5],
            "verified": [False, True, True],
            "num_images": [0, 2, 1],
            "words": [3, 10, 20],
            "sentiment": [1, -1, 3],
            "helpful_votes": [0, 5, 2],
        },
        schema_overrides={"product": pl.Int32, "week": pl.Int32, "rating": pl.Float32},
    )
    rows = weekly.sum_by_week(reviews).rows(named=True)
    assert [(row["product"], row["week"]) for row in rows] == [(0, 9), (1, 7)]
    assert rows[1] == {
        "product": 1, "week": 7, "reviews": 2, "rating": 50, "rating_squared": 45**2 + 5**2, "fives": 1, "ones": 1,
        "verified": 2, "images": 3, "words": 30, "sentiment": 2, "helpful_votes": 7,
    }  # fmt: skip
    assert (rows[0]["fives"], rows[0]["ones"]) == (0, 1)
    with pytest.raises(AssertionError, match="sorted by product and week"):
        weekly.sum_by_week(reviews.reverse())


def test_a_week_of_very_many_reviews() -> None:
    """One product with more than 46,340 reviews in a week would overflow 32 bits where counts are squared."""
    windows = Windows(series_of({(0, FIRST_WEEK): 60_000}), np.array([0]), np.array([FIRST_WEEK]))
    assert windows.sum("reviews_squared", 1).tolist() == [60_000**2]


@given(counts=ACTIVE_WEEKS, weeks=st.integers(1, 60), ago=st.integers(-15, 60))
def test_windows_are_calendar_weeks(counts: dict[tuple[int, int], int], weeks: int, ago: int) -> None:
    """A window would consist of rows, not of weeks, so that quiet months are left out; or it would have other reviews."""
    series = series_of(counts)
    dense = np.zeros((NUM_PRODUCTS, NUM_WEEKS), int)
    for (product, week), count in counts.items():
        dense[product, week - FIRST_WEEK] = count
    product, week = (axis.ravel() for axis in np.indices(dense.shape))
    windows = Windows(series, product, week + FIRST_WEEK)
    padded = np.pad(dense, ((0, 0), (200, 200)))
    expected = [padded[p, 200 + w - ago - weeks + 1 : 200 + w - ago + 1] for p, w in zip(product, week, strict=True)]
    np.testing.assert_array_equal(windows.sum("reviews", weeks, ago), [window.sum() for window in expected])
    np.testing.assert_array_equal(windows.sum("reviews_squared", weeks, ago), [(window**2).sum() for window in expected])
    np.testing.assert_array_equal(windows.sum("reviews", SPAN), np.cumsum(dense, axis=1).ravel())
    np.testing.assert_array_equal(
        windows.next("reviews", 12), [padded[p, 201 + w : 213 + w].sum() for p, w in zip(product, week, strict=True)]
    )


@given(counts=ACTIVE_WEEKS, base_weeks=st.integers(1, 8), last_week=st.integers(-2, NUM_WEEKS + 3))
def test_rows_are_weeks_with_recent_reviews(counts: dict[tuple[int, int], int], base_weeks: int, last_week: int) -> None:
    """A quiet week after an active one would be missing, a week would come twice, or rows would go beyond the last week."""
    product, week = weekly.rows_with_recent_reviews(series_of(counts), base_weeks, FIRST_WEEK + last_week)
    expected = [
        (p, w)
        for p in range(NUM_PRODUCTS)
        for w in range(FIRST_WEEK, FIRST_WEEK + last_week + 1)
        if any((p, w - ago) in counts for ago in range(base_weeks))
    ]
    assert list(zip(product.tolist(), week.tolist(), strict=True)) == expected


def test_every_channel_is_explained() -> None:
    """A column of `weeks` would be explained nowhere."""
    assert list(weekly.sum_by_week(some_reviews({}, np.random.default_rng(0))).columns) == ["product", "week", *CHANNELS]
    assert all(CHANNELS.values())
