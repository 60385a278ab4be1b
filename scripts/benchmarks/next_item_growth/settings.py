"""Settings of the benchmark in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemGrowth(Results):
    """Growth of the cost of next_item with the length of sequences, the items and the users; five minutes."""

    rounds: int = 5
    """Measurements of each kind and size, of which the median is used."""
    doublings: int = 4
    """The number of times that each size is doubled."""
    axes: tuple[str, ...] = ()
    """The sizes to double, of length, items and users; empty for all."""
    length: int = 25
    """The smallest length of sequences."""
    items: int = 4000
    """The smallest number of items."""
    users: int = 4000
    """The smallest number of users."""
    picture: str = "slurm/results/next_item_growth.png"
    """The PNG to draw; empty for none."""
