"""A seeded simulator of reviews, in the raw schema of Amazon Reviews 2023.

    reviews, metadata = write_market("data/market", MarketConfig())

writes `reviews.jsonl` (about 200,000 reviews of 3,000 products in three years) and `meta.jsonl` in about two seconds on one
core. Products are simulated in chunks and reviews are written in batches, so memory use does not depend on the numbers of
products and reviews. The same seed gives the same bytes. The texts are made in `market_words.py`.

Process: weeks w = 0, 1, … begin on Mondays, and product p of category c gets n_p(w) reviews in week w:

    n_p(w) ~ Poisson(λ_p(w))
    λ_p(w) = (1 - α) μ_p(w) + α Σ_{k≥1} (1 - ρ) ρ^(k-1) n_p(w - k)          self-excitation, stable since α < 1
    log μ_p(w) = log b_p                                                     popularity, a power law of the product's rank
               + C_c(w)                                                      the category's trend, a random walk
               + S_c (1 - z_p / 2) cos(2π (year(w) - peak_c))                the category's season; z is the price, -1 to 1
               + H_c (1 - z_p) holiday(w)                                    late November to Christmas; more if cheap
               + log(1 - exp(-(age + 1) / (r_c (1 + z_p / 2)))) - age / d_p  rise after the launch, then decline
               + κ Q_p(w - 6)                                                quality, which changes ratings six weeks earlier
               + Y_p exp(-(weeks to p's own day of the year)² / 2 v_p²)      a yearly peak of this product
               + Σ over episodes: height × curve(weeks since the start)      buzz, promotions, waves, fads
    Q_p(w) = 0.985 Q_p(w - 1) + 0.03 ε + jump                                autoregressive, with rare jumps; ε ~ N(0, 1)
    P(rating ≤ r) = logistic(threshold_r - Q_p(w))
    helpful votes ~ Poisson(0.3 Γ · (1 + [pictures]) · later / (later + 20)) Γ has mean 1; later: p's reviews in later weeks;
                                                                             [pictures]: 1 for a review with pictures, else 0

and μ_p(w) = 0 before the launch of p. year(w) is the time of the year from 0 to 1. One factor on all b_p sets the expected
total to `num_reviews`.

The signals in the data, by the part of a model that can use them (growth compares the next 12 weeks with the last 4):

    text     Buzz: for four weeks most reviews contain a sentence of `BUZZ` (rumours of a new version, sold out), and counts
             do not change. In the twelve weeks after, μ is 4.5 to 6 times as high. A quarter of all buzz has no effect.
             Sentences of `DECOY` use the same words with the opposite meaning at any time, so that no word is sufficient.
    series   The yearly peak of the product, which was in the same weeks of last year. Waves, which grow for ten weeks, and
             fads, which jump and fade: in some week the sums of both are equal, but the shapes of their series differ.
    table    Season, holiday and launch, each interacting with category, price or age. Promotions: in the four weeks before
             one there are free samples, whose reviews often have images and no verified purchase. Ratings: they change six
             weeks before sales do.

Average rating and number of ratings in the metadata, and helpful votes in the reviews, have the values of the crawl, after
the last week: they contain information about the future, as in the real files.
"""

import datetime
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tqdm import tqdm

from ensemble.errors import UserError
from ensemble.folders import replacing, write_json
from ensemble.recipes.hot_sellers.market_words import (
    CATEGORIES,
    product_ids,
    product_record,
    review_images,
    review_words,
    user_ids,
)
from ensemble.recipes.hot_sellers.settings import MarketConfig
from ensemble.recipes.hot_sellers.weekly import WEEK_MS

PRODUCTS_PER_CHUNK = 256
REVIEWS_PER_BATCH = 25_000
WEEKS_PER_YEAR = 365.25 / 7

POPULARITY_EXPONENT = 1.2
POPULARITY_HEAD = 0.01  # the share of products that are about as popular as the most popular one
LIFE_WEEKS = 250.0  # the median of d: the rate of a product falls to 1/e in d weeks
SELF_EXCITATION = 0.3  # α: the share of reviews that follow from earlier reviews
EXCITATION_DECAY = 0.6  # ρ, per week
QUALITY_LAG_WEEKS = 6
QUALITY_EFFECT = 0.4  # κ

