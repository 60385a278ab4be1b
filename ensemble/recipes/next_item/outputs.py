"""Members of next_item write ranking files instead of prediction files."""

from pathlib import Path
from typing import Any

from ensemble.data.inputs import FORECAST
from ensemble.recipes.next_item import rankings

PREDICTED_SPLITS = ("validation", "test", FORECAST)
"""The train split has no held-out items."""


def write(path: Path, columns: dict[str, Any], split: str, member: str) -> None:
    """Write the predictions of a member or baseline for a split."""
    rankings.write(path, rankings.Rankings(**columns, split=split, member=member))
