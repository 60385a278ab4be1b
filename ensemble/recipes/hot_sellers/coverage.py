"""How many reviewed products have metadata, and how many reviews have text.

Files of other products, and ids that are written in another way, would otherwise make every product one of no category.
"""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ensemble.errors import UserError
from ensemble.recipes.hot_sellers.settings import PrepareConfig

NUM_EXAMPLES = 1000
NOTABLE = 0.05
"""The least part without metadata or text that a manifest speaks of."""
LEAST_OF_MARKET = 0.5
"""Of the products, and of the reviews in a week, that members learned from: less than this is taken for a part of them."""


@dataclasses.dataclass
class Share:
    """How many of all `unit` have `what`."""

    unit: str
    what: str
    total: int = 0
    count: int = 0

    def add(self, total: int, count: int) -> None:
        self.total += total
        self.count += count

    @property
    def value(self) -> float:
        return self.count / max(self.total, 1)

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} {self.unit} have {self.what} ({self.value:.1%})"


class Metadata:
    """Which reviewed products have metadata."""

    def __init__(self) -> None:
        self.share = Share("reviewed products", "metadata")
        self.without: list[str] = []
        """The ids of the first products without."""

    def add(self, products: pl.DataFrame, known: pl.DataFrame) -> None:
        """Count products with reviews, given those of them that the metadata know."""
        self.share.add(len(products), len(known))
        if len(self.without) < NUM_EXAMPLES:
            missing = products.join(known, on="product_id", how="anti")["product_id"]
            self.without += missing.head(NUM_EXAMPLES - len(self.without)).to_list()


def check(
    config: PrepareConfig, text: Share, metadata: Metadata | None, spill: Path, like: dict[str, Any] | None
) -> list[Share]:
    """The shares to print. Raises `UserError` for metadata of too few products, and for reviews without the text that
    members learned from.

    metadata : None where no metadata are given. spill : the folder with the metadata that were read. like : the manifest of
    the data that members learned from, None where there is none.
    """
    shares = ([metadata.share] if metadata else []) + ([text] if text.total else [])
    if metadata and metadata.share.value < config.min_matched:
        raise UserError(
            f"only {metadata.share}, and at least {config.min_matched:.0%} must (min_matched): ids are compared exactly as "
            f"they are written, {_example(metadata.without, spill)}"
        )
    if like is not None and like["has_text"] and text.total:
        learned = 1 - like.get("lacking", {}).get("text", 0.0)
        if text.value < config.min_matched * learned:
            raise UserError(
                f"only {text}, but the members learned from reviews of which {learned:.1%} had text: give reviews with "
                "title and text, or accept a worse forecast with a lower min_matched"
            )
    return shares


def lacking(shares: list[Share]) -> dict[str, dict[str, float]]:
    """The manifest's entry `lacking`: the part of the products or reviews without metadata or text, where it is notable."""
    parts = {share.what: round(1 - share.value, 6) for share in shares if 1 - share.value >= NOTABLE}
    return {"lacking": parts} if parts else {}


def asked(config: PrepareConfig) -> dict[str, float]:
    """The manifest's entry `min_matched`, which holds for new reviews too; none for the default."""
    return {"min_matched": config.min_matched} if config.min_matched != PrepareConfig.min_matched else {}


def of_market(about: dict[str, Any], like: dict[str, Any]) -> dict[str, float]:
    """The part of the products, and of the weekly reviews, that members learned from, where it is too small.

    Features of a category and of the market count all reviews, so of a part of the products they are other numbers.
    """
    per_week = [one["census"]["rows_kept"] / _weeks(one) for one in (about, like)]
    parts = {"products": about["products"] / like["products"], "weekly reviews": per_week[0] / per_week[1]}
    return {what: part for what, part in parts.items() if part < LEAST_OF_MARKET}


def _weeks(about: dict[str, Any]) -> int:
    first, last = (datetime.date.fromisoformat(about[name]) for name in ("first_week", "last_week"))
    return (last - first).days // 7 + 1


def _example(without: list[str], spill: Path) -> str:
    """A product of the reviews and one of the metadata that seem to be the same, or else one of each."""
    known = [pl.read_ipc_stream(path)["product_id"] for path in sorted(spill.glob("products-*.arrow"))]
    names = pl.concat(known) if known else pl.Series([], dtype=pl.String)
    if not len(names):
        return "and the metadata have no product"
    # In lower case, without blanks, the .0 of floating point, and leading zeros
    plain = pl.col("id").str.strip_chars().str.to_lowercase().str.replace(r"\.0+$", "").str.strip_chars_start("0")
    theirs, ours = (
        pl.DataFrame({"id": ids}, schema={"id": pl.String}).with_columns(plain=plain) for ids in (names, without)
    )
    alike = ours.join(theirs, on="plain", how="inner", maintain_order="left").filter(pl.col("id") != pl.col("id_right"))
    if len(alike):
        return f"and the reviews have '{alike['id'][0]}' where the metadata have '{alike['id_right'][0]}'"
    return f"and the reviews have '{without[0]}', the metadata '{names[0]}'"
