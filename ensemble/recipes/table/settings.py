"""Settings of the recipe table. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Any table: which column is predicted, what the others are, and how rows are cut into folds."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of one table: CSV, TSV or JSON lines, each plain or gzip, or Parquet; told by what is in them."""
    target: str = "???"
    """The column to predict; rows in which it is empty are the split forecast."""
    task: Literal["", "binary", "multiclass", "regression", "ranking"] = ""
    """What kind of answer it is; empty to see it in the target: two values, few whole numbers or texts, else regression."""
    metric: str = ""
    """By which members stop early and combiners are compared; empty for log_loss (binary), multiclass_log_loss,
    root_mean_squared_error (regression) or ndcg_at_10 (ranking)."""
    time: str = ""
    """A column of dates or numbers by which folds follow each other; empty for random folds. Hour, weekday, month and day of
    the year of a date are features, the date itself is none."""
    embargo: float = 0.0
    """How long after a row's `time` its target is known, in the unit of `time`, days for dates."""
    group: str = ""
    """A column whose equal rows stay in one fold, are drawn together by the bootstrap and are ranked against each other."""
    weight: str = ""
    """A column of sample weights; empty for 1 each."""
    id: str = ""
    """A column that names a row for people; it is kept as it was written, and is no feature."""
    drop: tuple[str, ...] = ()
    """Columns that are no features: those that are not known yet when a forecast is made."""
    missing: tuple[str, ...] = ()
    """Texts that stand for an empty cell, such as [NA,unknown], in all columns but id and group. Without it NA, N/A, NaN,
    null, None, ? and - stand for one among numbers and dates, but not in the target, and are texts among texts."""
    decimal: Literal["", ".", ","] = ""
    """How numbers are written where a column leaves it open: 1,234 is 1234 with a point, and 1.234 with a comma."""
    dates: Literal["", "day_first", "month_first"] = ""
    """How dates are written where a column leaves it open, as 01/02/2024 does."""
    max_categories: int = 10_000
    """The most frequent texts of a column that become categories; others count as empty."""
    test: float = 0.0
    """Part of the labelled rows to set aside as the split test: drawn at random, or with `time` the last; 0 for none."""
    num_folds: int = 0
    """Folds of cross-validation, 1 for one part that is held out; 0 for 8, for 5 above 10,000 rows, or for 1 above 200,000.
    With `time` the number of blocks, forward in time; 0 for 4."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the lines cannot be read. A column of which no more than this part of the
    cells are no numbers, or no dates, holds numbers or dates, and those cells count as empty; another holds texts."""
    seed: int = 0
    """Of the random folds."""
    overwrite: bool = False
    """Replace `out` if it exists."""


TRAINING = {
    "batch_size": 0,
    "max_epochs": 0.0,
    "learning_rate": 0.0,
    "warmup_steps": 20,
    "clip_norm": 0.0,
    "evaluations_per_epoch": 1,
    "patience": 4,
    "log_every": 20,
}
"""Other defaults of `TrainConfig`; of the first three, 0 is chosen by the number of rows, see sizes.py. The norm of the
gradient is not clipped, since it is that of all copies together: rows that a copy holds out would change its steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """TabM, for any prepared data with flat features; 0 and auto are chosen by the size of the table."""

    num_submodels: int = 0
    """MLPs that share their weights in each copy, whose predictions are averaged (k of TabM)."""
    width: int = 0
    """Neurons of a hidden layer."""
    num_layers: int = 0
    """Hidden layers."""
    num_bins: int = 0
    """Bins of the piecewise-linear embedding of a number."""
    embedding_size: int = 0
    """Length of the embedding of a number."""
    dropout: float = 0.1
    """After each hidden layer."""
    new_rows: Literal["auto", "copies", "refit"] = "auto"
    """Predict new rows by the mean of the copies of cross-validation, or by one more copy that is fitted on all rows; auto
    for refit where only one fold is held out or folds follow each other in time."""
    num_copies: int = 0
    """Copies of cross-validation; 0 for one a fold. Set by the data, and kept with the weights."""
