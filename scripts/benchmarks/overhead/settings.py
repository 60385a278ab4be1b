"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overhead(Results):
    """The duration of a step of the training loop relative to a plain PyTorch loop, on one and two ranks; three minutes."""

    rounds: int = 10
    """Blocks of our loop, each between two of the plain one, for each model and number of ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverheadRank:
    """A rank that `overhead` and `emulator_throughput` launch; it writes no results of its own."""

    module: str = "overhead.measure"
    """The module whose function `measure_rank` is called."""
    rounds: int = 10
    """As in the benchmark that launches it."""
    out: str = "???"
    """A folder for the runs and the figures; for `emulator_throughput` it contains the prepared data."""
