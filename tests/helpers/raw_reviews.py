"""Reviews of Amazon as raw files, read back, for tests of the readers."""

import json
from pathlib import Path

import polars as pl
import pytest

from ensemble.data.reviews import REVIEW_SCHEMA, Census, read_reviews

SHARED = Path(__file__).parents[3] / "shared" / "data"
NOON_MS = 1_600_000_000_000  # 13 September 2020
UNTIL_MS = 1_700_000_000_000


def review(**changes):
    """A row of Amazon Reviews 2023; a change to `...` leaves the field out."""
    row = {
        "rating": 5.0,
        "title": "Fine",
        "text": 'Works, as "new"\nand é',
        "images": [{"small_image_url": "s", "attachment_type": "IMAGE"}],
        "asin": "B001",
        "parent_asin": "P001",
        "user_id": "U001",
        "timestamp": NOON_MS,
        "helpful_vote": 3,
        "verified_purchase": True,
    } | changes
    return {name: value for name, value in row.items() if value is not ...}


def json_lines(*rows):
    return "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows).encode()


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(*files, census=None, **options):
    """All blocks as one frame, after checking what holds for every read."""
    census = Census() if census is None else census
    frames = list(read_reviews(files, census, **options))
    for frame in frames:
        assert frame.schema == pl.Schema(REVIEW_SCHEMA)
        assert frame.height > 0  # callers take its minimum
    assert census.rows_read == census.rows_kept + sum(census.dropped.values())
    frame = pl.concat(frames) if frames else pl.DataFrame(schema=REVIEW_SCHEMA)
    assert frame.height == census.rows_kept
    return frame


def bad_lines(census):
    return {kind: [example.line for example in examples] for kind, examples in census.examples.items()}


def real(name):
    if not (SHARED / name).exists():
        pytest.skip(f"the real file {name} is not in ../shared/data beside this checkout")
    return SHARED / name
