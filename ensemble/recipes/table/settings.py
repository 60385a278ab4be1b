"""Settings of the recipe table. No large library is imported here, so that `--help` responds quickly."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe table: the target, the roles of other columns, and the folds."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of one table: CSV, TSV or JSON lines, plain or gzip, or Parquet; the format is detected."""
    target: str = "???"
    """The column to predict; rows where it is empty form the split forecast."""
    task: Literal["", "binary", "multiclass", "regression", "ranking"] = ""
    """The kind of task; empty to infer it from the target: binary for two different values, multiclass for at most
    10 different whole numbers or 100 different texts, regression for other numbers. With a metric of regression, any numeric
    target is a regression."""
    metric: str = ""
    """The metric for early stopping and the leaderboard. Binary: log_loss (the default), roc_auc, average_precision or
    accuracy; multiclass: multiclass_log_loss or accuracy; regression: root_mean_squared_error or mean_absolute_error;
    ranking: ndcg_at_10. With mean_absolute_error the ensemble minimises the absolute error: it predicts medians, which are
    below the means if large values of the target are rare."""
    time: str = ""
    """A column of dates or numbers that orders the folds in time; empty for random folds. The hour of a date is a feature if
    the training rows cover a day, its weekday if they cover a week, its month and day of the year if they cover a year. The
    date itself is not, unless the target has a trend (see trend.py)."""
    embargo: float = 0.0
    """The time from a row's `time` until its target is known, in the unit of `time`, or in days for dates."""
    group: str = ""
    """A column of groups. The rows of a group form one cluster of the bootstrap and stay in one fold. With `time` they may
    be in several folds, but the copy that predicts a fold is not fitted on rows of its groups. In a ranking task the rows
    of a group are ranked against each other."""
    weight: str = ""
    """A column of sample weights; empty for 1 each."""
    id: str = ""
    """A column that identifies rows in the forecast; its texts are copied unchanged, and it is not a feature."""
    drop: tuple[str, ...] = ()
    """Columns that are not features, such as those that are not yet known when a forecast is made."""
    categorical: tuple[str, ...] = ()
    """Columns of categories that look like numbers or dates, such as [zip,store]. Columns with a categorical type of
    pandas or polars need not be named."""
    missing: tuple[str, ...] = ()
    """Texts that mark missing values, such as [NA,unknown], in all columns except id and group. If none are given,
    NA, N/A, NaN, null, None, ? and - do so in columns of numbers, dates and booleans, but not in the target or in columns of
    texts."""
    decimal: Literal["", ".", ","] = ""
    """The decimal separator of numbers that are stored as text, needed if it is ambiguous and no other column shows it:
    with `.` the text 1,234 is 1234, with `,` it is 1.234."""
    dates: Literal["", "day_first", "month_first"] = ""
    """The order of day and month in columns where it is ambiguous, as in 01/02/2024, and no other column shows it."""
    max_categories: int = 10_000
    """Largest number of categories of a column; less frequent texts count as missing."""
    test: float = 0.0
    """Fraction of the labelled rows for the split test: a random sample, or with `time` the last rows; 0 for none."""
    num_folds: int = 0
    """Number of folds of cross-validation, 3 or more; 1 for a single held-out part. 0: 8 for at most 10,000 rows, 5 for at
    most 200,000, else 1; with `group` always at least 3. With `time`: the number of consecutive blocks of time to predict;
    0 for 4."""
    max_bad_fraction: float = 0.01
    """Largest fraction of lines that cannot be read; with more, the preparation stops. A column holds numbers (or dates) if
    at most this fraction of its non-empty cells are not numbers (dates), which count as missing. Else it holds texts."""
    seed: int = 0
    """Random seed of the folds, and without `time` of the split test."""
    overwrite: bool = False
    """Replace `out` if it exists."""


TRAINING = {
    "batch_size": 0,
    "max_epochs": 0.0,
    "learning_rate": 0.0,
    "warmup_steps": 20,
    "clip_norm": 0.0,
    "evaluations_per_epoch": 1,
    "patience": 16,
    "log_every": 20,
}
"""Defaults that replace those of `TrainConfig`. The first three are derived from the number of rows and the kind of task
if they are 0, see sizes.py. The gradient is not clipped, since its norm depends on all copies: rows that one copy holds out
would change the steps of that copy through the other copies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of the network TabM, for any prepared data with flat features.

    A value of 0 or auto, except `dropout=0`, is replaced by one that is derived from the data, see sizes.py. Each copy holds
    out one fold.
    """

    num_submodels: int = 0
    """Number of MLPs in a copy, which share weights and whose predictions are averaged (k of TabM); 0: derived from the
    numbers of rows and classes."""
    width: int = 0
    """Number of neurons of a hidden layer; 0: derived from the numbers of rows and classes."""
    num_layers: int = 0
    """Number of hidden layers; 0 for 2."""
    num_bins: int = 0
    """Number of bins of the piecewise-linear embedding of a numerical feature; 0 for 32 in regression, else 16."""
    embedding_size: int = 0
    """Length of the embedding of a numerical feature; 0: smaller for more features."""
    dropout: float = 0.1
    """Dropout rate after each hidden layer."""
    new_rows: Literal["auto", "copies", "refit"] = "auto"
    """copies: predict new rows by the mean of the copies of cross-validation. refit: predict them by one more copy that is
    fitted on all rows. auto: refit for folds forward in time, and for a single held-out part of at most 200,000 rows, else
    copies."""
    num_copies: int = 0
    """Number of copies of cross-validation; 0 for one per fold, the only valid number. It is stored with the weights."""
