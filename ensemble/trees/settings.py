"""Settings of scripts/train_trees.py. No large library is imported here, so that `--help` is fast."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """A search for settings instead of one training; it starts if `trials` or `seconds` is above 0."""

    trials: int = 0
    """Number of trials of all processes that share `out` together; 0 for as many as `seconds` allow."""
    seconds: float = 0.0
    """Seconds of trials after which a process starts no further trial; 0 for no limit."""
    seed: int = 0
    """Seed of the settings to try."""
    task: str = ""
    """A name under which this process can be resumed, such as the number of a Slurm job; the seconds of its runs add up."""
    lost_after_s: float = 120.0
    """Seconds without a heartbeat after which a process counts as dead, and another process repeats its trial."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesConfig:
    """How to train trees; each setting is translated to the library's own name."""

    library: Literal["xgboost", "lightgbm", "catboost", "extra_trees", "linear", "both"] = "xgboost"
    """The library. extra_trees is a mean of deep random trees, linear a ridge or logistic regression. both trains a member
    with XGBoost and one with LightGBM, in `out`/xgboost and `out`/lightgbm. catboost, extra_trees and linear are trained by
    one rank, in memory. catboost and linear stop early by the loss that they minimise, whatever `metric` is; extra_trees
    does not. catboost does not use min_leaf_weight, row_fraction and column_fraction; extra_trees uses num_rounds,
    column_fraction (for each split) and min_leaf_weight (rows); linear uses no setting of trees."""
    together: Literal["auto", "one_after_other", "side_by_side"] = "auto"
    """With library=both: train one after the other on all cores, or side by side on half of the cores each; auto: the faster
    way in a short trial."""
    data: str = "???"
    """The folder of prepared data."""
    verify: Literal["changed", "full"] = "changed"
    """Files of the data whose checksums are verified: those changed since they were last read, or all (full)."""
    out: str = "???"
    """The folder of the member to write."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    folds: bool = False
    """Train a bag: a copy on each of the folds that prepare_data.py cut with panel.folds, to `out`/0, `out`/1 and so on."""
    objective: str = ""
    """The objective: binary, regression, absolute_error, multiclass or ranking; empty for the kind of the data's task, or
    absolute_error if its metric is mean_absolute_error. extra_trees and linear minimise the squared error with regression
    and with absolute_error.

    In a binary or ranking task, the objective and `target` may be others than the task's. Then predictions are scores, of
    which only the order has a meaning.
    """
    target: str = ""
    """The column to learn, such as growth; empty for the task's. Rows without a value in it are left out.

    With objective=ranking, values are converted to 31 grades within each group, unless all are whole numbers from 0 to 30.
    """
    metric: str = ""
    """The metric of early stopping of xgboost and lightgbm, on the task's target. Empty: the metric of the task, or the
    log loss if that is accuracy, or if the rows for early stopping have fewer than 20 of one of two classes."""
    monotone: dict[str, int] = dataclasses.field(default_factory=dict)
    """Features with which the prediction may only rise (1) or fall (-1), such as 'monotone={reviews_4w: 1}' for the demo."""
    learning_rate: float = 0.05
    """Shrinkage of each tree."""
    num_rounds: int = 600
    """The largest number of rounds; a round is a tree, or with several classes a tree for each class."""
    early_stopping_rounds: int = 50
    """Stop after this number of rounds without a better score on validation."""
    refit: bool = False
    """After early stopping, train the same number of trees twice more: on train and validation to predict blend, and with
    blend added to predict test and new rows. The trees then learn from the newest rows, and training takes about three
    times as long with num_refits=1. On data for cross-validation: predict new rows with trees trained on all rows, not with
    the mean of the copies; with forward folds this is always so."""
    regrow: bool = True
    """On data for cross-validation: train each copy again with the best number of trees, with its validation rows added."""
    num_refits: int = 1
    """The number of boosters, each with its own seed, that are averaged in each refit (refit=true, or forward folds)."""
    max_leaves: int = 31
    """The largest number of leaves of a tree."""
    min_leaf_weight: float = 0.0
    """The smallest sum of second derivatives in a leaf: for squared errors the number of rows, for rankings much less. 0
    means 1 for multiclass, otherwise 10, or less: for binary a twentieth of the sum over all rows, and with lightgbm for
    rankings a tenth of the number of groups."""
    row_fraction: float = 0.8
    """Fraction of the rows drawn for each tree."""
    column_fraction: float = 0.5
    """Fraction of the features drawn for each tree."""
    l2: float = 5.0
    """Penalty on squared leaf values."""
    threads: int = 0
    """OpenMP threads; 0 for as many cores as Slurm, the cgroup and the affinity mask grant, or outside of Slurm
    OMP_NUM_THREADS if that is less."""
    memory: Literal["auto", "in_core", "low"] = "auto"
    """low: XGBoost keeps its rows in files beside `out`, which is slower, and LightGBM computes its bins from fewer rows.

    auto: low if memory is short.
    """
    seed: int = 0
    """Seed of the draws of rows and features."""
    chunk_rounds: int = 10
    """Number of rounds after which the random generators are seeded again; checkpoints are written only there."""
    checkpoint_s: float = 30.0
    """Seconds between checkpoints, which are written at the end of a chunk; 0 for one after each chunk."""
    max_seconds: float = 0.0
    """Stop training after this number of seconds, and keep the best trees so far; 0 for no limit. It holds for each library
    of library=both, and for each copy of folds=true. With a limit, the member depends on the speed of the machine:
    if the time is short, `learning_rate` is raised (catboost; on data for cross-validation also xgboost and lightgbm)."""
    timeout_s: float = 600.0
    """Seconds that the ranks of several nodes wait for all ranks to start, and for each tree."""
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)


FREE_TO_CHANGE = (
    "data", "verify", "out", "overwrite", "folds", "together", "threads", "memory", "max_seconds", "checkpoint_s",
    "timeout_s", "search",
)  # fmt: skip
"""Settings that may differ when a training is resumed: they change where and how it runs, but not its result.

Three are exceptions. `max_seconds` may end the training earlier, or raise the learning rate. In another mode of `memory`,
LightGBM or the absolute error would give other trees, so there memory=auto resumes in the first mode, and another value is
an error. With other `threads`, the last bits of XGBoost may differ.
"""