# Episodes begin at random; ..._PER_YEAR is their mean number per product and year. The height of an episode is the log of a
# factor on the rate, uniform between the logs of the two values of ..._FACTOR. ..._CURVE is the fraction of the height in
# each week from the start on.
BUZZ_PER_YEAR = 0.5
BUZZ_FACTOR = (4.5, 6.0)
BUZZ_FAILURE_SHARE = 0.25
BUZZ_LEAD_WEEKS = 4
BUZZ_CURVE = np.array([0.0] * BUZZ_LEAD_WEEKS + [1.0] * 12)
BUZZ_MENTION_CURVE = np.array([0.7] * BUZZ_LEAD_WEEKS + [0.3, 0.2, 0.1])  # the share of reviews with a sentence of BUZZ
PROMOTIONS_PER_YEAR = 0.2
PROMOTION_FACTOR = (3.0, 5.0)
SAMPLE_WEEKS = 4
SAMPLE_CURVE = np.array([1.0] * SAMPLE_WEEKS)
PROMOTION_CURVE = np.array([0.0] * SAMPLE_WEEKS + [1.0] * 6 + [0.7, 0.4, 0.2])
WAVES_PER_YEAR = 0.15
WAVE_FACTOR = (3.0, 6.0)
WAVE_CURVE = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.5, 0.2])
FADS_PER_YEAR = 0.15
FAD_FACTOR = (2.0, 4.0)
FAD_CURVE = np.array([1.0, 0.7, 0.4, 0.2])
PEAK_SHARE = 0.6  # the share of products that have a yearly peak
PEAK_FACTOR = (5.0, 8.0)
PEAK_WIDTH_WEEKS = (2.0, 4.0)  # v, the standard deviation

# At Q = 0: 11 % one star, 5 % two, 8 % three, 14 % four, 62 % five.
RATING_THRESHOLDS = np.array([-2.09, -1.66, -1.15, -0.49])

MARKET_FILES = ("reviews.jsonl", "meta.jsonl")
GENERATED = ".generated.json"
"""A file with the sizes of generated raw files. Only raw files of these sizes are replaced."""


@dataclass(frozen=True, kw_only=True)
class Products:
    """A chunk of products with their latent variables; matrices have shape (num_weeks, num_products)."""

    chunk: int
    number: np.ndarray
    """(num_products,) int64, unique in the whole market."""
    category: np.ndarray
    """(num_products,) position in `CATEGORIES`."""
    noun: np.ndarray
    """(num_products,) position in the category's nouns."""
    price: np.ndarray
    """(num_products,) in dollars."""
    launch_week: np.ndarray
    """(num_products,) int64, negative for a launch before the first week."""
    peak: np.ndarray
    """(num_products,) the time of the product's yearly peak, as a fraction of the year; NaN without a peak."""
    decoy_share: np.ndarray
    """(num_products,) the share of the product's reviews that contain a sentence of `DECOY`."""
    quality: np.ndarray
    """Q, in logits of the rating."""
    buzz_starts: np.ndarray
    """bool, True in the first week of buzz that increases the rate `BUZZ_LEAD_WEEKS` weeks later."""
    buzz_share: np.ndarray
    """The share of reviews that contain a sentence of `BUZZ`."""
    samples: np.ndarray
    """bool, True in weeks with free samples before a promotion."""
    rate: np.ndarray
    """μ, reviews per week before self-excitation."""
    counts: np.ndarray
    """n, reviews per week, int64."""


def write_market(folder: str | Path, config: MarketConfig, progress: bool = False) -> tuple[Path, Path]:
    """Simulate a market and write `reviews.jsonl` and `meta.jsonl` into `folder`, replacing files of those names.

    Both files are written under temporary names and renamed when both are complete and their sizes are in `GENERATED`; after
    a failure while writing, neither is changed. Reviews are ordered by chunk of products, then by week. About one product in
    fifty has no metadata, as in the real files. Raises `UserError` if the folder cannot be written.
    """
    folder = Path(folder)
    reviews_path, metadata_path = (folder / name for name in MARKET_FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(reviews_path) as reviews_scratch, replacing(metadata_path) as metadata_scratch:
            with (
                open(reviews_scratch, "wb") as reviews_file,
                open(metadata_scratch, "w", encoding="utf-8") as metadata_file,
                tqdm(total=config.num_reviews, desc="market", unit=" reviews", unit_scale=True, disable=not progress) as bar,
            ):
                for products in simulate(config):
                    rating_sums = np.zeros(len(products.number))
                    for batch in reviews(products, config):
                        batch.drop("product").write_ndjson(reviews_file)
                        rating_sums += np.bincount(batch["product"], batch["rating"], len(rating_sums))
                        bar.update(batch.height)
                    for record in metadata(products, rating_sums, config):
                        metadata_file.write(json.dumps(record, ensure_ascii=False) + "\n")
            sizes = [scratch.stat().st_size for scratch in (reviews_scratch, metadata_scratch)]
            write_json(folder / GENERATED, dict(zip(MARKET_FILES, sizes, strict=True)))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"the market cannot be written to {folder} ({reason}): free disk space, or choose another folder"
        ) from None
    return reviews_path, metadata_path


