"""Texts, titles, ids and image addresses of the generated reviews and products, with the phrases of market_words.json.

The counts of reviews, the ratings and the prices come from `market.py`. A `Category` also has the parameters of its season,
holiday, launches and prices, so that each category is defined in one place.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble.data.splitmix import GOLDEN, finalised

PICTURES = "https://images.invalid/"  # the domain .invalid never resolves (RFC 2606)
VIDEOS = "https://videos.invalid/"
ALPHABET_32 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", np.uint8)
ALPHABET_36 = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)


@dataclass(frozen=True, kw_only=True)
class Category:
    """Parameters and phrases of a category. The letters S, H and r are those of the formulas in market.py."""

    name: str
    """The value of `main_category` in the metadata."""
    path: list[str]
    """The value of `categories` in the metadata, without the noun, which is its last element."""
    season_peak: float
    """Day of the season's peak, as a fraction of the year."""
    season_height: float
    """S: the log of the factor on reviews per week at the season's peak, for a product of median price."""
    holiday_height: float
    """H: the log of the factor on reviews per week from late November to Christmas, for a product of median price."""
    launch_weeks: float
    """r: time constant of the rise after a launch, in weeks, for a product of median price."""
    median_price: float
    """The median price of the products, in dollars."""
    nouns: dict[str, list[str]]
    """The kinds of products, such as `Yoga Mat`, each with its sizes."""
    good: list[str]
    """Sentences of positive reviews."""
    bad: list[str]
    """Sentences of negative reviews."""


def review_words(
    rng: np.random.Generator,
    category: np.ndarray,
    noun: np.ndarray,
    rating: np.ndarray,
    buzz_share: np.ndarray,
    decoy_share: np.ndarray,
) -> tuple[pl.Series, pl.Series]:
    """Titles and texts of reviews.

    All arrays have shape (num_reviews,). category, noun : positions in `CATEGORIES` and in the category's nouns. rating : 1
    to 5 stars. buzz_share : probability of a sentence of `BUZZ`. decoy_share : probability of a sentence of `DECOY` if the
    review has none of `BUZZ`. Both kinds of sentences are explained in market.py.
    """
    size = len(rating)
    nouns = [name.lower() for entry in CATEGORIES for name in entry.nouns]
    first_noun = np.cumsum([0] + [len(entry.nouns) for entry in CATEGORIES])
    openers = [[phrase.format(noun=name) for phrase in phrases] for name in nouns for phrases in OPENERS]
    is_negative = rng.random(size) < np.array([0.95, 0.9, 0.5, 0.15, 0.03])[rating - 1]
    details = [phrases for entry in CATEGORIES for phrases in (entry.good, entry.bad)]
    has_buzz = rng.random(size) < buzz_share
    sentences = [
        _pick(rng, openers, (first_noun[category] + noun) * len(OPENERS) + rating - 1),
        _pick(rng, details, 2 * category + is_negative, share=0.7),
        _pick(rng, [CONTEXTS], np.zeros(size, np.int64), share=0.35),
        _pick(rng, [DECOY, BUZZ], has_buzz.astype(np.int64), share=np.where(has_buzz, 1, decoy_share)),
        _pick(rng, CLOSERS, rating - 1, share=0.5),
    ]
    return _pick(rng, TITLES, rating - 1), pl.select(pl.concat_str(sentences, separator=" ", ignore_nulls=True)).to_series()


def review_images(rng: np.random.Generator, num_images: np.ndarray) -> pl.Series:
    """For each review, a list of images with addresses for three sizes. num_images : of each review, (num_reviews,)."""
    total = int(num_images.sum())
    address = PICTURES + _letters(rng.integers(2**63, size=total, dtype=np.uint64), 11)
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


