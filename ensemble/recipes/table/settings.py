"""Settings of the recipe table. Nothing heavy is imported here, so that `--help` answers at once."""

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
    """The kind of task; empty to infer it: two values are binary, few whole numbers or texts multiclass, else regression."""
    metric: str = ""
    """The metric for early stopping and for comparing combiners; empty for log_loss (binary), multiclass_log_loss,
    root_mean_squared_error (regression) or ndcg_at_10 (ranking)."""
    time: str = ""
    """A column of dates or numbers that orders the folds in time; empty for random folds. Hour, weekday, month and day of
    the year of a date are features, but not the date itself."""
    embargo: float = 0.0
    """Time after a row's `time` until its target is known, in the unit of `time`, days for dates."""
    group: str = ""
    """A column. Rows with equal values stay in one fold, form a bootstrap cluster, and are ranked against each other."""
    weight: str = ""
    """A column of sample weights; empty for 1 each."""
    id: str = ""
    """A column that identifies rows in the forecast; it is kept as written, and is not a feature."""
    drop: tuple[str, ...] = ()
    """Columns that are not features, such as those that are not yet known when a forecast is made."""
    missing: tuple[str, ...] = ()
    """Texts that mark missing values, such as [NA,unknown], in all columns except id and group. By default NA, N/A, NaN,
    null, None, ? and - do so in columns of numbers and dates, but not in the target or in columns of texts."""
    decimal: Literal["", ".", ","] = ""
    """The decimal separator of columns in which it is ambiguous: 1,234 is 1234 with a point, 1.234 with a comma."""
    dates: Literal["", "day_first", "month_first"] = ""
    """The order of day and month in columns where it is ambiguous, as in 01/02/2024."""
    max_categories: int = 10_000
    """Largest number of categories of a column; less frequent texts count as missing."""
    test: float = 0.0
    """Fraction of the labelled rows for the split test: a random sample, or with `time` the last rows; 0 for none."""
    num_folds: int = 0
    """Folds of cross-validation, 1 for a single held-out part; 0 for 8, for 5 above 10,000 rows, or for 1 above 200,000.
    With `time` the number of blocks, forward in time; 0 for 4."""
    max_bad_fraction: float = 0.01
    """Largest fraction of lines that cannot be read; the run stops above it. A column holds numbers (or dates) if at most
    this fraction of its cells is neither empty nor a number (date); these cells count as missing. Else it holds texts."""
    seed: int = 0
    """Random seed of the folds."""
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
"""Other defaults of `TrainConfig`; the first three, if 0, follow from the number of rows, see sizes.py. The gradient is not
clipped: its norm is that of all copies together, so that rows that a copy holds out would change the steps of this copy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of TabM, for any prepared data with flat features; 0 and auto follow from the size of the table."""

    num_submodels: int = 0
    """MLPs of a copy that share weights, whose predictions are averaged (k of TabM); 0: by rows and classes."""
    width: int = 0
    """Neurons of a hidden layer; 0: by rows and classes."""
    num_layers: int = 0
    """Number of hidden layers; 0 for a number by table size."""
    num_bins: int = 0
    """Bins of the piecewise-linear embedding of a numerical feature; 0 for a number by table size."""
    embedding_size: int = 0
    """Length of the embedding of a numerical feature; 0 for a number by table size."""
    dropout: float = 0.1
    """Dropout rate after each hidden layer."""
    new_rows: Literal["auto", "copies", "refit"] = "auto"
    """copies: predict new rows by the mean of the copies of cross-validation. refit: by one more copy that is fitted on all
    rows. auto: refit for a single held-out part and for folds forward in time, else copies."""
    num_copies: int = 0
    """Copies of cross-validation; 0 for one per fold. It follows from the data and is stored with the weights."""
