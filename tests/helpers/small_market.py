"""Small markets of reviews as raw files, for tests of the recipe hot_sellers."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from ensemble import folders
from ensemble.arrow import Column, open_table
from ensemble.recipes.hot_sellers import folds, weekly
from ensemble.recipes.hot_sellers import prepare as panel
from ensemble.recipes.hot_sellers.prepare import TARGETS
from ensemble.recipes.hot_sellers.settings import PanelConfig, PrepareConfig

FIRST_DAY = datetime.datetime(2021, 1, 4, tzinfo=datetime.UTC)  # a Monday
FIRST_WEEK = (FIRST_DAY.date() - weekly.FIRST_MONDAY).days // 7
FIRST_MS = int(FIRST_DAY.timestamp() * 1000)
SUNDAY = 0.999
CATEGORIES = {"A": "Toys", "B": "Toys", "C": "Tools"}


def review(product: str, week: int, part_of_week: float = 0.5, **changes: Any) -> dict[str, Any]:
    """A review in the raw schema of 2023; `week` counts from `FIRST_DAY`."""
    content = {
        "parent_asin": product,
        "asin": product,
        "user_id": f"user of {product}",
        "timestamp": FIRST_MS + week * weekly.WEEK_MS + int(part_of_week * weekly.WEEK_MS),
        "rating": 4.0,
        "title": "good",
        "text": "as it should be",
        "helpful_vote": 1,
        "verified_purchase": True,
        "images": [],
    }
    return content | changes


def write_raw(folder: Path, content: list[dict[str, Any]], name: str = "reviews.jsonl") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in content))
    return str(folder / name)


def product_metadata(identity: Any, category: str = "Toys", **changes: Any) -> dict[str, Any]:
    """The metadata of a product in the raw schema of 2023."""
    defaults = {"title": "", "store": None, "categories": [], "price": None}
    return {"parent_asin": identity, "main_category": category, **defaults, **changes}


def write_metadata(folder: Path, content: list[dict[str, Any]] | None = None) -> str:
    """Write metadata; by default those of `CATEGORIES`."""
    return write_raw(folder, content or [product_metadata(*entry) for entry in CATEGORIES.items()], "meta.jsonl")


def steady_market(num_weeks: int = 20) -> list[dict[str, Any]]:
    """Five products with 1 to 5 reviews a week, whose growth differs, until the last Sunday."""
    return [
        review(product, week, SUNDAY if week == num_weeks - 1 else 0.1 * number, user_id=f"user {number}")
        for order, product in enumerate("ABCDE")
        for week in range(num_weeks)
        for number in range(1 + (order + week * order) % 5)
    ]


SMALL = PanelConfig(horizon_weeks=2, top_fraction=0.4)


def config_for(tmp_path: Path, content: list[dict[str, Any]], panel: PanelConfig = SMALL, **changes: Any) -> PrepareConfig:
    source = (write_raw(tmp_path / "raw", content),)
    return PrepareConfig(**{"out": str(tmp_path / "out"), "source": source, "panel": panel} | changes)


def market_config(raw_market: tuple[Path, Path], out: Path, panel: PanelConfig) -> PrepareConfig:
    """The settings to prepare the files of the fixture `raw_market`."""
    source, metadata = ((str(file),) for file in raw_market)
    return PrepareConfig(out=str(out), source=source, metadata=metadata, panel=panel)


def prepare_every_week(config: PrepareConfig) -> dict[str, Any]:
    """Prepare with all labelled weeks in one split, so that no row is lost to an embargo."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "split_weeks", lambda first, last, rows, panel: {"train": (first, first + len(rows) - 1)})
        return panel.prepare(config)


def gather(folder: Path, split: str, with_targets: bool = False) -> dict[tuple[str, int], tuple[Any, ...]]:
    """What a member can see of each row, by product and week (from `FIRST_DAY`): bits of features, weeks, reviews."""
    rows, weeks, texts = (open_table(folder / name) for name in (f"rows/{split}", "weeks", "reviews"))
    ids = open_table(folder / "products")["product_id"].to_pylist()
    names = [feature["name"] for feature in folders.read_json(folder / "manifest.json")["features"]]
    bits = [Column(rows, name).all() for name in (*names, *(TARGETS if with_targets else ()))]
    series = [Column(weeks, name).all() for name in weeks.column_names]
    read = [Column(texts, name).all() for name in texts.column_names]
    seen = {}
    for number, row in enumerate(rows.select(panel.INDEX_COLUMNS).to_pylist()):
        key = (ids[row["product"]], row["week"] - FIRST_WEEK)
        assert key not in seen
        active, known = (slice(row[f"{name}_begin"], row[f"{name}_end"]) for name in ("weeks", "reviews"))
        seen[key] = (
            [column[number].tobytes() for column in bits],
            [column[active].tobytes() for column in series],
            [column[known].tobytes() for column in read],
        )
    return seen
