"""Settings of the recipe hot_sellers. Nothing heavy is imported here, so that `--help` answers at once."""

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
    """Leave out reviews dated after this day (YYYY-MM-DD). Empty: those dated after the file's modification are bad rows."""
    max_bad_fraction: float = 0.01
    """The run stops when more than this part of the rows is bad."""
    min_matched: float = 0.5
    """Where metadata are given, the run stops when less than this part of the reviewed products has any. A forecast also
    stops when less than this part of the reviews has text, if members learned from text; of the part that it was then. It
    holds for new reviews too, also over HTTP."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    panel: PanelConfig = dataclasses.field(default_factory=PanelConfig)
    market: MarketConfig = dataclasses.field(default_factory=MarketConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """The recipe's own settings, under `recipe.` on the command line."""

    width: int = 32
    """Width of the model."""
    num_layers: int = 2
    """Transformer blocks over the weekly series."""
    num_heads: int = 2
    """Heads of each attention; must divide the width."""
    dropout: float = 0.1
    """Dropout on the table and where table, series and text are joined."""
    num_reviews: int = 4
    """Most recent reviews whose text is read; 0 for none."""
    text_layers: int = 1
    """Transformer blocks over the words of a review; 0 for their mean."""
    text_encoder: str = ""
    """A local folder or hub name of a transformers encoder, the same as panel.tokenizer; empty: learned from scratch."""
    freeze_text: bool = True
    """Leave a pretrained text encoder as it is; false fine-tunes it."""
    gradient_checkpointing: bool = False
    """Recompute blocks in the backward pass: slower, with less memory."""
    loss: Literal["bce", "focal"] = "bce"
    """The loss of the head for hot."""
    focal_gamma: float = 2.0
    """How strongly the focal loss turns to what is still wrong."""
    weight_growth: float = 0.3
    """Weight of the head for log growth, beside 1 for hot."""
    weight_rating: float = 0.05
    """Weight of the head for the mean rating of the horizon."""
    weight_engagement: float = 0.0
    """Weight of the head for helpful votes per review of the horizon; 0, since votes are counted at the crawl."""
