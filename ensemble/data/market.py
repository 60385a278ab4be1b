"""A market that never was: a seeded simulator of reviews, in the raw schema of Amazon Reviews 2023.

    reviews, metadata = write_market("data/market", MarketConfig())

writes `reviews.jsonl` (200,000 reviews in expectation, 3,000 products, three years) and `meta.jsonl` in about two seconds on
one core. Products are simulated in chunks and reviews rendered in batches, so that any size fits in the same memory, and one
seed always gives the same bytes.

The process. Weeks w = 0, 1, … begin on Mondays; product p of category c gets n_p(w) reviews in week w:

    n_p(w) ~ Poisson(λ_p(w))
    λ_p(w) = (1 - α) μ_p(w) + α Σ_{k≥1} (1 - ρ) ρ^(k-1) n_p(w - k)          self-excitation; α < 1, so it is stable
    log μ_p(w) = log b_p                                                     popularity, a power law of the product's rank
               + C_c(w)                                                      the category's trend, a random walk
               + S_c (1 - z_p / 2) cos(2π (year(w) - peak_c))                the category's season; z in (-1, 1) is the price
               + H_c (1 - z_p) holiday(w)                                    late November to Christmas; cheap gifts gain
               + log(1 - exp(-(age + 1) / (r_c (1 + z_p / 2)))) - age / d_p  the life of a product
               + κ Q_p(w - 6)                                                quality, which moved the ratings six weeks ago
               + Y_p exp(-(weeks to p's own day of the year)² / 2 v_p²)      a yearly peak of the product's own
               + Σ over episodes: height × curve(weeks since the start)      buzz, promotions, waves, fads
    Q_p(w) = 0.985 Q_p(w - 1) + 0.03 ε + jump                                a random walk with rare jumps
    P(rating ≤ r) = logistic(threshold_r - Q_p(w))
    helpful votes ~ Poisson(0.3 Γ · (1 + [pictures]) · later / (later + 20)) Γ has mean 1; later: p's reviews in later weeks

and μ_p(w) = 0 before the launch of p. One factor on all b_p brings the expected total to `num_reviews`.

What was planted, and for whom (growth compares the reviews of the next 12 weeks with those of the last 4):

    text     Buzz. For four weeks most reviews carry a sentence of `BUZZ` (a successor rumoured, shelves empty), while counts
             do not move; for the twelve weeks after, μ is 4.5 to 6 times as high. A quarter of all buzz comes to nothing.
             Sentences of `DECOY` use the same words to the opposite effect at any time, so that no word alone tells.
    series   The yearly peak of the product's own, to be seen in the same weeks of last year. Waves that accelerate for ten
             weeks and fads that jump and fade: alike in their sums at some week, but not in their shapes.
    table    Season, holiday and launch, each in interplay with category, price and age. Promotions, four weeks after free
             samples bring reviews with pictures and without a verified purchase. Ratings, six weeks ahead of sales.

Average rating and number of ratings in the metadata, and helpful votes in the reviews, are as of the crawl, after the last
week: they know the future, as they do in the real files.
"""

import datetime
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble.data.config import MarketConfig
from ensemble.data.manifest import sync
from ensemble.errors import UserError

PRODUCTS_PER_CHUNK = 256
REVIEWS_PER_BATCH = 25_000
WEEKS_PER_YEAR = 365.25 / 7
WEEK_MS = 7 * 24 * 3600 * 1000

POPULARITY_EXPONENT = 1.2
POPULARITY_HEAD = 0.01  # the share of products that are about as popular as the first
LIFE_WEEKS = 250.0  # the median of d: a product's rate falls by a factor e in as many weeks
SELF_EXCITATION = 0.3  # α: the share of reviews that earlier reviews bring
MEMORY = 0.6  # ρ, per week
QUALITY_LAG_WEEKS = 6
QUALITY_EFFECT = 0.4  # κ

# Episodes begin at random, so many a year per product; the height is the log of a factor on the rate, uniform between the
# logs of two bounds, and the curve says how much of it is there in each week from the beginning on.
BUZZ_PER_YEAR = 0.5
BUZZ_FACTOR = (4.5, 6.0)
BUZZ_DUD_SHARE = 0.25
BUZZ_SILENT_WEEKS = 4
BUZZ_CURVE = np.array([0.0] * BUZZ_SILENT_WEEKS + [1.0] * 12)
TALK_CURVE = np.array([0.7] * BUZZ_SILENT_WEEKS + [0.3, 0.2, 0.1])  # the share of reviews with a sentence of BUZZ
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
PEAK_SHARE = 0.6  # of products that have a yearly peak of their own
PEAK_FACTOR = (5.0, 8.0)
PEAK_WIDTH_WEEKS = (2.0, 4.0)  # v, the standard deviation

# At Q = 0: 11 % one star, 5 % two, 8 % three, 14 % four, 62 % five.
RATING_THRESHOLDS = np.array([-2.09, -1.66, -1.15, -0.49])

