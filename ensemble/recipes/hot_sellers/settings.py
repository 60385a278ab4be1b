"""Settings of the recipe hot_sellers. No large library is imported here, so that `--help` is fast."""

import dataclasses
import datetime
from typing import Literal

from ensemble import configuration
from ensemble.errors import UserError

NUM_WEEKS = 52
"""The length of the weekly series that the network reads: the weeks up to that of the row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarketConfig:
    """The simulated market. Raises `UserError` for sizes below 1, a negative seed, a first day that is not a Monday, and
    weeks outside the years 1995 to 2100.
    """

    num_products: int = 3000
    """Number of products, including products without reviews."""
    num_reviews: int = 200_000
    """Expected number of reviews. The actual number is random, within about 2 % of it at the default size."""
    num_weeks: int = 156
    """Number of calendar weeks from `first_day` on. All reviews are dated in these weeks."""
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
            if str(day) != self.first_day:  # such as 2020-10-5, which NumPy does not read
                raise ValueError
        except (ValueError, OverflowError):
            raise UserError(
                f"first_day={self.first_day} with num_weeks={self.num_weeks} gives no dates: write a day as YYYY-MM-DD"
            ) from None
        if day.weekday() != 0:
            monday = day - datetime.timedelta(days=day.weekday())
            raise UserError(f"first_day={self.first_day} is a {day:%A}: weeks begin on Mondays, such as {monday}")
        if day.year < 1995 or last_day.year > 2100:
            raise UserError(
                f"the weeks from {day} to {last_day} leave the years 1995 to 2100: change first_day or num_weeks"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelConfig:
    """Which product-weeks become rows, which rows are hot, and how rows are split."""

    horizon_weeks: int = 12
    """Number of weeks after a row (a product at the end of a week) that its label covers. As many weeks are left out between
    two splits."""
    base_weeks: int = 4
    """Number of weeks up to that of the row. Growth is the reviews in the horizon ÷ (those in these base weeks + 1)."""
    top_fraction: float = 0.05
    """Fraction of each week's rows that are hot, at most; fewer are hot if rows tie."""
    min_reviews: int = 1
    """Smallest number of reviews in the base weeks with which a product has a row."""
    shares: tuple[float, float, float, float] = (0.55, 0.15, 0.15, 0.15)
    """Relative numbers of rows of train, validation, blend and test, divided by their sum; splits consist of whole weeks."""
    folds: int = 0
    """Number of folds forward in time, for bags; 0 for none. A further fold has all weeks before test. Data that folds share
    are stored once."""
    as_of_crawl: bool = False
    """Add features whose values are known only at the crawl (price, helpful votes), which a real forecast does not have."""
    num_tokens: int = 24
    """Number of first words of each review (tokens, with `tokenizer`) that the network can read; features of the text count
    all words. 0 leaves the text out of both."""
    vocabulary_size: int = 8192
    """Number of token ids, at most 65536: 0 is padding, and words are hashed to the others."""
    tokenizer: str = ""
    """A folder or a Hugging Face Hub name of a tokenizer, for a pretrained text encoder; empty to hash words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe hot_sellers."""

    out: str = "???"
    """The folder of prepared data to write."""
    source: tuple[str, ...] = ()
    """Files or globs of reviews, or hub:Category of Amazon Reviews 2023; empty to generate a market."""
    metadata: tuple[str, ...] = ()
    """Files or globs of product metadata, or hub:Category; optional."""
    raw: str = ""
    """The folder for generated or downloaded raw files; empty for the name of `out` with -raw."""
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    """For tables with unknown headers: the column of each of product_id, user_id, rating and time, and optionally of title,
    text, helpful_votes, verified and images. Columns of a CSV without header are given by their numbers, from 1."""
    until: str = ""
    """Leave out reviews after this day (YYYY-MM-DD), and take the reviews as complete to its end: the last week counts if it
    ends by then, even if its last days have no reviews. If empty, reviews dated more than a day after their file's
    modification time are bad rows."""
    max_bad_fraction: float = 0.01
    """The run stops if a larger fraction of the rows is bad."""
    min_matched: float = 0.5
    """If metadata are given, the run stops if a smaller fraction of the reviewed products has metadata. A forecast of new
    reviews, also over HTTP, stops for the same reason if its members were trained on metadata. If they were trained on text,
    it also stops if the fraction of reviews with text is below this value times the fraction in the training data."""
    overwrite: bool = False
    """Replace `out` if it exists."""
    panel: PanelConfig = dataclasses.field(default_factory=PanelConfig)
    market: MarketConfig = dataclasses.field(default_factory=MarketConfig)


RECORDED_SETTINGS = ("columns", "until", "max_bad_fraction", "min_matched")
"""The settings of `PrepareConfig` that the manifest records if they are not the defaults."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of the network, under `recipe.` on the command line."""

    width: int = 32
    """Width of the network: the length of its embeddings."""
    num_layers: int = 2
    """Number of transformer blocks over the weekly series."""
    num_heads: int = 2
    """Number of attention heads; it must divide the width."""
    dropout: float = 0.1
    """Dropout rate in the MLP of the table features and in the layer that joins table, series and text."""
    num_reviews: int = 4
    """Number of most recent reviews that are an input; 0 for none."""
    text_layers: int = 1
    """Number of transformer blocks over the words of a review, without a pretrained `text_encoder`; with 0 the embeddings of
    the words are averaged."""
    text_encoder: str = ""
    """A folder or a Hugging Face Hub name of an encoder, the same as panel.tokenizer; empty to train a small one."""
    freeze_text: bool = True
    """Whether a pretrained text encoder keeps its weights; false fine-tunes it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which is slower and needs less memory."""
    loss: Literal["bce", "focal"] = "bce"
    """Loss of the head for hot: binary cross-entropy or focal loss."""
    focal_gamma: float = 2.0
    """Focusing parameter γ of the focal loss; larger values reduce the weight of rows that are classified well."""
    weight_growth: float = 0.3
    """Loss weight of the head for log growth; the head for hot has weight 1."""
    weight_rating: float = 0.05
    """Loss weight of the head for the mean rating in the horizon."""
    weight_engagement: float = 0.0
    """Loss weight of the head for helpful votes per review in the horizon; by default 0, since votes are those counted when
    the data were crawled, not those of the horizon."""
