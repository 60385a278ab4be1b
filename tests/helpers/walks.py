"""Small data for tests of next_item: users who walk through the items, so that the next item follows from the last."""

from pathlib import Path

import numpy as np

from ensemble.recipes.next_item import prepare
from ensemble.recipes.next_item.settings import PrepareConfig

NUM_USERS, NUM_ITEMS = 60, 30


def prepared(folder: Path, first_item: int = 1) -> Path:
    """Sequences of 3 to 24 items and their times, prepared; the items are numbered from `first_item`."""
    generator = np.random.default_rng(0)
    lines = []
    for user in range(NUM_USERS):
        length = generator.integers(3, 25)
        items = (generator.integers(NUM_ITEMS) + np.arange(length)) % NUM_ITEMS + first_item
        gaps = 60 * generator.integers(0, 9, length)
        gaps[0] = 0  # the format counts from the first item
        lines.append(f"{user + 1} {' '.join(map(str, items))}\t{' '.join(map(str, gaps))}\n")
    (folder / "raw.txt").write_text("".join(lines))
    prepare.prepare(PrepareConfig(source=(str(folder / "raw.txt"),), out=str(folder / "prepared"), core=1))
    return folder / "prepared"