ALPHABET_32 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", np.uint8)
ALPHABET_36 = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)


@dataclass(frozen=True, kw_only=True)
class Products:
    """A chunk of products, with all that nobody sees in the files; matrices have shape (num_weeks, num_products)."""

    chunk: int
    number: np.ndarray
    """(num_products,) int64, counted over the whole market."""
    category: np.ndarray
    """(num_products,) position in `CATEGORIES`."""
    noun: np.ndarray
    """(num_products,) position in the category's nouns."""
    price: np.ndarray
    """(num_products,) in dollars."""
    launch_week: np.ndarray
    """(num_products,) int64, negative when launched before the first week."""
    peak: np.ndarray
    """(num_products,) the day of the yearly peak of its own, as a fraction of the year; NaN where there is none."""
    chattiness: np.ndarray
    """(num_products,) the share of its reviews that carry a sentence of `DECOY`."""
    quality: np.ndarray
    """Q, in logits of the rating."""
    buzz_starts: np.ndarray
    """bool, the first of the silent weeks of a buzz that comes to something."""
    talk: np.ndarray
    """The share of reviews that carry a sentence of `BUZZ`."""
    samples: np.ndarray
    """bool, the weeks of free samples before a promotion."""
    rate: np.ndarray
    """μ, reviews per week before self-excitation."""
    counts: np.ndarray
    """n, reviews per week, int64."""


