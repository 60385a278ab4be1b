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
    """A rank that `overhead` launches; it writes no results of its own."""

    rounds: int = 10
    """As in the benchmark that launches it."""
    out: str = "???"
    """A folder for the runs and the figures."""
