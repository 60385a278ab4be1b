"""For tests of folds: the bits that can be learned from a row, and the same market with another future."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_market import market_config

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.recipes.hot_sellers import folds, prepare, weekly
from ensemble.recipes.hot_sellers.prepare import TARGETS
from ensemble.recipes.hot_sellers.settings import PanelConfig


def week_of(milliseconds: int) -> int:
    day = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).date()
    return (day - weekly.FIRST_MONDAY).days // 7


def weeks_of(splits: dict[str, Any]) -> dict[str, tuple[int, int]]:
    number = {split: (facts["first_week"], facts["last_week"]) for split, facts in splits.items()}
    dates = {split: tuple(datetime.date.fromisoformat(day) for day in days) for split, days in number.items()}
    return {split: tuple((day - weekly.FIRST_MONDAY).days // 7 for day in days) for split, days in dates.items()}


def content(folder: Path, split: str) -> dict[tuple[str, int], bytes]:
    """What can be learned from each row, by product and week: the bits of its features and targets."""
    ids = open_table(folder / "products")["product_id"].to_pylist()
    rows = open_table(folder / "rows" / split)
    names = [feature["name"] for feature in folders.read_manifest(folder)["features"]]
    bits = np.stack([rows[name].to_numpy() for name in (*names, *TARGETS)], axis=1)
    keys = zip(rows["product"].to_pylist(), rows["week"].to_pylist(), strict=True)
    bits_of = {(ids[product], week): row.tobytes() for (product, week), row in zip(keys, bits, strict=True)}
    assert len(bits_of) == rows.num_rows
    return bits_of


def prepare_changed(folded: Path, raw_market: tuple[Path, Path], out: Path, after: int) -> Path:
    """The same market with the same splits; of the reviews after week `after`, some are missing and the others changed."""
    manifest = folders.read_manifest(folded)
    lines = raw_market[0].read_text(encoding="utf-8").splitlines()
    last = max(json.loads(line)["timestamp"] for line in lines)
    kept = []
    for number, line in enumerate(lines):
        review = json.loads(line)
        if week_of(review["timestamp"]) > after and review["timestamp"] < last:
            if number % 3 == 0:
                continue
            review |= {"rating": 1.0, "text": "awful", "title": "awful", "helpful_vote": 7}
        kept.append(json.dumps(review))
    source = out.with_name(f"{out.name}.jsonl")
    source.write_text("\n".join(kept) + "\n", encoding="utf-8")
    weeks_of_folds = [weeks_of(fold["splits"]) for fold in manifest["folds"]]
    weeks_of_splits = {split: weeks for split, weeks in weeks_of(manifest["splits"]).items() if split != "forecast"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "all_weeks", lambda *_: (weeks_of_splits, weeks_of_folds))
        prepare.prepare(market_config((source, raw_market[1]), out, PanelConfig(**manifest["config"])))
    return out
