"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads(Results):
    """What our OpenMP settings are worth beside a busy neighbour, for each tree library; some five minutes on two cores."""

    rounds: int = 3
    """Trainings with them, each between two with the libraries' defaults; at least 2."""
    num_rows: int = 100_000
    """Generated rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees(Results):
    """Memory and CPU seconds of growing trees, and rows predicted a second, beside the bare libraries; some ten minutes."""

    rounds: int = 3
    """Trainings of ours, each between two of the bare library; at least 2."""
    num_rows: int = 1_000_000
    """Generated rows of 50 features; a tenth more for validation."""
    num_trees: int = 20
    """Trees of each training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesRun:
    """One process that `threads` and `trees` start."""

    data: str = "???"
    """The generated rows."""
    library: Literal["xgboost", "lightgbm"] = "xgboost"
    """Whose trees."""
    work: Literal["ours", "bare", "defaults", "predict"] = "ours"
    """Our training, the library's own with our settings of OpenMP, that with its defaults, or predictions."""
    memory: Literal["in_core", "low"] = "in_core"
    """As in train_trees.py."""
    num_trees: int = 20
    """Trees to grow."""
    out: str = "???"
    """The JSON file to write."""


SCHEMAS: dict[str, type] = {
    "threads": Threads,
    "trees": Trees,
    "trees-run": TreesRun,
}
