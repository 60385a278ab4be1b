"""What scripts/train_trees.py can be told. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """A search for settings instead of one training; giving `trials` or `seconds` asks for it."""

    trials: int = 0
    """Trainings to try, those of all tasks that share `out` together; 0 for as many as `seconds` allow."""
    seconds: float = 0.0
    """Seconds of trials after which a task begins no further one; 0 for no limit."""
    seed: int = 0
    """Of the settings to try."""
    task: str = ""
    """Name of a task that may be killed and begun again, such as a Slurm job's number; it goes on counting its seconds."""
    lost_after_s: float = 120.0
    """Seconds without a sign of life after which a task is taken for dead, and its trial is done by another."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreesConfig:
    """How to grow trees; the names are the field's, translated to each library's own."""

    library: Literal["xgboost", "lightgbm", "catboost", "both"] = "xgboost"
    """The library that grows them; both: a member by each of the first two, at `out`/xgboost and `out`/lightgbm. CatBoost is
    for data for cross-validation."""
    together: Literal["auto", "one_after_other", "side_by_side"] = "auto"
    """With library=both, each in its turn on all cores, or each on half of them; auto: what a short trial finds faster."""
    data: str = "???"
    """The folder of prepared data."""
    verify: Literal["changed", "full"] = "changed"
    """Prepared data whose checksums are read: files that changed since they were last read, or all files."""
    out: str = "???"
    """The folder of the member to write."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    folds: bool = False
    """Train a bag: a copy on each of the folds that prepare_data.py cut with panel.folds, to `out`/0, `out`/1 and so on."""
    objective: str = ""
    """What to learn: binary, regression, multiclass or ranking; empty for what the data's task asks for.

    Another than the task's own gives scores, of which only the order counts.
    """
    target: str = ""
    """The column of rows to learn, such as growth; empty for the task's. Rows where it is missing are left out.

    A target to be ranked that is no relevance from 0 to 30 is turned into 31 grades within each group.
    """
    metric: str = ""
    """The metric of early stopping, on the task's target whatever was learned; empty for the task's own."""
    monotone: dict[str, int] = dataclasses.field(default_factory=dict)
    """Features with which the prediction may only rise (1) or fall (-1), such as 'monotone={reviews_4w: 1}' for the demo."""
    learning_rate: float = 0.05
    """Shrinkage of each tree."""
    num_rounds: int = 600
    """Trees at most."""
    early_stopping_rounds: int = 50
    """Stop after so many trees without a better score on validation; with several classes a tree stands for one of each."""
    refit: bool = False
    """Then grow as many trees anew on train and validation together: what is newest is learned too, in twice the time. Of
    data for cross-validation: predict new rows with trees grown anew on all rows, not with the mean of the copies; where
    folds are forward in time that is always so."""
    regrow: bool = True
    """Of data for cross-validation: grow each copy anew with the number of trees found, also on the rows that stopped it."""
    num_refits: int = 1
    """Of data for cross-validation: boosters that are grown anew, from different draws, and averaged."""
    max_leaves: int = 31
    """Leaves of a tree."""
    min_leaf_weight: float = 10.0
    """Sum of second derivatives that a leaf needs: of squared errors its rows, of a ranking far less than those."""
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
    max_seconds: float = 0.0
    """Stop growing after so many seconds, and keep the best trees that there are; 0 for no limit. With a limit the member
    depends on the speed of the machine."""
    timeout_s: float = 600.0
    """Seconds that the ranks of several nodes wait for all to come, and for each tree."""
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)


FREE_TO_CHANGE = (
    "data",
    "verify",
    "out",
    "overwrite",
    "folds",
    "together",
    "threads",
    "memory",
    "max_seconds",
    "checkpoint_s",
    "timeout_s",
    "search",
)
"""Settings that may differ when a training goes on: they change where and how it runs, not what it learns.

Of memory that is so for XGBoost; LightGBM goes on in the mode that it began in.
"""
