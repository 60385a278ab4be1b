"""Settings of the benchmark in measure.py. Nothing heavy is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints(Results):
    """How long training waits for a checkpoint, written before it goes on or in the background; five minutes, 13 GB."""

    millions: tuple[int, ...] = (10, 100, 500)
    """Parameters of the models, in millions; a size that does not fit into free memory is left out."""
    rounds: int = 3
    """Checkpoints of each kind, of which the medians are given; at least 2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsSharded(Results):
    """As `checkpoints`, with weights sharded over two CPU ranks (FSDP2); two minutes, 4 GB."""

    millions: tuple[int, ...] = (10, 100)
    """As in `checkpoints`."""
    rounds: int = 3
    """As in `checkpoints`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsRun:
    """A process that these benchmarks start; it writes no JSON of its own."""

    millions: int = 10
    """As in `checkpoints`."""
    rounds: int = 3
    """As in `checkpoints`."""
    kind: Literal["synchronous", "asynchronous"] = "synchronous"
    """Whether a checkpoint is written before training goes on, or copied and written in the background."""
    out: str = "???"
    """A folder for the checkpoints and the figures."""
