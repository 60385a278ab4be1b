"""The generated market: the raw schema, the same bytes for one seed, and every signal that its docstring promises."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import market, market_words
from ensemble.recipes.hot_sellers.market import Products, reviews, simulate, write_market
from ensemble.recipes.hot_sellers.settings import MarketConfig

REVIEW_FIELDS = {
    "rating": float,
    "title": str,
    "text": str,
    "images": list,
    "asin": str,
    "parent_asin": str,
    "user_id": str,
    "timestamp": int,
    "helpful_vote": int,
    "verified_purchase": bool,
}
METADATA_FIELDS = {
    "main_category": str,
    "title": str,
    "average_rating": float,
    "rating_number": int,
    "features": list,
    "description": list,
    "price": float | None,
    "images": list,
    "videos": list,
    "store": str | None,
    "categories": list,
    "details": dict,
    "parent_asin": str,
    "bought_together": None,
}
SMALL = MarketConfig(num_products=600, num_reviews=30_000)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, Path]:
    """The files of a market of three chunks."""
    return write_market(tmp_path_factory.mktemp("market"), SMALL)


@pytest.fixture(scope="module")
def demo() -> list[Products]:
    """The process at the demo's size, without its reviews."""
    return list(simulate(MarketConfig()))


def matrix(chunks: list[Products], name: str) -> np.ndarray:
    """A field of all products; the products are the last axis."""
    return np.concatenate([getattr(chunk, name) for chunk in chunks], axis=-1)


def sum_at_offsets(values: np.ndarray, events: np.ndarray, offsets: range) -> float:
    """The sum of a (num_weeks, num_products) matrix over weeks at these offsets from events, all of them inside the data."""
    week, product = np.nonzero(events)
    inside = (week >= 12) & (week < len(values) - 20)
    return float(sum(values[week[inside] + offset, product[inside]].sum() for offset in offsets))


def weeks_of(table: pl.DataFrame, config: MarketConfig) -> np.ndarray:
    """The week of each review, counted from the first day."""
    return (table["timestamp"].to_numpy() - np.datetime64(config.first_day, "ms").astype(np.int64)) // market.WEEK_MS


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_fields(record: dict, fields: dict) -> None:
    assert list(record) == list(fields)
    for name, kind in fields.items():
        assert record[name] is None if kind is None else isinstance(record[name], kind), (name, record[name])
        assert not (isinstance(record[name], bool) and kind is not bool), (name, record[name])


def test_reviews_have_the_raw_schema(small):
    """A program for the real files would fail on a missing field, another order, or an integer instead of a float."""
    lines = records(small[0])
    for record in lines:
        check_fields(record, REVIEW_FIELDS)
        assert record["rating"] in (1.0, 2.0, 3.0, 4.0, 5.0)
        assert record["title"]
        assert record["text"]
        assert re.fullmatch(r"A[A-Z2-7]{27}", record["user_id"])
        assert re.fullmatch(r"B0[0-9A-Z]{8}", record["asin"])
        assert re.fullmatch(r"B0[0-9A-Z]{8}", record["parent_asin"])
        assert record["helpful_vote"] >= 0
        for image in record["images"]:
            assert list(image) == ["small_image_url", "medium_image_url", "large_image_url", "attachment_type"]
            assert all(isinstance(value, str) for value in image.values())
    assert {0, 1, 2} <= {len(record["images"]) for record in lines}
    parents = {record["asin"]: record["parent_asin"] for record in lines}
    assert all(parents[record["asin"]] == record["parent_asin"] for record in lines)
    assert any(asin != parent for asin, parent in parents.items())


