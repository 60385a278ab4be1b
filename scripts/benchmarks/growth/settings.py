"""Settings of the benchmark in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth(Results):
    """Growth of CPU seconds and memory with reviews, table rows, parameters and ranks, with fitted exponents; 15 minutes."""

    axes: tuple[str, ...] = ()
    """The sizes that grow, of reviews, rows, parameters and ranks; empty for all."""
    reviews: tuple[int, ...] = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
    """Reviews with text, ten products for each thousand; 8 million need 5 GB of disk."""
    rows: tuple[int, ...] = (10_000, 40_000, 160_000, 640_000, 2_560_000)
    """Rows of a table."""
    widths: tuple[int, ...] = (256, 362, 512, 724, 1024, 1448, 2048)
    """Widths of a network, whose parameters grow with the square."""
    ranks: tuple[int, ...] = (1, 2, 4)
    """Ranks that share a batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthRun:
    """The ranks that `growth` launches; they write no results of their own."""

    width: int = 724
    """The width of the network."""
    batch_size: int = 256
    """Rows of the global batch."""
    num_steps: int = 10
    """Steps whose CPU seconds are measured, after two others."""
    out: str = "???"
    """The JSON file to write."""
