"""Checks of the raw data: the share of products with metadata, the share of reviews with text, and the weeks of each file.

If the metadata describe other products, or write ids differently from the reviews, no product has a category. If a file ends
earlier than the others, its products have no reviews in the last weeks.
"""

import dataclasses
import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers import weekly
from ensemble.recipes.hot_sellers.settings import PrepareConfig

NUM_EXAMPLES = 1000
"""The number of products without metadata whose ids are kept, to find a similar id in the metadata."""
NOTABLE = 0.05
"""The smallest share of missing values (metadata, text, or a column of the entry `unstated`) that the manifest records, and
the smallest increase of such a share from training data to new data that gives a warning."""
LEAST_OF_MARKET = 0.5
"""A warning appears if new data have less than this fraction of the products, or weekly reviews, of the training data."""
RECENT_WEEKS = 4
"""A warning appears if a file ends at least this many weeks before the latest one, or if this many last weeks have few
reviews."""
FEW_REVIEWS = 0.25
"""The last `RECENT_WEEKS` weeks have few reviews if their mean number is below this fraction of the weekly median."""


CATEGORY, PRICE = "a category", "a price"
OPTIONAL_COLUMNS = {"verified": "a mark of verified purchases", "num_images": "a list of images"}
"""Columns of reviews and their names in the manifest's entry `unstated`. Empty cells count as not verified and no images."""
CRAWL_COLUMNS = {"helpful_votes": "a number of helpful votes"}
"""Further such columns, which are features only with `as_of_crawl`; their empty cells count as 0."""