def test_metadata_has_the_raw_schema(small):
    """The tests of the metadata reader would lack null prices and stores, empty categories and missing products."""
    lines = records(small[1])
    for record in lines:
        check_fields(record, METADATA_FIELDS)
        assert 1 <= record["average_rating"] <= 5
        assert record["title"].startswith(tuple(market_words.BRANDS))
        for image in record["images"]:
            assert list(image) == ["thumb", "large", "variant", "hi_res"]
        for video in record["videos"]:
            assert list(video) == ["title", "url", "user_id"]
    for name, blank in {"price": None, "store": None, "categories": [], "description": [], "videos": []}.items():
        share = np.mean([record[name] == blank for record in lines])
        assert 0 < share < 1, name
    assert any(image["hi_res"] is None for record in lines for image in record["images"])
    known = {record["parent_asin"] for record in lines}
    assert len(known) == len(lines)
    assert 0.95 * SMALL.num_products < len(lines) < SMALL.num_products
    reviewed = Counter(record["parent_asin"] for record in records(small[0]))
    assert set(reviewed) - known, "some products have reviews and no metadata"
    assert all(record["rating_number"] > reviewed[record["parent_asin"]] for record in lines)


def test_ratings_of_the_metadata_are_as_of_the_crawl(small):
    """A leak through `average_rating` could not be shown if it did not follow from the reviews."""
    table = pl.read_ndjson(small[0], schema={"rating": pl.Float64, "parent_asin": pl.String})
    metadata = pl.read_ndjson(small[1], schema={"average_rating": pl.Float64, "parent_asin": pl.String})
    both = table.group_by("parent_asin").agg(pl.mean("rating"), pl.len()).join(metadata, on="parent_asin")
    often = both.filter(pl.col("len") >= 50)
    assert often.select(pl.corr("rating", "average_rating")).item() > 0.5
    (chunk,) = simulate(MarketConfig(num_products=50, num_reviews=5_000))
    worst, best = (
        [record["average_rating"] for record in market.metadata(chunk, stars * chunk.counts.sum(axis=0), SMALL)]
        for stars in (1, 5)
    )
    assert np.mean(np.array(best) - np.array(worst)) > 1