def simulate(config: MarketConfig) -> Iterator[Products]:
    """Simulate the process in the module's docstring, in chunks of at most `PRODUCTS_PER_CHUNK` products.

    A chunk depends only on the config, its number, and one factor on all rates. To compute this factor, the expected counts
    of all chunks are summed before the first chunk is yielded. This takes less than a tenth of the time of writing.
    """
    # C, a random walk of each category, (num_weeks, num_categories)
    trends = 0.02 * _generator(config, "trends").normal(size=(config.num_weeks, len(CATEGORIES))).cumsum(axis=0)
    chunks = range(math.ceil(config.num_products / PRODUCTS_PER_CHUNK))
    expected = sum(weekly_reviews(products_of_chunk(config, trends, chunk).rate, draw=np.asarray).sum() for chunk in chunks)
    for chunk in chunks:
        products = products_of_chunk(config, trends, chunk)
        rate = products.rate * (config.num_reviews / expected)
        counts = weekly_reviews(rate, draw=_generator(config, "counts", chunk).poisson).astype(np.int64)
        yield replace(products, rate=rate, counts=counts)


def reviews(products: Products, config: MarketConfig) -> Iterator[pl.DataFrame]:
    """The reviews of a chunk, ordered by week, in batches of at most `REVIEWS_PER_BATCH` rows.

    The columns are those of the raw schema, in its order, and `product`, the position of the product in the chunk.
    """
    rng = _generator(config, "reviews", products.chunk)
    first_day_ms = int(np.datetime64(config.first_day, "ms").astype(np.int64))
    ends = np.cumsum(products.counts)  # reviews up to and including each cell of the matrix, in row-major order
    later = products.counts.sum(axis=0) - np.cumsum(products.counts, axis=0)  # reviews of the product in later weeks
    for start in range(0, int(ends[-1]), REVIEWS_PER_BATCH):
        cell = np.searchsorted(ends, np.arange(start, min(start + REVIEWS_PER_BATCH, ends[-1])), side="right")
        week, product = np.divmod(cell, len(products.number))
        size = len(cell)
        logits = products.quality[week, product] + rng.logistic(size=size)
        rating = 1 + (logits[:, None] > RATING_THRESHOLDS).sum(axis=1)
        is_sample = products.samples[week, product]  # whether the product was a free sample
        num_images = np.where(rng.random(size) < np.where(is_sample, 0.3, 0.06), rng.geometric(0.5, size), 0)
        exposure = later[week, product] / (later[week, product] + 20)  # later customers vote
        votes_mean = 0.3 * (1 + (num_images > 0)) * exposure * rng.gamma(0.3, 1 / 0.3, size)
        variant = (rng.random(size) * (1 + products.number[product] % 4)).astype(np.int64)
        user = (config.num_reviews / 3 * rng.random(size) ** 2).astype(np.int64)  # a power law of reviews per user
        if config.with_text:
            title, text = review_words(
                rng,
                products.category[product],
                products.noun[product],
                rating,
                products.buzz_share[week, product],
                products.decoy_share[product],
            )
        else:
            title = text = pl.repeat("", size, eager=True)
        yield pl.DataFrame(
            {
                "rating": rating.astype(np.float64),
                "title": title,
                "text": text,
                "images": review_images(rng, num_images),
                "asin": product_ids(config.seed, products.number[product], variant),
                "parent_asin": product_ids(config.seed, products.number[product]),
                "user_id": user_ids(config.seed, user),
                "timestamp": first_day_ms + week * WEEK_MS + (rng.random(size) * WEEK_MS).astype(np.int64),
                "helpful_vote": rng.poisson(votes_mean),
                "verified_purchase": rng.random(size) < np.where(is_sample, 0.5, 0.9),
                "product": product,
            }
        )