def product_record(
    rng: np.random.Generator,
    *,
    product_id: str,
    category: Category,
    noun: int,
    price: float,
    launched: datetime.date,
    average_rating: float,
    rating_number: int,
) -> dict[str, Any]:
    """The metadata of one product, in the schema of Amazon Reviews 2023; `noun` is a position in the category's nouns."""

    def happens(probability: float) -> bool:
        return rng.random() < probability

    name = list(category.nouns)[noun]
    brand, line, size = (words[rng.integers(len(words))] for words in (BRANDS, LINES, category.nouns[name]))
    bullets = [BULLETS[choice] for choice in rng.permutation(len(BULLETS))[: rng.integers(6)]]
    pictures = PICTURES + _letters(rng.integers(2**63, size=rng.integers(1, 6), dtype=np.uint64), 11)
    return {
        "main_category": category.name,
        "title": f"{brand} {line} {name} {size}",
        "average_rating": average_rating,
        "rating_number": rating_number,
        "features": bullets,
        "description": [f"The {line} {name} by {brand}. {'. '.join(bullets)}."] if bullets else [],
        "price": None if happens(0.25) else price,
        "images": [
            {
                "thumb": picture + "_SS40_.jpg",
                "large": picture + "_SL500_.jpg",
                "variant": f"PT{order:02d}" if order else "MAIN",
                "hi_res": None if happens(0.2) else picture + "_SL1500_.jpg",
            }
            for order, picture in enumerate(pictures)
        ],
        "videos": [{"title": f"{brand} {name}", "url": VIDEOS + product_id, "user_id": ""}] if happens(0.15) else [],
        "store": None if happens(0.1) else brand,
        "categories": [] if happens(0.1) else [*category.path, name],
        "details": {
            "Brand": brand,
            "Size": size,
            "Date First Available": f"{launched:%B} {launched.day}, {launched.year}",
        },
        "parent_asin": product_id,
        "bought_together": None,
    }


def product_ids(seed: int, number: np.ndarray, variant: np.ndarray | int = 0) -> pl.Series:
    """`B0` and eight characters of 0-9A-Z, different for every product `number` and `variant`, which is less than 8."""
    space = np.uint64(36**8)
    multiplier = np.uint64(10_000_000_019)  # coprime to 36, so that multiplication permutes the numbers below 36⁸
    mixed = ((8 * number + variant).astype(np.uint64) * multiplier + _seed_hash(seed) % space) % space
    return "B0" + _letters(mixed, 8, ALPHABET_36)


def user_ids(seed: int, user: np.ndarray) -> pl.Series:
    """`A` and 27 characters of A-Z2-7 for each user number, in the form of user ids in Amazon Reviews 2023."""
    numbers = ((3 * user + third).astype(np.uint64) ^ _seed_hash(seed) for third in range(3))
    thirds = [_letters(finalised(number + GOLDEN), 9) for number in numbers]
    return "A" + thirds[0] + thirds[1] + thirds[2]


def _seed_hash(seed: int) -> np.ndarray:
    return finalised(np.array([seed % 2**64], np.uint64) + GOLDEN)


def _letters(number: np.ndarray, length: int, alphabet: np.ndarray = ALPHABET_32) -> pl.Series:
    """The `length` lowest digits of each uint64, (num_rows,), in base len(alphabet), the least significant digit first."""
    base = np.uint64(len(alphabet))
    characters = np.empty((len(number), length), np.uint8)
    for position in range(length):
        characters[:, position] = alphabet[(number % base).astype(np.int64)]
        number = number // base
    return pl.Series(characters.view(f"S{length}").ravel(), dtype=pl.Binary).cast(pl.String)


def _pick(
    rng: np.random.Generator, groups: Sequence[Sequence[str]], group: np.ndarray, share: float | np.ndarray = 1.0
) -> pl.Series:
    """For each row, with probability `share` a random phrase of its group, else null; `group` is a position in `groups`."""
    phrases = pl.Series([phrase for phrases in groups for phrase in phrases] + [None], dtype=pl.String)
    sizes = np.array([len(phrases) for phrases in groups])
    firsts = np.cumsum(sizes) - sizes
    position = firsts[group] + (rng.random(len(group)) * sizes[group]).astype(np.int64)
    return phrases.gather(np.where(rng.random(len(group)) < share, position, len(phrases) - 1))


_WORDS: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CATEGORIES = tuple(Category(**category) for category in _WORDS["categories"])
BRANDS, LINES, BULLETS = (_WORDS[name] for name in ("brands", "lines", "bullets"))
TITLES, OPENERS, CLOSERS = (_WORDS[name] for name in ("titles", "openers", "closers"))
"""For each rating from 1 to 5, the phrases of reviews with this rating."""
CONTEXTS, BUZZ, DECOY = (_WORDS[name] for name in ("contexts", "buzz", "decoy"))
