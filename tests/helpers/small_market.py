"""Small markets of reviews as raw files, for tests of the recipe hot_sellers."""

import datetime
import json
from pathlib import Path
from typing import Any

from ensemble.recipes.hot_sellers import weekly
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


def write_metadata(folder: Path) -> str:
    about = {"title": "", "store": None, "categories": [], "price": None}
    content = [{"parent_asin": product, "main_category": category, **about} for product, category in CATEGORIES.items()]
    return write_raw(folder, content, "meta.jsonl")


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