def test_one_seed_gives_one_file(small, tmp_path):
    """A run could not be repeated, and fingerprints of prepared data would differ from machine to machine."""
    again = write_market(tmp_path / "again", SMALL)
    other = write_market(tmp_path / "other", MarketConfig(num_products=600, num_reviews=30_000, seed=1))
    for first, second, third in zip(small, again, other, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes() != third.read_bytes()
    ids = [set(pl.read_ndjson(paths[0], schema={"user_id": pl.String})["user_id"]) for paths in (small, other)]
    assert not ids[0] & ids[1], "ids differ between seeds"


@pytest.mark.parametrize(
    "config",
    [
        MarketConfig(seed=3),
        MarketConfig(num_products=40, num_reviews=10_000, num_weeks=60, seed=2**70),
        MarketConfig(num_products=1, num_reviews=5_000, num_weeks=3, first_day="1995-01-02"),
        MarketConfig(num_products=5_000, num_reviews=5_000, num_weeks=20),
    ],
    ids=["demo", "few", "one", "sparse"],
)
def test_total_is_near_the_target(config):
    """`num_reviews` would not mean the number of reviews."""
    total = sum(int(chunk.counts.sum()) for chunk in simulate(config))
    assert abs(total / config.num_reviews - 1) < 0.05


def test_reviews_lie_in_their_weeks(small):
    """The panel would have reviews outside the calendar, or other counts than those of the process."""
    table = pl.read_ndjson(small[0], schema={"timestamp": pl.Int64, "parent_asin": pl.String, "user_id": pl.String})
    week = weeks_of(table, SMALL)
    assert week.min() == 0
    assert week.max() == SMALL.num_weeks - 1
    counts = matrix(list(simulate(SMALL)), "counts")
    np.testing.assert_array_equal(np.bincount(week, minlength=SMALL.num_weeks), counts.sum(axis=1))
    per_product = table["parent_asin"].value_counts()["count"].sort().to_numpy()
    np.testing.assert_array_equal(per_product, np.sort(counts.sum(axis=0)[counts.any(axis=0)]))
    weekdays = pl.from_epoch(table["timestamp"], time_unit="ms").dt.weekday()
    assert weekdays.value_counts()["count"].min() > 0.9 * table.height / 7
    assert table["user_id"].n_unique() < 0.9 * table.height, "some people review more than once"


def test_nothing_grows_with_the_size(monkeypatch):
    """Thirty million reviews would not fit into memory: chunks and batches must be small, and generated one by one."""
    made = []
    original = market.products_of_chunk
    monkeypatch.setattr(market, "products_of_chunk", lambda *arguments: made.append(arguments[-1]) or original(*arguments))
    config = MarketConfig(num_products=600, num_reviews=300_000, num_weeks=20, with_text=False)
    num_chunks = 3
    for position, chunk in enumerate(simulate(config)):
        assert len(chunk.number) <= market.PRODUCTS_PER_CHUNK
        assert len(made) == num_chunks + position + 1, "once for the total, then only when asked"
        sizes = [batch.height for batch in reviews(chunk, config)]
        assert len(sizes) >= chunk.counts.sum() / market.REVIEWS_PER_BATCH > 1
        assert max(sizes) <= market.REVIEWS_PER_BATCH
        assert sum(sizes) == chunk.counts.sum()


def test_a_chunk_does_not_depend_on_those_before_it(small):
    """Chunks could not be made in any order, and a change in one would shift the draws of all that follow."""
    *_, last = simulate(SMALL)
    text = pl.concat(reviews(last, SMALL)).drop("product").write_ndjson()
    assert text
    assert small[0].read_text(encoding="utf-8").endswith(text)


def test_words_can_be_left_out(tmp_path):
    """A benchmark that uses only counts would spend time on texts."""
    paths = write_market(tmp_path, MarketConfig(num_products=50, num_reviews=500, with_text=False))
    assert {(record["title"], record["text"]) for record in records(paths[0])} == {("", "")}


def test_buzz_precedes_growth_that_counts_do_not_show():
    """Text would contain no signal that counts do not have, or a single word would be sufficient."""
    config = MarketConfig(num_products=1500, num_reviews=100_000)
    chunks = list(simulate(config))
    counts, starts, buzz_share = (matrix(chunks, name) for name in ("counts", "buzz_starts", "buzz_share"))
    buzz_counts, decoy_counts = np.zeros_like(counts), np.zeros_like(counts)
    for chunk in chunks:
        for batch in reviews(chunk, config):
            week = weeks_of(batch, config)
            product = chunk.number[batch["product"].to_numpy()]
            for seen, phrases in ((buzz_counts, market_words.BUZZ), (decoy_counts, market_words.DECOY)):
                has = batch["text"].str.contains_any(list(phrases)).to_numpy()
                np.add.at(seen, (week[has], product[has]), 1)
    lead_weeks = range(market.BUZZ_LEAD_WEEKS)
    before = sum_at_offsets(counts, starts, range(-4, 0)) / 4
    assert 0.6 < sum_at_offsets(buzz_counts, starts, lead_weeks) / sum_at_offsets(counts, starts, lead_weeks) < 0.8
    assert 0.85 < sum_at_offsets(counts, starts, lead_weeks) / 4 / before < 1.15, (
        "counts do not move while reviews mention the buzz"
    )
    assert sum_at_offsets(counts, starts, range(4, 16)) / 12 / before > 3, "then they increase"
    quiet = buzz_share == 0
    assert buzz_counts[quiet].sum() == 0
    assert decoy_counts[quiet].sum() / counts[quiet].sum() > 0.05
    first_mention = (buzz_share > 0) & (np.roll(buzz_share, 1, axis=0) == 0)
    assert 0.15 < 1 - (first_mention & starts).sum() / first_mention.sum() < 0.35, "some buzz has no effect"

    def words(phrases: tuple[str, ...]) -> set[str]:
        return {word.strip(".,").lower() for phrase in phrases for word in phrase.split()}

    assert words(market_words.BUZZ) <= words(market_words.DECOY), "no single word is sufficient"


def test_own_peak_repeats_a_year_later(demo):
    """Last year's series would carry no information about this year's."""
    counts, peak, is_launched = matrix(demo, "counts"), matrix(demo, "peak"), matrix(demo, "launch_week") < -20
    year = market.year_fraction(MarketConfig())[:, None]
    distance = np.abs((year - peak + 0.5) % 1 - 0.5) * market.WEEKS_PER_YEAR
    for first_week in (0, 52, 104):
        rows = slice(first_week, first_week + 52)
        near = counts[rows][(distance[rows] < 2) & is_launched].mean()
        far = counts[rows][(distance[rows] > 12) & is_launched].mean()
        assert near > 3 * far
    assert 0.5 < np.isfinite(peak).mean() < 0.7
    assert np.histogram(peak[np.isfinite(peak)], bins=4, range=(0, 1))[0].min() > 300, "every product has its own day"


def test_reviews_are_self_exciting(demo):
    """Counts would be Poisson given the rate, without correlation between weeks."""
    counts, rate = matrix(demo, "counts"), matrix(demo, "rate")
    expected = market.weekly_reviews(rate, draw=np.asarray)
    busy = expected[:-1] > 0.5
    surprise = (counts - expected) / np.sqrt(np.maximum(expected, 1e-9))
    correlation = (surprise[:-1] * surprise[1:])[busy].mean()
    expected_correlation = market.SELF_EXCITATION * (1 - market.EXCITATION_DECAY)
    assert 0.8 * expected_correlation < correlation < 2 * expected_correlation
    assert abs(counts.sum() / rate.sum() - 1) < 0.02, "stable: excitation moves reviews in time and adds none"


def test_samples_announce_promotions():
    """The share of verified purchases and the pictures would contain no signal."""
    config = MarketConfig(num_products=1500, num_reviews=100_000, with_text=False)
    chunks = list(simulate(config))
    counts, samples = matrix(chunks, "counts"), matrix(chunks, "samples")
    begins = samples & ~np.roll(samples, 1, axis=0)
    assert sum_at_offsets(counts, begins, range(4, 10)) > 2 * sum_at_offsets(counts, begins, range(-6, 0))
    shares = (
        pl.concat(
            batch.with_columns(sampled=chunk.samples[weeks_of(batch, config), batch["product"].to_numpy()])
            for chunk in chunks
            for batch in reviews(chunk, config)
        )
        .group_by("sampled")
        .agg(verified=pl.mean("verified_purchase"), pictured=(pl.col("images").list.len() > 0).mean())
        .sort("sampled")
    )
    assert shares["verified"][0] > shares["verified"][1] + 0.3
    assert shares["pictured"][1] > shares["pictured"][0] + 0.15


def test_quality_moves_sales_six_weeks_later(demo):
    """Ratings would not lead sales."""
    rate, quality = matrix(demo, "rate"), matrix(demo, "quality")
    week, product = np.nonzero(np.diff(quality, axis=0, prepend=quality[:1]) > 1)
    inside = (rate[week - 1, product] > 0) & (week + market.QUALITY_LAG_WEEKS < len(rate)) & (week > 0)
    week, product = week[inside], product[inside]

    def mean_log_step(delay: int) -> float:
        return float(np.log(rate[week + delay, product] / rate[week + delay - 1, product]).mean())

    assert len(week) > 300
    assert all(abs(mean_log_step(delay)) < 0.1 for delay in range(market.QUALITY_LAG_WEEKS))
    assert mean_log_step(market.QUALITY_LAG_WEEKS) > 0.4


def test_ratings_follow_quality():
    """Ratings would carry no information about quality."""
    config = MarketConfig(num_products=100, num_reviews=20_000, with_text=False)
    (chunk,) = simulate(config)
    batch = pl.concat(reviews(chunk, config))
    week = weeks_of(batch, config)
    quality = chunk.quality[week, batch["product"].to_numpy()]
    rating = batch["rating"].to_numpy()
    assert rating[quality > 0.5].mean() > rating[quality < -0.5].mean() + 0.5
    assert np.mean(rating[np.abs(quality) < 0.2] == 1) == pytest.approx(0.11, abs=0.03)


def test_categories_have_seasons_and_holidays(demo):
    """Category, week and price would not interact."""
    counts, category, price = (matrix(demo, name) for name in ("counts", "category", "price"))
    names = [one.name for one in market_words.CATEGORIES]
    year = market.year_fraction(MarketConfig())

    def lift(chosen: np.ndarray, low: float, high: float) -> float:
        inside = (year > low) & (year < high)
        return float(counts[inside][:, chosen].mean() / counts[~inside][:, chosen].mean())

    garden, toys = (category == names.index(name) for name in ("Patio, Lawn & Garden", "Toys & Games"))
    assert lift(garden, 0.2, 0.5) > 1.5 * lift(toys, 0.2, 0.5)
    assert lift(toys, 0.89, 0.97) > 1.5 * lift(garden, 0.89, 0.97)
    cheap = price < np.median(price[toys])
    assert lift(toys & cheap, 0.89, 0.97) > 1.3 * lift(toys & ~cheap, 0.89, 0.97)


def test_products_have_a_launch_and_a_power_law(demo):
    """Age would mean nothing, and all products would be alike."""
    counts, launch, rate = (matrix(demo, name) for name in ("counts", "launch_week", "rate"))
    week = np.arange(len(counts))[:, None]
    assert counts[week < launch].sum() == 0
    assert rate[week < launch].sum() == 0
    assert 0.3 < (launch > 0).mean() < 0.5
    totals = np.sort(counts.sum(axis=0))[::-1]
    assert totals[:300].sum() > 0.35 * totals.sum(), "a tenth of the products has more than a third of the reviews"
    assert np.corrcoef(np.log(np.arange(50, 1500)), np.log(totals[50:1500]))[0, 1] < -0.95


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_products": 0}, "num_products=0"),
        ({"num_reviews": -5}, "num_reviews=-5"),
        ({"num_weeks": 0}, "num_weeks=0"),
        ({"seed": -1}, "seed=-1"),
        ({"first_day": "2020-10-06"}, "such as 2020-10-05"),
        ({"first_day": "20201005"}, "YYYY-MM-DD"),
        ({"first_day": "2020-10-5"}, "YYYY-MM-DD"),
        ({"first_day": "yesterday"}, "yesterday"),
        ({"first_day": "1990-01-01"}, "1995"),
        ({"num_weeks": 10_000}, "2100"),
        ({"num_weeks": 10**12}, "num_weeks=1000000000000"),
    ],
)
def test_wrong_settings_are_refused(settings, named):
    """A wrong setting would end in a traceback, or in an empty market."""
    with pytest.raises(UserError, match=re.escape(named)):
        MarketConfig(**settings)


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    """An incomplete market would look complete, or the old files would be lost."""
    config = MarketConfig(num_products=20, num_reviews=100)
    old = [path.read_bytes() for path in write_market(tmp_path, config)]

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(market, "metadata", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        write_market(tmp_path, MarketConfig(num_products=20, num_reviews=100, seed=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".generated.json", "meta.jsonl", "reviews.jsonl"]
    assert [(tmp_path / name).read_bytes() for name in ("reviews.jsonl", "meta.jsonl")] == old


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    """A user would see a traceback for a path that is a file."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="taken"):
        write_market(tmp_path / "taken", MarketConfig(num_products=5, num_reviews=10))