def metadata(products: Products, rating_sums: np.ndarray, config: MarketConfig) -> Iterator[dict[str, Any]]:
    """The metadata of a chunk, as JSON objects of the raw schema.

    rating_sums : (num_products,), the sum of the ratings of each product's reviews
    """
    rng = _generator(config, "metadata", products.chunk)
    num_reviews = products.counts.sum(axis=0)
    without_review = 1 + rng.poisson(1.5 * num_reviews)  # ratings without a review
    mean_without_review = 1 + (1 / (1 + np.exp(RATING_THRESHOLDS[:, None] - products.quality[-1]))).sum(axis=0)
    average = (rating_sums + without_review * mean_without_review) / (num_reviews + without_review)
    first_day = datetime.date.fromisoformat(config.first_day)
    for position, product_id in enumerate(product_ids(config.seed, products.number)):
        if rng.random() < 0.02:
            continue
        yield product_record(
            rng,
            product_id=product_id,
            category=CATEGORIES[products.category[position]],
            noun=int(products.noun[position]),
            price=round(float(products.price[position]), 2),
            launched=first_day + datetime.timedelta(weeks=int(products.launch_week[position])),
            average_rating=round(float(average[position]), 1),
            rating_number=int(num_reviews[position] + without_review[position]),
        )


def products_of_chunk(config: MarketConfig, trends: np.ndarray, chunk: int) -> Products:
    """A chunk of products with counts of 0; the rates are not yet scaled to the expected number of reviews."""
    rng = _generator(config, "products", chunk)
    start = chunk * PRODUCTS_PER_CHUNK
    number = np.arange(start, min(start + PRODUCTS_PER_CHUNK, config.num_products))
    size, shape = len(number), (config.num_weeks, len(number))
    week = np.arange(config.num_weeks)[:, None]
    time_of_year = year_fraction(config)[:, None]

    category = rng.integers(len(CATEGORIES), size=size)
    category_values = {
        name: np.array([getattr(CATEGORIES[index], name) for index in category])
        for name in ("season_peak", "season_height", "holiday_height", "launch_weeks", "median_price")
    }
    price_deviation = rng.normal(size=size)
    price_level = np.tanh(price_deviation)
    launch_week = np.where(
        rng.random(size) < 0.6, -rng.exponential(80, size), rng.uniform(0, 0.95 * config.num_weeks, size)
    ).astype(np.int64)

    season = (
        category_values["season_height"]
        * (1 - price_level / 2)
        * np.cos(2 * np.pi * (time_of_year - category_values["season_peak"]))
    )
    is_holiday = (time_of_year > 0.885) & (time_of_year < 0.98)  # from about 20 November to 24 December
    holiday = category_values["holiday_height"] * (1 - price_level) * is_holiday
    age = week - launch_week
    risen = -np.expm1(-(np.maximum(age, 0) + 1) / (category_values["launch_weeks"] * (1 + price_level / 2)))
    life = np.log(risen) - np.maximum(age, 0) / rng.lognormal(np.log(LIFE_WEEKS), 0.5, size)

    quality = _quality(rng, shape)
    lagged_quality = np.concatenate([np.repeat(quality[:1], QUALITY_LAG_WEEKS, axis=0), quality])[: config.num_weeks]

    peak = np.where(rng.random(size) < PEAK_SHARE, rng.random(size), np.nan)
    weeks_to_peak = ((time_of_year - peak + 0.5) % 1 - 0.5) * WEEKS_PER_YEAR
    width_weeks = rng.uniform(*PEAK_WIDTH_WEEKS, size)
    own_peak = _log_uniform(rng, PEAK_FACTOR, size) * np.exp(-((weeks_to_peak / width_weeks) ** 2) / 2)

    buzz, successful_buzz, promotion, episodes = _episodes(rng, shape)
    log_rate = (
        trends[:, category] + season + holiday + life + QUALITY_EFFECT * lagged_quality + np.nan_to_num(own_peak) + episodes
    )
    return Products(
        chunk=chunk,
        number=number,
        category=category,
        noun=(rng.random(size) * [len(CATEGORIES[index].nouns) for index in category]).astype(np.int64),
        price=np.ceil(category_values["median_price"] * np.exp(0.6 * price_deviation)) - 0.01,
        launch_week=launch_week,
        peak=peak,
        decoy_share=rng.beta(1, 9, size),
        quality=quality,
        buzz_starts=successful_buzz,
        buzz_share=np.minimum(_convolve(buzz.astype(float), BUZZ_MENTION_CURVE), 1),
        samples=_convolve(promotion.astype(float), SAMPLE_CURVE) > 0,
        rate=np.where(age >= 0, _popularity(config, number) * np.exp(log_rate), 0),
        counts=np.zeros(shape, np.int64),
    )


