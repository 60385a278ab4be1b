"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads(Results):
    """The effect of our OpenMP settings while another process is busy, for each tree library; five minutes on two cores."""

    rounds: int = 3
    """Trainings with our settings, each between two with the libraries' defaults; at least 2."""
    num_rows: int = 100_000
    """Generated rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees(Results):
    """Memory and CPU seconds of training trees, and rows predicted per second, beside the bare libraries; ten minutes."""

    rounds: int = 3
    """Trainings of this project, each between two of the bare library; at least 2."""
    num_rows: int = 1_000_000
    """Generated rows of 50 features, and a tenth as many for validation."""
    num_trees: int = 20
    """Trees of each training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesRun:
    """A process that `threads` and `trees` start; it writes no results of its own."""

    data: str = "???"
    """The folder of generated rows."""
    library: Literal["xgboost", "lightgbm"] = "xgboost"
    """The tree library."""
    work: Literal["ours", "bare", "defaults", "predict"] = "ours"
    """Training with this project, with the bare library and our OpenMP settings, with its own defaults; or predictions."""
    memory: Literal["in_core", "low"] = "in_core"
    """As in train_trees.py."""
    num_trees: int = 20
    """Trees to grow."""
    out: str = "???"
    """The JSON file to write."""
