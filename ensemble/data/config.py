"""What scripts/prepare_data.py can be told. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
import datetime
from typing import Literal

from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarketConfig:
    """What to simulate; `UserError` for a size below one, a negative seed, or a first day that is no Monday since 1995."""

    num_products: int = 3000
    """Products in the catalogue, also those that nobody reviews."""
    num_reviews: int = 200_000
    """Reviews in expectation; what is drawn lies within about 2 % of it."""
    num_weeks: int = 156
    """Calendar weeks from the first day; no review lies outside them."""
    first_day: str = "2020-10-05"
    """The first day of the first week, a Monday, as YYYY-MM-DD."""
    seed: int = 0
    """One seed gives the same files, byte for byte."""
    with_text: bool = True
    """Whether reviews have titles and texts; without, both are empty, and the file is a quarter smaller."""

    def __post_init__(self) -> None:
        for name in ("num_products", "num_reviews", "num_weeks"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} is not possible: choose at least 1")
        if self.seed < 0:
            raise UserError(f"seed={self.seed} is not possible: choose 0 or more")
        try:
            day = datetime.datetime.strptime(self.first_day, "%Y-%m-%d").date()
            last_day = day + datetime.timedelta(weeks=self.num_weeks)
        except (ValueError, OverflowError):
            raise UserError(
                f"first_day={self.first_day} with num_weeks={self.num_weeks} gives no calendar: write a day as YYYY-MM-DD"
            ) from None
        if day.weekday() != 0:
            monday = day - datetime.timedelta(days=day.weekday())
            raise UserError(f"first_day={self.first_day} is a {day:%A}: weeks begin on Mondays, such as {monday}")
        if day.year < 1995 or last_day.year > 2100:
            raise UserError(f"the weeks from {day} to {last_day} leave the years 1995 to 2100: move first_day or num_weeks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelConfig:
    """What becomes a row, what it is called hot for, and how rows are split."""

    horizon_weeks: int = 12
    """How far ahead the label looks, in weeks; also the embargo between two splits."""
    base_weeks: int = 4
    """The weeks up to t that growth is measured against."""
    top_fraction: float = 0.05
    """The part of each week's rows, at most, that is called hot."""
    min_reviews: int = 1
    """Reviews that a product needs in its base weeks to be a row."""
    shares: tuple[float, float, float, float] = (0.55, 0.15, 0.15, 0.15)
    """The parts of the labelled weeks, embargoes taken off, that go to train, validation, blend and test."""
    folds: int = 0
    """Folds forward in time, for bags of members; 0 for none. They cost little room: what they share is stored once."""
    as_of_crawl: bool = False
    """Also the features that only the crawl knew (price, helpful votes): good on paper, not to be had in a real forecast."""
    num_tokens: int = 24
    """Words kept of each review; 0 leaves the text out."""
    vocabulary_size: int = 8192
    """Size of the hashed vocabulary, at most 65536."""
    tokenizer: str = ""
    """A local folder or hub name of a transformers tokenizer, for a pretrained text encoder; empty hashes words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Everything that scripts/prepare_data.py takes for hot_sellers."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Review files, globs, or hub:Category of Amazon Reviews 2023; empty for the generated market."""
    metadata: tuple[str, ...] = ()
    """Product metadata files, globs, or hub:Category; optional."""
    raw: str = ""
    """The folder for generated or downloaded raw files; empty for the name of `out` with -raw."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For tables with unknown headers: product_id, user_id, rating and time, each with its column's name."""
    until: str = ""
    """Reviews dated after this day (YYYY-MM-DD) are impossible; empty for the file's own modification date."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the rows is bad."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    panel: PanelConfig = dataclasses.field(default_factory=PanelConfig)
    market: MarketConfig = dataclasses.field(default_factory=MarketConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig:
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
    """A column that names a row for people; it is kept as text, and is no feature."""
    drop: tuple[str, ...] = ()
    """Columns that are no features: those that are not known yet when a forecast is made."""
    max_categories: int = 256
    """Texts of more different values than this are left out, others become categories."""
    shares: tuple[float, float, float, float] = (0.55, 0.15, 0.15, 0.15)
    """The parts of the rows that go to train, validation, blend and test."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the lines cannot be read."""
    seed: int = 0
    """Of the random split."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequencesConfig:
    """Everything that scripts/prepare_data.py takes for next_item."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files, globs, or hub:Category of Amazon Reviews 2023: who took which item, when."""
    format: Literal["auto", "reviews", "ratings", "pairs", "sequences", "gaps"] = "auto"
    """What a line of text holds; auto looks. ensemble/data/interactions.py shows one of each."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For tables with unknown headers: product_id, user_id, rating and time, each with its column's name."""
    raw: str = ""
    """The folder for downloaded raw files; empty for the name of `out` with -raw."""
    repeats: Literal["keep", "first"] = "keep"
    """first: of the same item taken again by the same user, only the first time."""
    core: int = 5
    """Leave out users and items with fewer interactions, until none is left; 1 keeps all. With split=time those before
    `validation_from` are counted, such users are only not learned from, and all are foretold."""
    split: Literal["leave_one_out", "time"] = "leave_one_out"
    """leave_one_out: each user's last item is test, the one before validation, as published tables have it. time: what
    happens from `test_from` on is test, for all users at once, so that nothing is learned from the future."""
    validation_from: str = "2021-08-11 00:56:54.042"
    """split=time: the first moment (UTC, or with an offset) of validation; the default is that of Amazon Reviews 2023."""
    test_from: str = "2022-07-16 20:18:49.837"
    """split=time: the first moment of test."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the rows is bad."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidatesConfig:
    """Items that next_item members rank highest, as a table for trees and an ensemble to rank again."""

    out: str = "???"
    """The folder of prepared data to write."""
    data: str = "???"
    """The prepared data of next_item that the ranking files are of."""
    rankings: tuple[str, ...] = ()
    """Folders of ranking files, of validation and test, that scripts/predict.py wrote."""
    num_candidates: int = 200
    """The best items of each ranking file that are candidates of a sequence."""
    num_learned: int = 50
    """Candidates of a sequence that are kept in train and validation: the one that was taken, and others drawn at random."""
    shares: tuple[float, float, float] = (0.6, 0.15, 0.25)
    """The parts of the validation sequences that go to train, validation and blend."""
    seed: int = 0
    """Of these draws; with split=leave_one_out also of which user goes where."""
    overwrite: bool = False
    """Replace `out` if it exists."""


PREPARE: dict[str, type] = {
    "candidates": CandidatesConfig,
    "hot_sellers": PrepareConfig,
    "next_item": SequencesConfig,
    "table": TableConfig,
}
"""A recipe's name, and the settings of its preparation."""