def _episodes(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First weeks of buzz, of buzz that increases the rate, and of promotions; and the log of the factor of all episodes on
    the rate; (num_weeks, num_products) each."""
    buzz = _starts(rng, BUZZ_PER_YEAR, shape)
    successful_buzz = buzz & (rng.random(shape) >= BUZZ_FAILURE_SHARE)
    promotion, wave, fad = (_starts(rng, rate, shape) for rate in (PROMOTIONS_PER_YEAR, WAVES_PER_YEAR, FADS_PER_YEAR))
    log_factor = np.zeros(shape)
    for starts, factor, curve in (
        (successful_buzz, BUZZ_FACTOR, BUZZ_CURVE),
        (promotion, PROMOTION_FACTOR, PROMOTION_CURVE),
        (wave, WAVE_FACTOR, WAVE_CURVE),
        (fad, FAD_FACTOR, FAD_CURVE),
    ):
        log_factor += _convolve(starts * _log_uniform(rng, factor, shape), curve)
    return buzz, successful_buzz, promotion, log_factor


def weekly_reviews(rate: np.ndarray, draw: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Reviews per week, (num_weeks, num_products), from rates μ; `draw` maps the rates λ of a week to counts."""
    counts = np.empty_like(rate)
    moving_average = rate[0]  # of the counts of earlier weeks; μ before the first week
    for week, base in enumerate(rate):
        counts[week] = draw((1 - SELF_EXCITATION) * base + SELF_EXCITATION * moving_average)
        moving_average = (1 - EXCITATION_DECAY) * counts[week] + EXCITATION_DECAY * moving_average
    return counts


def _quality(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Q, (num_weeks, num_products), an autoregressive process that returns to zero and jumps about every second year."""
    quality = 0.03 * rng.normal(size=shape) + (rng.random(shape) < 0.5 / WEEKS_PER_YEAR) * rng.normal(0, 1.2, shape)
    quality[0] = rng.normal(0, 0.6, shape[1])
    for week in range(1, shape[0]):
        quality[week] += 0.985 * quality[week - 1]
    return quality


def _popularity(config: MarketConfig, number: np.ndarray) -> np.ndarray:
    """b, a power law of the rank. Ranks are spread such that every chunk has popular and unpopular products."""
    num_products = config.num_products
    candidates = range(int(0.618 * num_products) + 1, num_products + 2)
    stride = next(candidate for candidate in candidates if math.gcd(candidate, num_products) == 1)
    rank = (number * stride + config.seed % num_products) % num_products
    return (rank + 1 + POPULARITY_HEAD * num_products) ** -POPULARITY_EXPONENT


def year_fraction(config: MarketConfig) -> np.ndarray:
    """The Thursday of each week as a fraction of its year, (num_weeks,)."""
    days = np.datetime64(config.first_day) + (7 * np.arange(config.num_weeks) + 3).astype("timedelta64[D]")
    return (days - days.astype("datetime64[Y]")).astype(np.int64) / 366


def _starts(rng: np.random.Generator, per_year: float, shape: tuple[int, int]) -> np.ndarray:
    """Whether an episode begins, for each week and product."""
    return rng.random(shape) < per_year / WEEKS_PER_YEAR


def _log_uniform(rng: np.random.Generator, factors: tuple[float, float], shape: int | tuple[int, int]) -> np.ndarray:
    """Draws from the uniform distribution between the logs of two factors."""
    return rng.uniform(np.log(factors[0]), np.log(factors[1]), shape)


def _convolve(starts: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Causal convolution along weeks, (num_weeks, num_products): the sum of the curves of all episodes, times their heights.

    starts : the height of the episode that begins in each week, 0 if none begins.
    """
    added = np.zeros_like(starts)
    for delay, height in enumerate(curve[: len(starts)]):
        added[delay:] += height * starts[: len(starts) - delay]
    return added


def _generator(config: MarketConfig, purpose: str, chunk: int = 0) -> np.random.Generator:
    """A random generator for one purpose and chunk, so that the draws of a chunk do not depend on other chunks."""
    purposes = ("trends", "products", "counts", "reviews", "metadata")
    return np.random.default_rng((config.seed, purposes.index(purpose), chunk))
