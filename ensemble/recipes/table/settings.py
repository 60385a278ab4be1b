"""Settings of the recipe table. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Any table: which column is predicted, what the others are, and how rows are split."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of one table: CSV, TSV or JSON lines, each plain or gzip, or Parquet; told by what is in them."""
    target: str = "???"
    """The column to predict; rows in which it is empty are the split forecast."""
    task: Literal["", "binary", "multiclass", "regression", "ranking"] = ""
    """What kind of answer it is; empty to see it in the target: two values, few whole numbers or texts, else regression."""
    metric: str = ""
    """By which members stop early and combiners are compared; empty for average_precision (binary), multiclass_log_loss,
    root_mean_squared_error (regression) or ndcg_at_10 (ranking)."""
    time: str = ""
    """A column of dates or numbers by which the splits follow each other, and no feature; empty to split at random."""
    embargo: float = 0.0
    """What is left out between two splits, in the unit of `time`, days for dates: how far ahead the target looks."""
    group: str = ""
    """A column whose equal rows stay in one split, are drawn together by the bootstrap and are ranked against each other."""
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
    max_categories: int = 256
    """Texts of more different values than this are left out, others become categories."""
    shares: tuple[float, float, float, float] = (0.55, 0.15, 0.15, 0.15)
    """The parts of the rows that go to train, validation, blend and test."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the lines cannot be read. A column of which no more than this part of the
    cells are no numbers, or no dates, holds numbers or dates, and those cells count as empty; another holds texts."""
    seed: int = 0
    """Of the random split."""
    overwrite: bool = False
    """Replace `out` if it exists."""
