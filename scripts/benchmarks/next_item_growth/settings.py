"""Settings of the benchmark in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemGrowth(Results):
    """How the cost of next_item grows with the length of sequences, the items and the users; some five minutes."""

    rounds: int = 5
    """Pieces of work whose median counts, of each kind and size."""
    doublings: int = 4
    """How often each size is doubled."""
    axes: tuple[str, ...] = ()
    """Of length, items and users, those to double; empty for all."""
    length: int = 25
    """The smallest length of sequences."""
    items: int = 4000
    """The smallest number of items."""
    users: int = 4000
    """The smallest number of users."""
    picture: str = "slurm/results/next_item_growth.png"
    """The PNG to draw; empty for none."""


SCHEMAS: dict[str, type] = {"next_item_growth": NextItemGrowth}