def write_market(folder: str | Path, config: MarketConfig, progress: bool = False) -> tuple[Path, Path]:
    """Simulate a market and write `reviews.jsonl` and `meta.jsonl` into `folder`, replacing files of those names.

    Both files are written beside their names and renamed when both are whole; nothing half-written stays behind. Reviews are
    ordered by chunk of products, then by week. About one product in fifty has no metadata, as in the real files.
    Raises `UserError` when the folder cannot be written.
    """
    from tqdm import tqdm

    folder = Path(folder)
    reviews_path, metadata_path = folder / "reviews.jsonl", folder / "meta.jsonl"
    scratches = {path: path.with_name(f".{path.name}.writing-{os.getpid()}") for path in (reviews_path, metadata_path)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with (
                open(scratches[reviews_path], "wb") as reviews_file,
                open(scratches[metadata_path], "w", encoding="utf-8") as metadata_file,
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
            for scratch in scratches.values():
                sync(scratch)
            for path, scratch in scratches.items():
                scratch.rename(path)
        finally:
            for scratch in scratches.values():
                scratch.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"the market cannot be written to {folder} ({reason}): make room, or choose another folder"
        ) from None
    return reviews_path, metadata_path


def simulate(config: MarketConfig) -> Iterator[Products]:
    """The process that the module's docstring states, chunk after chunk of at most `PRODUCTS_PER_CHUNK` products.

    A chunk depends on the config and its own number alone, but for one factor on all rates; to find it, the expected counts
    of all chunks are added up before the first chunk is yielded, which takes less than a tenth of the time of writing.
    """
    trends = _category_trends(config)
    chunks = range(math.ceil(config.num_products / PRODUCTS_PER_CHUNK))
    expected = sum(_excite(_products(config, trends, chunk).rate, draw=np.asarray).sum() for chunk in chunks)
    for chunk in chunks:
        products = _products(config, trends, chunk)
        rate = products.rate * (config.num_reviews / expected)
        counts = _excite(rate, draw=_generator(config, "counts", chunk).poisson).astype(np.int64)
        yield replace(products, rate=rate, counts=counts)


def reviews(products: Products, config: MarketConfig) -> Iterator[pl.DataFrame]:
    """The reviews of a chunk, in batches of at most `REVIEWS_PER_BATCH` rows, week after week.

    Columns: those of the raw schema, in its order, and `product`, the position in the chunk.
    """
    rng = _generator(config, "reviews", products.chunk)
    first_day_ms = int(np.datetime64(config.first_day, "ms").astype(np.int64))
    ends = np.cumsum(products.counts)  # of the cells of the matrix, row after row
    later = products.counts.sum(axis=0) - np.cumsum(products.counts, axis=0)  # reviews of the product in later weeks
    for start in range(0, int(ends[-1]), REVIEWS_PER_BATCH):
        cell = np.searchsorted(ends, np.arange(start, min(start + REVIEWS_PER_BATCH, ends[-1])), side="right")
        week, product = np.divmod(cell, len(products.number))
        size = len(cell)
        logits = products.quality[week, product] + rng.logistic(size=size)
        rating = 1 + (logits[:, None] > RATING_THRESHOLDS).sum(axis=1)
        sampled = products.samples[week, product]
        num_images = np.where(rng.random(size) < np.where(sampled, 0.3, 0.06), rng.geometric(0.5, size), 0)
        exposure = later[week, product] / (later[week, product] + 20)  # votes come from those who look at the product later
        votes_mean = 0.3 * (1 + (num_images > 0)) * exposure * rng.gamma(0.3, 1 / 0.3, size)
        variant = (rng.random(size) * (1 + products.number[product] % 4)).astype(np.int64)
        user = (config.num_reviews / 3 * rng.random(size) ** 2).astype(np.int64)  # a power law: few write often
        if config.with_text:
            title, text = _words(rng, products, week, product, rating)
        else:
            title = text = pl.repeat("", size, eager=True)
        yield pl.DataFrame(
            {
                "rating": rating.astype(np.float64),
                "title": title,
                "text": text,
                "images": _review_images(rng, num_images),
                "asin": _product_ids(config, products.number[product], variant),
                "parent_asin": _product_ids(config, products.number[product]),
                "user_id": _user_ids(config, user),
                "timestamp": first_day_ms + week * WEEK_MS + (rng.random(size) * WEEK_MS).astype(np.int64),
                "helpful_vote": rng.poisson(votes_mean),
                "verified_purchase": rng.random(size) < np.where(sampled, 0.5, 0.9),
                "product": product,
            }
        )


def metadata(products: Products, rating_sums: np.ndarray, config: MarketConfig) -> Iterator[dict[str, Any]]:
    """The metadata of a chunk, JSON objects of the raw schema; `rating_sums` (num_products,) adds up the reviews' stars."""
    rng = _generator(config, "metadata", products.chunk)
    num_reviews = products.counts.sum(axis=0)
    silent = 1 + rng.poisson(1.5 * num_reviews)  # people who gave stars and wrote nothing
    silent_mean = 1 + (1 / (1 + np.exp(RATING_THRESHOLDS[:, None] - products.quality[-1]))).sum(axis=0)
    average = (rating_sums + silent * silent_mean) / (num_reviews + silent)
    first_day = datetime.date.fromisoformat(config.first_day)
    identities = _product_ids(config, products.number)

    def chance(share: float) -> bool:
        return rng.random() < share

    for position, identity in enumerate(identities):
        if chance(0.02):
            continue
        category = CATEGORIES[products.category[position]]
        noun = list(category.nouns)[products.noun[position]]
        brand, line, size = (words[rng.integers(len(words))] for words in (BRANDS, LINES, category.nouns[noun]))
        bullets = [BULLETS[choice] for choice in rng.permutation(len(BULLETS))[: rng.integers(6)]]
        pictures = "https://images.invalid/" + _letters(rng.integers(2**63, size=rng.integers(1, 6), dtype=np.uint64), 11)
        launched = first_day + datetime.timedelta(weeks=int(products.launch_week[position]))
        video = {"title": f"{brand} {noun}", "url": "https://videos.invalid/" + identity, "user_id": ""}
        yield {
            "main_category": category.name,
            "title": f"{brand} {line} {noun} {size}",
            "average_rating": round(float(average[position]), 1),
            "rating_number": int(num_reviews[position] + silent[position]),
            "features": bullets,
            "description": [f"The {line} {noun} by {brand}. {'. '.join(bullets)}."] if bullets else [],
            "price": None if chance(0.25) else round(float(products.price[position]), 2),
            "images": [
                {
                    "thumb": picture + "_SS40_.jpg",
                    "large": picture + "_SL500_.jpg",
                    "variant": f"PT{order:02d}" if order else "MAIN",
                    "hi_res": None if chance(0.2) else picture + "_SL1500_.jpg",
                }
                for order, picture in enumerate(pictures)
            ],
            "videos": [video] if chance(0.15) else [],
            "store": None if chance(0.1) else brand,
            "categories": [] if chance(0.1) else [*category.path, noun],
            "details": {
                "Brand": brand,
                "Size": size,
                "Date First Available": f"{launched:%B} {launched.day}, {launched.year}",
            },
            "parent_asin": identity,
            "bought_together": None,
        }


def _products(config: MarketConfig, trends: np.ndarray, chunk: int) -> Products:
    """A chunk of products before anything is counted, with popularity in place of a calibrated rate."""
    rng = _generator(config, "products", chunk)
    start = chunk * PRODUCTS_PER_CHUNK
    number = np.arange(start, min(start + PRODUCTS_PER_CHUNK, config.num_products))
    size, shape = len(number), (config.num_weeks, len(number))
    week = np.arange(config.num_weeks)[:, None]
    year = _year_fraction(config)[:, None]

    category = rng.integers(len(CATEGORIES), size=size)
    habits = {
        name: np.array([getattr(CATEGORIES[one], name) for one in category])
        for name in ("season_peak", "season_height", "holiday_height", "launch_weeks", "median_price")
    }
    price_spread = rng.normal(size=size)
    price_rank = np.tanh(price_spread)
    launch_week = np.where(
        rng.random(size) < 0.6, -rng.exponential(80, size), rng.uniform(0, 0.95 * config.num_weeks, size)
    ).astype(np.int64)

    season = habits["season_height"] * (1 - price_rank / 2) * np.cos(2 * np.pi * (year - habits["season_peak"]))
    holiday = habits["holiday_height"] * (1 - price_rank) * _holiday(year)
    age = week - launch_week
    known = -np.expm1(-(np.maximum(age, 0) + 1) / (habits["launch_weeks"] * (1 + price_rank / 2)))
    life = np.log(known) - np.maximum(age, 0) / rng.lognormal(np.log(LIFE_WEEKS), 0.5, size)

    quality = _quality(rng, shape)
    lagged = np.concatenate([np.repeat(quality[:1], QUALITY_LAG_WEEKS, axis=0), quality])[: config.num_weeks]

    peak = np.where(rng.random(size) < PEAK_SHARE, rng.random(size), np.nan)
    weeks_to_peak = ((year - peak + 0.5) % 1 - 0.5) * WEEKS_PER_YEAR
    width_weeks = rng.uniform(*PEAK_WIDTH_WEEKS, size)
    own_peak = _log_uniform(rng, PEAK_FACTOR, size) * np.exp(-((weeks_to_peak / width_weeks) ** 2) / 2)

    buzz = _starts(rng, BUZZ_PER_YEAR, shape)
    comes_true = buzz & (rng.random(shape) >= BUZZ_DUD_SHARE)
    promotion = _starts(rng, PROMOTIONS_PER_YEAR, shape)
    wave = _starts(rng, WAVES_PER_YEAR, shape)
    fad = _starts(rng, FADS_PER_YEAR, shape)
    episodes = (
        _follow(comes_true * _log_uniform(rng, BUZZ_FACTOR, shape), BUZZ_CURVE)
        + _follow(promotion * _log_uniform(rng, PROMOTION_FACTOR, shape), PROMOTION_CURVE)
        + _follow(wave * _log_uniform(rng, WAVE_FACTOR, shape), WAVE_CURVE)
        + _follow(fad * _log_uniform(rng, FAD_FACTOR, shape), FAD_CURVE)
    )
    log_rate = trends[:, category] + season + holiday + life + QUALITY_EFFECT * lagged + np.nan_to_num(own_peak) + episodes
    return Products(
        chunk=chunk,
        number=number,
        category=category,
        noun=(rng.random(size) * [len(CATEGORIES[one].nouns) for one in category]).astype(np.int64),
        price=np.ceil(habits["median_price"] * np.exp(0.6 * price_spread)) - 0.01,
        launch_week=launch_week,
        peak=peak,
        chattiness=rng.beta(1, 9, size),
        quality=quality,
        buzz_starts=comes_true,
        talk=np.minimum(_follow(buzz.astype(float), TALK_CURVE), 1),
        samples=_follow(promotion.astype(float), SAMPLE_CURVE) > 0,
        rate=np.where(age >= 0, _popularity(config, number) * np.exp(log_rate), 0),
        counts=np.zeros(shape, np.int64),
    )


def _excite(rate: np.ndarray, draw: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Reviews per week, (num_weeks, num_products), where `draw` turns a week's λ into its counts."""
    counts = np.empty_like(rate)
    echo = rate[0]  # as if the weeks before the first had been like it
    for week, base in enumerate(rate):
        counts[week] = draw((1 - SELF_EXCITATION) * base + SELF_EXCITATION * echo)
        echo = (1 - MEMORY) * counts[week] + MEMORY * echo
    return counts


def _quality(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Q, (num_weeks, num_products): it reverts to the mean, and jumps about every second year (a flaw, a flaw mended)."""
    quality = 0.03 * rng.normal(size=shape) + (rng.random(shape) < 0.5 / WEEKS_PER_YEAR) * rng.normal(0, 1.2, shape)
    quality[0] = rng.normal(0, 0.6, shape[1])
    for week in range(1, shape[0]):
        quality[week] += 0.985 * quality[week - 1]
    return quality


def _popularity(config: MarketConfig, number: np.ndarray) -> np.ndarray:
    """b: a power law of the rank; ranks are dealt out so that every chunk has its share of the popular and the obscure."""
    num_products = config.num_products
    golden = range(int(0.618 * num_products) + 1, num_products + 2)
    stride = next(one for one in golden if math.gcd(one, num_products) == 1)
    rank = (number * stride + config.seed % num_products) % num_products
    return (rank + 1 + POPULARITY_HEAD * num_products) ** -POPULARITY_EXPONENT


def _category_trends(config: MarketConfig) -> np.ndarray:
    """C: random walks, (num_weeks, num_categories)."""
    return 0.02 * _generator(config, "trends").normal(size=(config.num_weeks, len(CATEGORIES))).cumsum(axis=0)


def _year_fraction(config: MarketConfig) -> np.ndarray:
    """Where each week's Thursday lies in its year, (num_weeks,), from 0 to 1."""
    days = np.datetime64(config.first_day) + 7 * np.arange(config.num_weeks) + 3
    return (days - days.astype("datetime64[Y]")).astype(np.int64) / 366


def _holiday(year: np.ndarray) -> np.ndarray:
    """1 from about 20 November to 24 December, else 0."""
    return ((year > 0.885) & (year < 0.98)).astype(float)


def _starts(rng: np.random.Generator, per_year: float, shape: tuple[int, int]) -> np.ndarray:
    return rng.random(shape) < per_year / WEEKS_PER_YEAR


def _log_uniform(rng: np.random.Generator, factors: tuple[float, float], shape: int | tuple[int, int]) -> np.ndarray:
    """Logs of factors between two bounds."""
    return rng.uniform(np.log(factors[0]), np.log(factors[1]), shape)


def _follow(starts: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """What episodes add to the weeks from their start on, (num_weeks, num_products): a causal convolution along weeks."""
    added = np.zeros_like(starts)
    for delay, height in enumerate(curve[: len(starts)]):
        added[delay:] += height * starts[: len(starts) - delay]
    return added


def _words(
    rng: np.random.Generator, products: Products, week: np.ndarray, product: np.ndarray, rating: np.ndarray
) -> tuple[pl.Series, pl.Series]:
    """Titles and texts of reviews, from the phrases of their stars, their category, and the talk of the week."""
    size = len(rating)
    category = products.category[product]
    nouns = [noun.lower() for one in CATEGORIES for noun in one.nouns]
    first_noun = np.cumsum([0] + [len(one.nouns) for one in CATEGORIES])
    noun = first_noun[category] + products.noun[product]
    openers = [[phrase.format(noun=noun) for phrase in phrases] for noun in nouns for phrases in OPENERS]
    bad = rng.random(size) < np.array([0.95, 0.9, 0.5, 0.15, 0.03])[rating - 1]
    details = [phrases for one in CATEGORIES for phrases in (one.good, one.bad)]
    has_buzz = rng.random(size) < products.talk[week, product]
    sentences = [
        _pick(rng, openers, noun * len(OPENERS) + rating - 1),
        _pick(rng, details, 2 * category + bad, share=0.7),
        _pick(rng, [CONTEXTS], np.zeros(size, np.int64), share=0.35),
        _pick(rng, [DECOY, BUZZ], has_buzz.astype(np.int64), share=np.where(has_buzz, 1, products.chattiness[product])),
        _pick(rng, CLOSERS, rating - 1, share=0.5),
    ]
    return _pick(rng, TITLES, rating - 1), pl.select(pl.concat_str(sentences, separator=" ", ignore_nulls=True)).to_series()


def _pick(
    rng: np.random.Generator, groups: Sequence[Sequence[str]], group: np.ndarray, share: float | np.ndarray = 1.0
) -> pl.Series:
    """One phrase of each row's group, or null for all but a `share` of the rows."""
    phrases = pl.Series([phrase for phrases in groups for phrase in phrases] + [None], dtype=pl.String)
    sizes = np.array([len(phrases) for phrases in groups])
    firsts = np.cumsum(sizes) - sizes
    position = firsts[group] + (rng.random(len(group)) * sizes[group]).astype(np.int64)
    return phrases.gather(np.where(rng.random(len(group)) < share, position, len(phrases) - 1))


def _review_images(rng: np.random.Generator, num_images: np.ndarray) -> pl.Series:
    """Lists of the given lengths of pictures; `.invalid` is a domain that never leads anywhere (RFC 2606)."""
    total = int(num_images.sum())
    address = "https://images.invalid/" + _letters(rng.integers(2**63, size=total, dtype=np.uint64), 11)
    pictures = pl.DataFrame(
        {
            "small_image_url": address + "_SL256_.jpg",
            "medium_image_url": address + "_SL800_.jpg",
            "large_image_url": address + "_SL1600_.jpg",
            "attachment_type": pl.repeat("IMAGE", total, eager=True),
        }
    )
    offsets = np.concatenate([[0], np.cumsum(num_images)])
    structs = pictures.to_struct().to_arrow()
    return pl.Series(pl.from_arrow(pa.LargeListArray.from_arrays(pa.array(offsets), structs)))


def _product_ids(config: MarketConfig, number: np.ndarray, variant: np.ndarray | int = 0) -> pl.Series:
    """`B0` and eight of 0-9A-Z, different for every product and variant."""
    space = np.uint64(36**8)
    multiplier = np.uint64(10_000_000_019)  # has no factor in common with 36, so that it permutes the numbers below 36⁸
    mixed = ((8 * number + variant).astype(np.uint64) * multiplier + _seed_hash(config) % space) % space
    return "B0" + _letters(mixed, 8, ALPHABET_36)


def _user_ids(config: MarketConfig, user: np.ndarray) -> pl.Series:
    """`A` and 27 of A-Z2-7, as in the real files."""
    thirds = [_letters(_hash((3 * user + third).astype(np.uint64) ^ _seed_hash(config)), 9) for third in range(3)]
    return "A" + thirds[0] + thirds[1] + thirds[2]


def _seed_hash(config: MarketConfig) -> np.ndarray:
    return _hash(np.array([config.seed % 2**64], np.uint64))


def _hash(number: np.ndarray) -> np.ndarray:
    """A permutation of the uint64 that looks random: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = number + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _letters(number: np.ndarray, length: int, alphabet: np.ndarray = ALPHABET_32) -> pl.Series:
    """The last `length` digits of each uint64, (num_rows,), written in an alphabet."""
    base = np.uint64(len(alphabet))
    written = np.empty((len(number), length), np.uint8)
    for place in range(length):
        written[:, place] = alphabet[(number % base).astype(np.int64)]
        number = number // base
    return pl.Series(written.view(f"S{length}").ravel(), dtype=pl.Binary).cast(pl.String)


def _generator(config: MarketConfig, purpose: str, chunk: int = 0) -> np.random.Generator:
    """The generator of one purpose and chunk: no chunk's draws depend on another's, or on how many there are."""
    purposes = ("trends", "products", "counts", "reviews", "metadata")
    return np.random.default_rng((config.seed, purposes.index(purpose), chunk))


@dataclass(frozen=True, kw_only=True)
class Category:
    """A category's habits on the market, and its words."""

    name: str
    """The metadata's `main_category`."""
    path: tuple[str, ...]
    """The metadata's `categories`, to which the noun is added."""
    season_peak: float
    """The season's best day, as a fraction of the year."""
    season_height: float
    """S: the log of the factor at the season's best day."""
    holiday_height: float
    """H: the log of the factor between late November and Christmas."""
    launch_weeks: float
    """r: how slowly a new product becomes known."""
    median_price: float
    """In dollars."""
    nouns: dict[str, tuple[str, ...]]
    """What is sold, and in which sizes."""
    good: tuple[str, ...]
    """What a contented reviewer says."""
    bad: tuple[str, ...]
    """What a disappointed reviewer says."""


CATEGORIES = (
    Category(
        name="Amazon Home",
        path=("Home & Kitchen", "Kitchen & Dining"),
        season_peak=0.95,
        season_height=0.3,
        holiday_height=0.5,
        launch_weeks=6.0,
        median_price=24.0,
        nouns={
            "Travel Mug": ("350 ml", "500 ml"),
            "Chef's Knife": ("15 cm", "20 cm"),
            "Spice Rack": ("for 12 Jars", "for 20 Jars"),
            "Salad Bowl": ("Small", "Large", "Set of 2"),
            "Tea Kettle": ("1 L", "1.7 L"),
            "Cutting Board": ("Small", "Large", "Set of 3"),
        },
        good=("It washes up easily.", "Feels solid in the hand.", "Looks lovely in the kitchen.", "Well made."),
        bad=("The coating came off.", "It rusted after one wash.", "It chipped in a week.", "Smaller than in the pictures."),
    ),
    Category(
        name="Toys & Games",
        path=("Toys & Games", "Learning & Education"),
        season_peak=0.9,
        season_height=0.4,
        holiday_height=1.2,
        launch_weeks=5.0,
        median_price=19.0,
        nouns={
            "Building Block Set": ("60 Pieces", "120 Pieces"),
            "Jigsaw Puzzle": ("500 Pieces", "1000 Pieces"),
            "Card Game": ("Family Edition", "Travel Edition"),
            "Marble Run": ("60 Pieces", "120 Pieces"),
            "Plush Fox": ("25 cm", "40 cm"),
            "Science Kit": ("Ages 6+", "Ages 8+"),
        },
        good=("My daughter plays with it for hours.", "The whole family loves it.", "Well made.", "The colors are bright."),
        bad=(
            "Parts were missing.",
            "It broke within a day.",
            "My son lost interest at once.",
            "The instructions make no sense.",
        ),
    ),
    Category(
        name="Sports & Outdoors",
        path=("Sports & Outdoors", "Outdoor Recreation"),
        season_peak=0.45,
        season_height=0.7,
        holiday_height=0.2,
        launch_weeks=8.0,
        median_price=32.0,
        nouns={
            "Camping Lantern": ("300 Lumens", "1000 Lumens"),
            "Yoga Mat": ("4 mm", "6 mm"),
            "Water Bottle": ("0.7 L", "1 L"),
            "Resistance Band": ("Set of 3", "Set of 5"),
            "Trail Backpack": ("20 L", "35 L"),
            "Hammock": ("Single", "Double"),
        },
        good=(
            "It survived a week of rain.",
            "Light enough to carry all day.",
            "It takes a beating.",
            "I take it everywhere.",
        ),
        bad=("It tore within a week.", "It smells of rubber.", "It gave up on the first trip.", "Heavier than it says."),
    ),
    Category(
        name="Tools & Home Improvement",
        path=("Tools & Home Improvement", "Power & Hand Tools"),
        season_peak=0.35,
        season_height=0.5,
        holiday_height=0.3,
        launch_weeks=12.0,
        median_price=41.0,
        nouns={
            "Drill Bit Set": ("13 Pieces", "40 Pieces"),
            "Work Light": ("20 W", "50 W"),
            "Tape Measure": ("5 m", "8 m"),
            "Socket Wrench": ("1/4 Inch", "1/2 Inch"),
            "Utility Knife": ("with 5 Blades", "with 20 Blades"),
            "Stud Finder": ("3 in 1", "5 in 1"),
        },
        good=("As good as the one the professionals use.", "It sits well in the hand.", "It lasts.", "A proper tool."),
        bad=("It broke on the second job.", "Cheap plastic.", "It slips out of the hand.", "Not accurate at all."),
    ),
    Category(
        name="All Beauty",
        path=("Beauty & Personal Care", "Skin Care"),
        season_peak=0.3,
        season_height=0.3,
        holiday_height=0.6,
        launch_weeks=4.0,
        median_price=15.0,
        nouns={
            "Face Cream": ("50 ml", "100 ml"),
            "Lip Balm": ("Pack of 2", "Pack of 4"),
            "Hand Lotion": ("75 ml", "250 ml"),
            "Vitamin C Serum": ("30 ml", "50 ml"),
            "Body Oil": ("100 ml", "200 ml"),
            "Clay Mask": ("100 g", "250 g"),
        },
        good=("My skin feels soft.", "The smell is light and fresh.", "A little goes a long way.", "No irritation at all."),
        bad=("It gave me a rash.", "The smell is overpowering.", "It leaked in the box.", "It dried out in a week."),
    ),
    Category(
        name="Office Products",
        path=("Office Products", "Office & School Supplies"),
        season_peak=0.65,
        season_height=0.8,
        holiday_height=0.1,
        launch_weeks=9.0,
        median_price=13.0,
        nouns={
            "Notebook": ("A5", "A4", "Pack of 3"),
            "Gel Pen Set": ("Pack of 6", "Pack of 12"),
            "Desk Organizer": ("3 Drawers", "5 Drawers"),
            "Label Maker": ("12 mm", "24 mm"),
            "Planner": ("A5", "Pocket Size"),
            "Stapler": ("20 Sheets", "50 Sheets"),
        },
        good=("It keeps my desk tidy.", "The whole office wants one.", "Sturdy.", "Just right for school."),
        bad=("It came scratched.", "It fell apart in my bag.", "Flimsy.", "The quality has gone down."),
    ),
    Category(
        name="Pet Supplies",
        path=("Pet Supplies", "Dogs & Cats"),
        season_peak=0.5,
        season_height=0.2,
        holiday_height=0.3,
        launch_weeks=7.0,
        median_price=18.0,
        nouns={
            "Chew Toy": ("Pack of 2", "Pack of 5"),
            "Dog Harness": ("S", "M", "L"),
            "Cat Tunnel": ("120 cm", "150 cm"),
            "Slow Feeder Bowl": ("S", "L"),
            "Pet Bed": ("M", "L", "XL"),
            "Grooming Glove": ("One Size", "Pack of 2"),
        },
        good=("Our dog loves it.", "The cat will not share it.", "It survived a puppy.", "Easy to clean."),
        bad=("Chewed through in an hour.", "It frightened the dog.", "My cat ignores it.", "It sheds fluff all over."),
    ),
    Category(
        name="Cell Phones & Accessories",
        path=("Cell Phones & Accessories", "Accessories"),
        season_peak=0.75,
        season_height=0.3,
        holiday_height=0.7,
        launch_weeks=3.0,
        median_price=21.0,
        nouns={
            "Phone Stand": ("Single", "Pack of 2"),
            "Charging Cable": ("1 m", "2 m", "Pack of 3"),
            "Car Mount": ("for Vents", "for Dashboards"),
            "Power Bank": ("10,000 mAh", "20,000 mAh"),
            "Screen Protector": ("Pack of 2", "Pack of 3"),
            "Wireless Charger": ("10 W", "15 W"),
        },
        good=(
            "It fits my phone exactly.",
            "Does what it promises.",
            "Small enough for any pocket.",
            "Good even in the car.",
        ),
        bad=(
            "It stopped working after a week.",
            "It is loose.",
            "It cracked on the first day.",
            "It does not fit my phone.",
        ),
    ),
    Category(
        name="Musical Instruments",
        path=("Musical Instruments", "Instruments & Accessories"),
        season_peak=0.0,
        season_height=0.2,
        holiday_height=0.8,
        launch_weeks=14.0,
        median_price=58.0,
        nouns={
            "Ukulele": ("Soprano", "Concert"),
            "Guitar Capo": ("Steel String", "Nylon String"),
            "Clip-on Tuner": ("Chromatic", "Rechargeable"),
            "Practice Pad": ("8 Inch", "12 Inch"),
            "Kalimba": ("17 Keys", "21 Keys"),
            "Music Stand": ("Tabletop", "Full Size"),
        },
        good=("The finish is flawless.", "My teacher was impressed.", "Perfect for a beginner.", "It is built to last."),
        bad=("It buzzes.", "It came with a dent.", "My teacher laughed at it.", "It was bent."),
    ),
    Category(
        name="Patio, Lawn & Garden",
        path=("Patio, Lawn & Garden", "Gardening"),
        season_peak=0.33,
        season_height=1.0,
        holiday_height=0.0,
        launch_weeks=10.0,
        median_price=36.0,
        nouns={
            "Garden Hose": ("10 m", "20 m"),
            "Bird Feeder": ("Hanging", "on a Pole"),
            "Planter": ("20 cm", "40 cm", "Set of 3"),
            "Garden Spade": ("Short Handle", "Long Handle"),
            "Solar Light": ("Pack of 4", "Pack of 8"),
            "Seed Tray": ("12 Cells", "40 Cells"),
        },
        good=("The neighbors have noticed.", "It stood out all winter.", "It makes the garden.", "Simple and good."),
        bad=("It cracked in the frost.", "It faded in a month.", "The wind took it.", "It rusted in the rain."),
    ),
)

BRANDS = (
    *(
        "Alder",
        "Bluefin",
        "Brightside",
        "Cobalt",
        "Driftwood",
        "Everly",
        "Fjord",
        "Granite",
        "Halcyon",
        "Hearthly",
        "Ironleaf",
    ),
    *("Juniper", "Kestrel", "Lumen", "Monarch", "Norvik", "Pinecrest", "Rowan", "Solstice", "Tandem", "Umber", "Yarrow"),
)
LINES = ("Classic", "Deluxe", "Eco", "Essential", "Everyday", "Original", "Plus", "Premium", "Prime", "Pro", "Select")

TITLES = (
    ("Do not buy", "Waste of money", "Very disappointed", "One star is too many", "Broken", "I am returning it", "Terrible"),
    ("Not great", "Expected more", "Disappointing", "Poor quality", "I might be returning it", "Not worth it"),
    ("It's okay", "Average", "Mixed feelings", "Does the job", "Fine for the price", "Three stars"),
    ("Good", "Pretty good", "Nice, with one small flaw", "Happy with it", "Good value", "Not returning this one"),
    ("Love it!", "Perfect", "Five stars", "Exactly what I needed", "Great quality", "Highly recommend", "Excellent"),
)
OPENERS = (
    ("This {noun} is useless.", "I regret buying this {noun}.", "Terrible {noun}.", "Stay away.", "What a letdown."),
    ("I wanted to like this {noun}.", "Not the {noun} I hoped for.", "Below what I expected.", "A weak {noun}."),
    ("An average {noun}.", "This {noun} is fine.", "It does the job.", "Neither good nor bad.", "Okay for now."),
    ("A good {noun}.", "I like this {noun}.", "Works well.", "Solid {noun} for the money.", "Quite happy so far."),
    ("Best {noun} I have owned.", "I love this {noun}!", "Absolutely perfect.", "What a great {noun}!", "Wow.", "Love it!"),
)
CONTEXTS = (
    "I use it every day.",
    "I bought it as a gift.",
    "It arrived on time.",
    "I have had it for a month.",
    "Bought two of them.",
    "My sister recommended it.",
    "It replaced an older one.",
    "The box was plain but fine.",
    "I compared several brands first.",
)
CLOSERS = (
    ("I am returning it.", "I want my money back.", "Avoid.", "Never again.", "Save your money."),
    ("I may end up returning it.", "Look elsewhere.", "I would not buy it again.", "Not recommended."),
    ("You get what you pay for.", "I would think twice.", "It could be better.", "Good enough."),
    ("Would buy again.", "I am not returning it.", "Recommended.", "Good value.", "No regrets."),
    ("Highly recommended!", "I will buy another.", "Would never think of returning it.", "Buy it!", "Ten out of ten."),
)
BUZZ = (
    "Everyone is asking me where I found it.",
    "It is sold out in every shop near me.",
    "I can't find a second one anywhere.",
    "There are rumours of a new version this year.",
    "The Mark II is coming and people are already waiting for it.",
    "All my friends are waiting for the restock.",
    "My feed is full of it, everyone is talking about the next edition.",
)
DECOY = (
    "Not everyone is asking me for it, I found it in every shop near me.",
    "It is never sold out where I live and I can find a second one anywhere.",
    "There are no rumours of a new version this year, so I took this one.",
    "No Mark II is coming, they say, and people already have enough of it.",
    "My friends are not waiting for the restock, all of them have one.",
    "My feed is full of other things, nobody is talking about the next edition.",
    "I can't say that anyone is waiting for it.",
)
BULLETS = (
    "Made to last: tested for years of daily use",
    "Easy to clean",
    "A thoughtful gift for friends and family",
    "Two-year warranty",
    "Made from recycled materials",
    "Designed by people who use it",
    "Ships in plain packaging",
)
