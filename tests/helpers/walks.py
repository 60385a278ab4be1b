"""Small data for tests of next_item: users who walk through the items, so that the next item follows from the last."""

from pathlib import Path

import numpy as np

from ensemble.recipes.next_item import prepare
from ensemble.recipes.next_item.settings import PrepareConfig

NUM_USERS, NUM_ITEMS = 60, 30


def raw(folder: Path, first_item: int = 1, num_users: int = NUM_USERS, jumps: float = 0.0) -> Path:
    """A file with sequences of 3 to 24 items and their times; the items are numbered from `first_item`.

    jumps : the share of items that do not follow from the one before.
    """
    generator = np.random.default_rng(0)
    lines = []
    for user in range(num_users):
        length = generator.integers(3, 25)
        start, steps = generator.integers(NUM_ITEMS), np.arange(length)
        if jumps:
            steps += np.cumsum(generator.integers(NUM_ITEMS, size=length) * (generator.random(length) < jumps))
        items = (start + steps) % NUM_ITEMS + first_item
        gaps = 60 * generator.integers(0, 9, length)
        gaps[0] = 0  # the format counts from the first item
        lines.append(f"{user + 1} {' '.join(map(str, items))}\t{' '.join(map(str, gaps))}\n")
    (folder / "raw.txt").write_text("".join(lines))
    return folder / "raw.txt"


def prepared(folder: Path, first_item: int = 1) -> Path:
    """The sequences of `raw`, prepared."""
    prepare.prepare(PrepareConfig(source=(str(raw(folder, first_item)),), out=str(folder / "prepared"), core=1))
    return folder / "prepared"
