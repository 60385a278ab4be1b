"""Number of parameters and memory of the hot_sellers network, computed before the network is created."""

from typing import Any

from ensemble.recipe import Size
from ensemble.recipes.hot_sellers.model import TARGETS
from ensemble.recipes.hot_sellers.settings import RecipeConfig


def estimate(
    config: RecipeConfig, about: dict[str, Any], num_reviews: int, num_rows: int, num_weeks: int, num_series: int
) -> Size:
    """The size for a micro-batch of `num_rows` rows, without the parameters of a pretrained text encoder."""
    width, num_features = config.width, sum(feature["name"] != "category" for feature in about["features"])
    block, hashes_words = 8 * width**2 + 11 * width, bool(num_reviews) and not config.text_encoder
    num_tokens, vocabulary_size = about["config"]["num_tokens"], about["config"]["vocabulary_size"]
    num_parameters = (
        config.num_layers * block
        + (num_weeks + num_series + 3 + len(about["categories"])) * width
        + 4 * num_features * width + 2 * width**2 + 3 * width
        + 6 * width**2 + 8 * width + (2 * width + 1) * len(TARGETS) + width
    )  # fmt: skip
    if num_reviews:
        num_parameters += block + width**2 + 4 * width
    if hashes_words:
        num_parameters += (vocabulary_size + num_tokens) * width + config.text_layers * block
    words = num_rows * num_reviews * num_tokens
    per_block = 1 if config.gradient_checkpointing else 8  # activations kept for the backward pass
    activations = num_rows * num_weeks * width * per_block * config.num_layers
    activations += words * width * (1 + per_block * config.text_layers) if hashes_words else 0
    return Size(
        num_parameters=num_parameters,
        batch_bytes=8 * words + 4 * activations,
        settings=("recipe.width", "recipe.num_layers", "recipe.num_reviews", "recipe.text_layers"),
    )
