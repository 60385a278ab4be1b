"""What next_item members write: ranking files instead of prediction files."""

from pathlib import Path
from typing import Any

from ensemble.recipes.next_item import rankings

PREDICTED_SPLITS = ("validation", "test")
"""In train, no item is kept back to be predicted."""


def write(path: Path, columns: dict[str, Any], split: str, member: str) -> None:
    """Write what a member or baseline returned for a split."""
    rankings.write(path, rankings.Rankings(**columns, split=split, member=member))
