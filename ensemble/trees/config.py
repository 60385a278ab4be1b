"""What scripts/train_trees.py can be told. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesConfig:
    """How to grow trees; the names are the field's, translated to each library's own."""

    library: Literal["xgboost", "lightgbm"] = "xgboost"
    """The library that grows them."""
    data: str = "???"
    """The folder of prepared data."""
    out: str = "???"
    """The folder of the member to write."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    learning_rate: float = 0.05
    """Shrinkage of each tree."""
    num_rounds: int = 600
    """Trees at most."""
    early_stopping_rounds: int = 50
    """Stop after so many trees without a better average precision on validation."""
    max_leaves: int = 31
    """Leaves of a tree."""
    min_leaf_weight: float = 10.0
    """Sum of second derivatives that a leaf needs."""
    row_fraction: float = 0.8
    """Part of the rows drawn for each tree."""
    column_fraction: float = 0.5
    """Part of the features drawn for each tree."""
    l2: float = 5.0
    """Penalty on squared leaf values."""
    threads: int = 0
    """OpenMP threads; 0 for as many cores as Slurm, the cgroup and the affinity mask grant."""
    memory: Literal["auto", "in_core", "low"] = "auto"
    """low: XGBoost keeps its rows in files beside `out`, which is slower, and LightGBM takes its bins from fewer of them.

    auto: low if memory is short.
    """
    seed: int = 0
    """Of the draws of rows and features."""
    chunk_rounds: int = 10
    """Trees after which the draws begin anew; what is killed loses at most these and those of checkpoint_s."""
    checkpoint_s: float = 30.0
    """Seconds between checkpoints, which are written where a chunk ends; 0 for one after each chunk."""
    timeout_s: float = 600.0
    """Seconds that the ranks of several nodes wait for all to come, and for each tree."""


FREE_TO_CHANGE = ("data", "out", "overwrite", "threads", "memory", "checkpoint_s", "timeout_s")
"""Settings that may differ when a training goes on: they change where and how it runs, not what it learns.

Of memory that is so for XGBoost; LightGBM goes on in the mode that it began in.
"""
