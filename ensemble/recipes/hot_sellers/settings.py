"""Settings of the recipe hot_sellers. Nothing heavy is imported here, so that `--help` answers at once."""

import dataclasses
import datetime
from typing import Literal

from ensemble import configuration
from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarketConfig:
    """The simulated market. Raises `UserError` for sizes below 1, a negative seed, and weeks that begin on another day than
    Monday or are not in the years 1995 to 2100.
    """

    num_products: int = 3000
    """Products in the catalogue, including products without reviews."""
    num_reviews: int = 200_000
    """Expected number of reviews; the number drawn is within about 2 % of it."""
    num_weeks: int = 156
    """Calendar weeks, beginning with the first day; all reviews are dated in these weeks."""
    first_day: str = "2020-10-05"
    """The first day of the first week, a Monday, as YYYY-MM-DD."""
    seed: int = 0
    """Random seed; the same seed gives the same files, byte for byte."""
    with_text: bool = True
    """Whether reviews have titles and texts; otherwise both are empty, and the file is a quarter smaller."""

    def __post_init__(self) -> None:
        configuration.check(self, "market.", at_least_1="num_products num_reviews num_weeks", at_least_0="seed")
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
    """Which product-weeks become rows, which rows are hot, and how rows are split."""

    horizon_weeks: int = 12
    """Weeks after week t that the label covers; also the number of weeks left out between two splits."""
    base_weeks: int = 4
    """Weeks up to week t with which growth compares the weeks after it."""
    top_fraction: float = 0.05
    """Largest fraction of each week's rows that are hot."""
    min_reviews: int = 1
    """Smallest number of reviews in the base weeks for a product to be a row in a week."""
    shares: tuple[float, float, float, float] = (0.55, 0.15, 0.15, 0.15)
    """Fractions of the labelled rows for train, validation, blend and test; each split consists of whole weeks."""
    folds: int = 0
    """Folds forward in time, for bagged members; 0 for none. Data that folds share are stored once."""
    as_of_crawl: bool = False
    """Add features known only when the data were crawled (price, helpful votes). A real forecast does not have them."""
    num_tokens: int = 24
    """Words of each review that are used; 0 leaves the text out."""
    vocabulary_size: int = 8192
    """Size of the hashed vocabulary, at most 65536."""
    tokenizer: str = ""
    """A local folder or hub name of a transformers tokenizer, for a pretrained text encoder; empty hashes words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe hot_sellers."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Review files, globs, or hub:Category of Amazon Reviews 2023; empty generates a market."""
    metadata: tuple[str, ...] = ()
    """Product metadata files, globs, or hub:Category; optional."""
    raw: str = ""
    """The folder for generated or downloaded raw files; empty for the name of `out` with -raw."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """Names of the columns product_id, user_id, rating and time, for tables with unknown headers."""
    until: str = ""
    """Leave out reviews after this day (YYYY-MM-DD). Empty: reviews after the file's modification time are bad rows."""
    max_bad_fraction: float = 0.01
    """Largest fraction of bad rows; the run stops above it."""
    min_matched: float = 0.5
    """Smallest fraction of reviewed products with metadata, if metadata are given; the run stops below it. If members were
    trained on text, a forecast also stops when the fraction of reviews with text is below this multiple of the fraction in
    the training data. The same value applies to new reviews, also over HTTP."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    panel: PanelConfig = dataclasses.field(default_factory=PanelConfig)
    market: MarketConfig = dataclasses.field(default_factory=MarketConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of the network, under `recipe.` on the command line."""

    width: int = 32
    """Width of the model."""
    num_layers: int = 2
    """Transformer blocks over the weekly series."""
    num_heads: int = 2
    """Attention heads; must divide the width."""
    dropout: float = 0.1
    """Dropout in the MLP of the table features and in the layer that joins table, series and text."""
    num_reviews: int = 4
    """Number of most recent reviews whose text is read; 0 for none."""
    text_layers: int = 1
    """Transformer blocks over the words of a review; 0 averages the words."""
    text_encoder: str = ""
    """A local folder or hub name of a transformers encoder, the same as panel.tokenizer; empty trains one from scratch."""
    freeze_text: bool = True
    """Do not train a pretrained text encoder; false fine-tunes it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, with less memory."""
    loss: Literal["bce", "focal"] = "bce"
    """Loss of the head for hot."""
    focal_gamma: float = 2.0
    """Focusing parameter γ of the focal loss; larger values reduce the weight of rows that are classified well."""
    weight_growth: float = 0.3
    """Loss weight of the head for log growth; the head for hot has weight 1."""
    weight_rating: float = 0.05
    """Loss weight of the head for the mean rating in the horizon."""
    weight_engagement: float = 0.0
    """Loss weight of the head for helpful votes per review in the horizon; 0, since votes are counted at the crawl."""
