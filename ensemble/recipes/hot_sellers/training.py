"""Training of the hot_sellers network: which products will be among the week's top 5 % in review growth.

    accelerate launch --config_file accelerate_configs/single_cpu.yaml scripts/train.py --recipe hot_sellers \
        data=runs/demo/prepared out=runs/demo/members/transformer

With the data of the demo, training takes about a minute on two cores. The loss is the weighted sum of the losses of four
heads: hot (binary cross-entropy, or focal loss: Lin et al. 2017, arXiv:1708.02002), and log growth, mean rating and log
helpful votes per review in the horizon (smooth L1).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ensemble import configuration
from ensemble.arrow import Column, open_table, ranges
from ensemble.neural.loader import Batch
from ensemble.neural.prepared import PreparedRecipe, PreparedRows
from ensemble.neural.settings import check_heads
from ensemble.recipe import Size
from ensemble.recipes.hot_sellers import pretrained
from ensemble.recipes.hot_sellers.model import TARGETS, Forecaster, HashedTextEncoder, PretrainedTextEncoder
from ensemble.recipes.hot_sellers.settings import NUM_WEEKS, RecipeConfig

SERIES = ("reviews", "rating", "fives", "ones", "verified", "images", "words", "sentiment")
ROWS_FOR_STATISTICS = 100_000
"""The largest number of training rows from which feature statistics are computed."""


class PanelRows(PreparedRows):
    """The rows of one split. `gather` makes a batch by operations on arrays, without a loop over rows."""

    def __init__(self, folder: Path, split: str, features: list[str], num_reviews: int):
        table = open_table(folder / "rows" / split)
        self.num_reviews = num_reviews
        self.features = [Column(table, name) for name in features]
        self.columns = {
            name: Column(table, name)
            for name in ("week", "age", "category", "weeks_begin", "weeks_end", "reviews_begin", "reviews_end", *TARGETS)
        }  # fmt: skip
        weeks = open_table(folder / "weeks")
        self.series_week = Column(weeks, "week")
        self.series = {name: Column(weeks, name) for name in SERIES}
        if num_reviews:
            reviews = open_table(folder / "reviews")
            self.review_week, self.review_rating = Column(reviews, "week"), Column(reviews, "rating")
            self.review_tokens = Column(reviews, "tokens")

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """Tensors of B = len(rows) examples, as documented at `Forecaster.forward`, and the targets, float32 (B,)."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        batch = {
            "features": np.stack([column.take(rows) for column in self.features], axis=1),
            "category": columns["category"].astype(np.int64),
            "week": columns["week"].astype(np.float32),
            **{name: columns[name] for name in TARGETS},
            **self._series(columns),
        }
        if self.num_reviews:
            batch |= self._reviews(columns)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _series(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The series of the last year, (B, 52, 8), zero in weeks without reviews, and the mask of weeks since the first
        review, (B, 52)."""
        index, row = ranges(columns["weeks_begin"], columns["weeks_end"])
        position = NUM_WEEKS - 1 - (columns["week"][row] - self.series_week.take(index))
        sums = {name: column.take(index).astype(np.float32) for name, column in self.series.items()}
        num_reviews = sums["reviews"]
        series = np.zeros((len(columns["week"]), NUM_WEEKS, len(SERIES)), np.float32)
        series[row, position] = np.stack(
            [
                np.log1p(num_reviews),
                (sums["rating"] / num_reviews - 30) / 20,
                *(sums[name] / num_reviews for name in ("fives", "ones", "verified", "images")),
                np.log1p(sums["words"] / num_reviews) / 4,
                sums["sentiment"] / num_reviews / 4,
            ],
            axis=1,
        )
        weeks_ago = np.arange(NUM_WEEKS - 1, -1, -1)
        return {"series": series, "valid_weeks": weeks_ago <= columns["age"][:, None]}

    def _reviews(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The last R reviews up to a row's week: L token ids each, (B, R, L), rating and age (B, R, 2), and a mask."""
        index = columns["reviews_end"][:, None] - 1 - np.arange(self.num_reviews)
        valid = index >= columns["reviews_begin"][:, None]
        index = np.maximum(index, 0)
        weeks_ago = columns["week"][:, None] - self.review_week.take(index)
        rating, age = (self.review_rating.take(index) - 3) / 2, np.log1p(np.maximum(weeks_ago, 0)) / 4
        return {
            "tokens": self.review_tokens.take(index).astype(np.int64) * valid[..., None],
            "rating_and_age": (np.stack([rating, age], axis=-1) * valid[..., None]).astype(np.float32),
            "valid_reviews": valid,
        }


class HotSellers(PreparedRecipe[RecipeConfig, PanelRows]):
    """The methods of `recipe.NeuralRecipe` for hot_sellers. Raises `UserError` if the settings do not fit the data."""

    name = "hot_sellers"
    monitor, higher_is_better = "average_precision", True
    output = "probability"

    def __init__(self, config: RecipeConfig, data: str | Path):
        super().__init__(config, data)
        tokenizer = self.manifest["config"]["tokenizer"]
        configuration.check(
            config,
            "recipe.",
            at_least_1="width num_heads",
            at_least_0="num_layers text_layers num_reviews focal_gamma weight_growth weight_rating weight_engagement",
            dropout=(0 <= config.dropout < 1, "0 or more and below 1"),
            text_encoder=(
                config.text_encoder == tokenizer,
                f"'{tokenizer}', as panel.tokenizer of the data; or change that",
            ),
        )
        check_heads(config.width, config.num_heads)
        self.num_reviews = config.num_reviews if self.manifest["has_text"] else 0
        self.features = [feature["name"] for feature in self.manifest["features"] if feature["name"] != "category"]

    def open_rows(self, split: str) -> PanelRows:
        return PanelRows(self.folder, split, self.features, self.num_reviews)

    def model(self) -> torch.nn.Module:
        """A new model, with the feature statistics of the training split, or placeholders if the data do not have it."""
        config, manifest = self.config, self.manifest
        mean, scale, base_rate = self.statistics()
        return Forecaster(
            num_weeks=NUM_WEEKS,
            num_channels=len(SERIES),
            num_categories=len(manifest["categories"]),
            feature_mean=mean,
            feature_scale=scale,
            text_encoder=self._text_encoder() if self.num_reviews else None,
            width=config.width,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            dropout=config.dropout,
            base_rate=base_rate,
            gradient_checkpointing=config.gradient_checkpointing,
        )

    def size(self, num_rows: int) -> Size:
        """The size for a micro-batch of `num_rows` rows. The parameters of a pretrained text encoder are not counted."""
        config, manifest, num_reviews = self.config, self.manifest, self.num_reviews
        width, num_features = config.width, len(self.features)
        num_block_parameters, hashes_words = 8 * width**2 + 11 * width, bool(num_reviews) and not config.text_encoder
        num_tokens, vocabulary_size = manifest["config"]["num_tokens"], manifest["config"]["vocabulary_size"]
        num_parameters = (
            config.num_layers * num_block_parameters
            + (NUM_WEEKS + len(SERIES) + 3 + len(manifest["categories"])) * width
            + 4 * num_features * width + 2 * width**2 + 3 * width
            + 6 * width**2 + 8 * width + (2 * width + 1) * len(TARGETS) + width
        )  # fmt: skip
        if num_reviews:
            num_parameters += num_block_parameters + width**2 + 4 * width
        if hashes_words:
            num_parameters += (vocabulary_size + num_tokens) * width + config.text_layers * num_block_parameters
        num_token_ids = num_rows * num_reviews * num_tokens
        per_block = 1 if config.gradient_checkpointing else 8  # activations kept for the backward pass
        num_activations = num_rows * NUM_WEEKS * width * per_block * config.num_layers
        num_activations += num_token_ids * width * (1 + per_block * config.text_layers) if hashes_words else 0
        return Size(
            num_parameters=num_parameters,
            batch_bytes=8 * num_token_ids + 4 * num_activations,
            settings=("recipe.width", "recipe.num_layers", "recipe.num_reviews", "recipe.text_layers"),
        )

    def step(self, model: torch.nn.Module, batch: Batch, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Return the sum of the losses, the number of examples, and `state`, which is not used."""
        hot_logit_B, growth, rating, engagement = model(batch).float().unbind(dim=-1)
        loss_B = F.binary_cross_entropy_with_logits(hot_logit_B, batch["hot"], reduction="none")
        if self.config.loss == "focal":
            other_class_logit_B = torch.where(batch["hot"] > 0.5, -hot_logit_B, hot_logit_B)
            probability_of_other_class_B = torch.sigmoid(other_class_logit_B)
            loss_B = probability_of_other_class_B**self.config.focal_gamma * loss_B
        for weight, output, target in (
            (self.config.weight_growth, growth, batch["growth"].log1p()),
            (self.config.weight_rating, rating, (batch["rating_next"] - 3) / 2),
            (self.config.weight_engagement, engagement, batch["engagement"].log1p()),
        ):
            # A mean over the reviews in the horizon is NaN if there are none
            known = torch.isfinite(target)
            error = F.smooth_l1_loss(output, torch.where(known, target, 0.0), reduction="none")
            loss_B = loss_B + weight * torch.where(known, error, 0.0)
        return loss_B.sum(), torch.tensor(float(len(loss_B)), device=loss_B.device), state

    def predict(self, model: torch.nn.Module, batch: Batch) -> Batch:
        return {"prediction": torch.sigmoid(model(batch)[:, 0].float()), "target": batch["hot"], "group": batch["week"]}

    def metrics(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        from ensemble.metrics.evaluating import binary_metric

        scores = binary_metric(keep_in_memory=True).compute(
            predictions=predictions["prediction"], references=predictions["target"], group=predictions["group"]
        )
        return {name: scores[name] for name in ("average_precision", "roc_auc", "log_loss", "lift_at_5pct")}

    def statistics(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The mean and the standard deviation of each feature's signed logarithm, (F,) each, and the share of hot rows.

        Uses up to `ROWS_FOR_STATISTICS` training rows, evenly spaced. The deviation of constants is 0; without values, -1.
        """
        if "train" not in self.manifest["splits"]:
            return torch.zeros(len(self.features)), torch.ones(len(self.features)), 0.5
        rows = self.rows("train")
        sample = np.linspace(0, len(rows) - 1, min(len(rows), ROWS_FOR_STATISTICS)).astype(np.int64)
        mean, scale = [], []
        for column in rows.features:
            values = column.take(sample).astype(np.float64)
            values = np.sign(values) * np.log1p(np.abs(values))
            known = values[np.isfinite(values)]
            mean.append(known.mean() if known.size else 0.0)
            deviation = known.std() if known.size else -1.0
            # The computed deviation of a constant column is not exactly 0. Divided by it, other values would become huge
            scale.append(0.0 if 0 <= deviation <= 1e-6 else deviation)
        base_rate = float(np.clip(rows.columns["hot"].take(sample).mean(), 1e-4, 1 - 1e-4))
        return torch.tensor(mean, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32), base_rate

    def _text_encoder(self) -> torch.nn.Module:
        config, panel = self.config, self.manifest["config"]
        if not config.text_encoder:
            return HashedTextEncoder(
                vocabulary_size=panel["vocabulary_size"],
                num_tokens=panel["num_tokens"],
                width=config.width,
                num_layers=config.text_layers,
                num_heads=config.num_heads,
            )
        return PretrainedTextEncoder(pretrained.load("AutoModel", config.text_encoder), config.width, config.freeze_text)


make = HotSellers
