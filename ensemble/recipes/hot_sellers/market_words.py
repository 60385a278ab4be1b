"""Texts, titles, names and image addresses of the generated market.

The numbers of reviews, ratings and prices come from `market.py`. A `Category` also holds the parameters of its season,
holiday and prices, so that each category is defined in one place.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

PICTURES = "https://images.invalid/"  # the domain .invalid never resolves (RFC 2606)
VIDEOS = "https://videos.invalid/"
ALPHABET_32 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", np.uint8)
ALPHABET_36 = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", np.uint8)


@dataclass(frozen=True, kw_only=True)
class Category:
    """Parameters and phrases of a category; the letters are those of the process in market.py."""

    name: str
    """The metadata's `main_category`."""
    path: tuple[str, ...]
    """The metadata's `categories`, to which the noun is added."""
    season_peak: float
    """Day of the season's peak, as a fraction of the year."""
    season_height: float
    """S: the log of the factor at the season's peak."""
    holiday_height: float
    """H: the log of the factor between late November and Christmas."""
    launch_weeks: float
    """r: time constant of the rise after a launch, in weeks."""
    median_price: float
    """In dollars."""
    nouns: dict[str, tuple[str, ...]]
    """The kinds of products, each with its sizes."""
    good: tuple[str, ...]
    """Sentences of positive reviews."""
    bad: tuple[str, ...]
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

    All arrays have shape (num_reviews,): positions in `CATEGORIES` and in the category's nouns, ratings of 1 to 5 stars, the
    probability of a sentence of `BUZZ`, and without one, that of a sentence of `DECOY`.
    """
    size = len(rating)
    names = [name.lower() for known in CATEGORIES for name in known.nouns]
    first_noun = np.cumsum([0] + [len(known.nouns) for known in CATEGORIES])
    openers = [[phrase.format(noun=name) for phrase in phrases] for name in names for phrases in OPENERS]
    bad = rng.random(size) < np.array([0.95, 0.9, 0.5, 0.15, 0.03])[rating - 1]
    details = [phrases for known in CATEGORIES for phrases in (known.good, known.bad)]
    has_buzz = rng.random(size) < buzz_share
    sentences = [
        _pick(rng, openers, (first_noun[category] + noun) * len(OPENERS) + rating - 1),
        _pick(rng, details, 2 * category + bad, share=0.7),
        _pick(rng, [CONTEXTS], np.zeros(size, np.int64), share=0.35),
        _pick(rng, [DECOY, BUZZ], has_buzz.astype(np.int64), share=np.where(has_buzz, 1, decoy_share)),
        _pick(rng, CLOSERS, rating - 1, share=0.5),
    ]
    return _pick(rng, TITLES, rating - 1), pl.select(pl.concat_str(sentences, separator=" ", ignore_nulls=True)).to_series()


def review_images(rng: np.random.Generator, num_images: np.ndarray) -> pl.Series:
    """Lists of `num_images` images each."""
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
    identity: str,
    category: Category,
    noun: int,
    price: float,
    launched: datetime.date,
    average_rating: float,
    rating_number: int,
) -> dict[str, Any]:
    """The metadata of one product, an object of the raw schema; `noun` is a position in the category's nouns."""

    def chance(share: float) -> bool:
        return rng.random() < share

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
        "price": None if chance(0.25) else price,
        "images": [
            {
                "thumb": picture + "_SS40_.jpg",
                "large": picture + "_SL500_.jpg",
                "variant": f"PT{order:02d}" if order else "MAIN",
                "hi_res": None if chance(0.2) else picture + "_SL1500_.jpg",
            }
            for order, picture in enumerate(pictures)
        ],
        "videos": [{"title": f"{brand} {name}", "url": VIDEOS + identity, "user_id": ""}] if chance(0.15) else [],
        "store": None if chance(0.1) else brand,
        "categories": [] if chance(0.1) else [*category.path, name],
        "details": {
            "Brand": brand,
            "Size": size,
            "Date First Available": f"{launched:%B} {launched.day}, {launched.year}",
        },
        "parent_asin": identity,
        "bought_together": None,
    }


def product_ids(seed: int, number: np.ndarray, variant: np.ndarray | int = 0) -> pl.Series:
    """`B0` and eight characters of 0-9A-Z, different for every product and variant."""
    space = np.uint64(36**8)
    multiplier = np.uint64(10_000_000_019)  # coprime to 36, so that multiplication permutes the numbers below 36⁸
    mixed = ((8 * number + variant).astype(np.uint64) * multiplier + _seed_hash(seed) % space) % space
    return "B0" + _letters(mixed, 8, ALPHABET_36)


def user_ids(seed: int, user: np.ndarray) -> pl.Series:
    """`A` and 27 characters of A-Z2-7, as in the real files."""
    thirds = [_letters(_hash((3 * user + third).astype(np.uint64) ^ _seed_hash(seed)), 9) for third in range(3)]
    return "A" + thirds[0] + thirds[1] + thirds[2]


def _seed_hash(seed: int) -> np.ndarray:
    return _hash(np.array([seed % 2**64], np.uint64))


def _hash(number: np.ndarray) -> np.ndarray:
    """A pseudorandom permutation of uint64: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = number + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _letters(number: np.ndarray, length: int, alphabet: np.ndarray = ALPHABET_32) -> pl.Series:
    """The last `length` digits of each uint64, (num_rows,), in the base of an alphabet's size, least significant first."""
    base = np.uint64(len(alphabet))
    characters = np.empty((len(number), length), np.uint8)
    for position in range(length):
        characters[:, position] = alphabet[(number % base).astype(np.int64)]
        number = number // base
    return pl.Series(characters.view(f"S{length}").ravel(), dtype=pl.Binary).cast(pl.String)


def _pick(
    rng: np.random.Generator, groups: Sequence[Sequence[str]], group: np.ndarray, share: float | np.ndarray = 1.0
) -> pl.Series:
    """A random phrase of each row's group with probability `share`, else null."""
    phrases = pl.Series([phrase for phrases in groups for phrase in phrases] + [None], dtype=pl.String)
    sizes = np.array([len(phrases) for phrases in groups])
    firsts = np.cumsum(sizes) - sizes
    position = firsts[group] + (rng.random(len(group)) * sizes[group]).astype(np.int64)
    return phrases.gather(np.where(rng.random(len(group)) < share, position, len(phrases) - 1))


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
    "Alder Bluefin Brightside Cobalt Driftwood Everly Fjord Granite Halcyon Hearthly Ironleaf Juniper Kestrel Lumen "
    "Monarch Norvik Pinecrest Rowan Solstice Tandem Umber Yarrow"
).split()
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