class Period:
    """Counts the reviews of each week, and determines the first, last and last complete week of each file."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._per_week = Counter[int]()
        self.first, self.last, self.complete = ([value] * len(files) for value in (np.inf, -np.inf, -np.inf))

    def add(self, file_number: int, time_ms: np.ndarray) -> None:
        """Count reviews of a file. time_ms : (num_reviews,)."""
        week = (time_ms - weekly.FIRST_MONDAY_MS) // weekly.WEEK_MS
        self._per_week.update(dict(zip(*(column.tolist() for column in np.unique(week, return_counts=True)), strict=True)))
        self.first[file_number] = min(self.first[file_number], week.min())
        self.last[file_number] = max(self.last[file_number], week.max())
        complete = weekly.last_complete_week(int(time_ms.max()))
        self.complete[file_number] = max(self.complete[file_number], complete)

    def warnings(self) -> list[str]:
        """Sentences about files that end early, and about the last weeks if they have few reviews."""
        sentences = []
        end, last_week = max(self.last), int(max(self.complete))
        for number, (file, last) in enumerate(zip(self._files, self.last, strict=True)):
            # A file that begins where this one ends contains the later reviews, if files are divided by time
            is_continued = any(last - 1 <= first < np.inf for other, first in enumerate(self.first) if other != number)
            if end - last >= RECENT_WEEKS and not is_continued:
                sentences.append(
                    f"{file} ends in the week of {weekly.monday(int(last))}, {end - last:.0f} weeks before the other files: "
                    "its products count as without reviews in these weeks; give files that end at the same time, or "
                    f"until={weekly.sunday(int(self.complete[number]))}"
                )
        usual = float(np.median(list(self._per_week.values())))
        recent = [self._per_week[week] for week in range(last_week - RECENT_WEEKS + 1, last_week + 1)]
        usual_weeks = [week for week, count in self._per_week.items() if count >= usual / 2 and week < last_week]
        if usual_weeks and sum(recent) < FEW_REVIEWS * RECENT_WEEKS * usual:
            sentences.append(
                f"the {RECENT_WEEKS} weeks to that of {weekly.monday(last_week)} have {sum(recent)} reviews in all, and a "
                f"usual week has {usual:.0f}: if these are errors or incomplete, leave them out with "
                f"until={weekly.sunday(max(usual_weeks))}"
            )
        return sentences


@dataclasses.dataclass
class Share:
    """The share of units, such as reviews, that have an attribute, such as text: `count` of `total`."""

    unit: str
    attribute: str
    total: int = 0
    count: int = 0

    def add(self, total: int, count: int) -> None:
        self.total += total
        self.count += count

    @property
    def value(self) -> float:
        return self.count / max(self.total, 1)

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} {self.unit} have {self.attribute} ({self.value:.1%})"


class Metadata:
    """Counts how many of the reviewed products have metadata."""

    def __init__(self) -> None:
        self.share = Share("reviewed products", "metadata")
        self.without: list[str] = []
        """Ids of the first products without metadata."""

    def add(self, products: pl.DataFrame, known: pl.DataFrame) -> None:
        """Count `products`, of which those in `known` have metadata."""
        self.share.add(len(products), len(known))
        if len(self.without) < NUM_EXAMPLES:
            missing = products.join(known, on="product_id", how="anti")["product_id"]
            self.without += missing.head(NUM_EXAMPLES - len(self.without)).to_list()


def needs_metadata(training: dict[str, Any]) -> bool:
    """Whether members learned from product metadata: categories, or prices. training : the manifest of the training data."""
    has_prices = training["config"]["as_of_crawl"] and training["product_census"]["rows_kept"] > 0
    return len(training["categories"]) > 1 or has_prices  # without metadata, "" for unknown is the only category


def check(
    config: PrepareConfig, text: Share, metadata: Metadata | None, spill: Path, training: dict[str, Any] | None
) -> list[Share]:
    """Return the shares to print. Raises `UserError` if too few products have metadata or too few reviews have text.

    text : reviews with text, which are checked only with `training`. metadata : products with metadata, None if no metadata
    are given. spill : the folder of the metadata that were read. training : for new data, the manifest of the training data
    of the members that will predict; otherwise None.
    """
    shares = ([metadata.share] if metadata else []) + ([text] if text.total else [])
    is_needed = training is None or needs_metadata(training)  # otherwise metadata give only the titles in the forecast
    if metadata and is_needed and metadata.share.total and metadata.share.value < config.min_matched:
        raise UserError(
            f"only {metadata.share}, and at least {config.min_matched:.0%} must have it (min_matched= on the command "
            f"line): ids must be written alike in both, {_example(metadata.without, spill)}"
        )
    if training is not None and training["has_text"] and text.total:
        training_share = 1 - training.get("lacking", {}).get("text", 0.0)
        if text.value < config.min_matched * training_share:
            raise UserError(
                f"only {text}, but the members learned from reviews of which {training_share:.1%} had text: give reviews "
                "with title and text, or accept a worse forecast with a lower min_matched= on the command line"
            )
    return shares


def entry(name: str, shares: list[Share]) -> dict[str, dict[str, float]]:
    """The entry `lacking` or `unstated` of the manifest: the shares of units without the attribute, if ≥ `NOTABLE`."""
    missing = {share.attribute: round(1 - share.value, 6) for share in shares if share.total and 1 - share.value >= NOTABLE}
    return {name: missing} if missing else {}


def unstated(training: dict[str, Any]) -> list[str]:
    """The columns of `OPTIONAL_COLUMNS` and `CRAWL_COLUMNS` that are empty in all training reviews.

    training : the manifest of the training data.
    """
    shares = training.get("unstated", {})
    return [column for column, name in (OPTIONAL_COLUMNS | CRAWL_COLUMNS).items() if shares.get(name) == 1]


def too_few(new: dict[str, Any], training: dict[str, Any]) -> dict[str, float]:
    """The numbers of products and of weekly reviews ÷ those of the training data, if below `LEAST_OF_MARKET`.

    new, training : the manifests of the new data and of the training data. Features of a category and of the market count
    all reviews, so their values differ if products are left out.
    """
    per_week = [manifest["census"]["rows_kept"] / _num_weeks(manifest) for manifest in (new, training)]
    fractions = {"products": new["products"] / training["products"], "weekly reviews": per_week[0] / per_week[1]}
    return {quantity: fraction for quantity, fraction in fractions.items() if fraction < LEAST_OF_MARKET}


def notes(new: dict[str, Any], training: dict[str, Any]) -> list[str]:
    """Warnings if new reviews lack values, products or earlier weeks that the training data have, or end earlier.

    new, training : the manifests of the new data and of the training data.
    """
    warnings = []
    if new["first_week"] > training["first_week"]:
        warnings.append(
            f"these reviews begin {new['first_week']}, but the training data begin {training['first_week']}: a "
            "product's totals, age and last year are only right if all its reviews are given, old and new"
        )
    warnings += [
        f"these reviews have {fraction:.1%} of the {quantity} that the members learned from: the features of a category and "
        "of the market, and therefore the probabilities, are only right if all reviews of all products of the categories "
        "are given"
        for quantity, fraction in too_few(new, training).items()
    ]
    if new["last_week"] < training["last_week"]:
        warnings.append(
            f"these reviews end in the week of {new['last_week']}, but the members learned from reviews to that of "
            f"{training['last_week']}: they may have learned from the weeks of this forecast, so its scores would "
            "be too good"
        )
    units = {"text": "reviews", **dict.fromkeys((OPTIONAL_COLUMNS | CRAWL_COLUMNS).values(), "reviews")}
    if needs_metadata(training):
        units |= {"metadata": "products", **dict.fromkeys((CATEGORY, PRICE), "products with metadata")}
    for attribute, unit in units.items():
        missing, before = ((m.get("lacking", {}) | m.get("unstated", {})).get(attribute, 0.0) for m in (new, training))
        if missing >= before + NOTABLE:
            warnings.append(
                f"{missing:.1%} of the {unit} lack {attribute}, more than in the training data: give it, or expect worse "
                "predictions"
            )
    return warnings


def _num_weeks(manifest: dict[str, Any]) -> int:
    first, last = (datetime.date.fromisoformat(manifest[name]) for name in ("first_week", "last_week"))
    return (last - first).days // 7 + 1


def _example(without: list[str], spill: Path) -> str:
    """A clause with an id of the reviews and a similar id of the metadata, or any two ids if none are similar."""
    known = [pl.read_ipc_stream(path)["product_id"] for path in sorted(spill.glob("products-*.arrow"))]
    names = pl.concat(known) if known else pl.Series([], dtype=pl.String)
    if not len(names):
        return "and the metadata have no product"
    # Ids are similar if they are equal in lower case, without blanks, without the .0 of a float, and without leading zeros
    key = pl.col("id").str.strip_chars().str.to_lowercase().str.replace(r"\.0+$", "").str.strip_chars_start("0")
    of_metadata, of_reviews = (
        pl.DataFrame({"id": ids}, schema={"id": pl.String}).with_columns(key=key) for ids in (names, without)
    )
    similar = of_reviews.join(of_metadata, on="key", maintain_order="left").filter(pl.col("id") != pl.col("id_right"))
    if len(similar):
        return f"and the reviews have '{similar['id'][0]}' where the metadata have '{similar['id_right'][0]}'"
    return f"and the reviews have '{without[0]}', the metadata '{names[0]}'"
