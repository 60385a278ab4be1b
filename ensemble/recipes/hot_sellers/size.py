"""How large the network of hot_sellers becomes, before it is made."""

from typing import Any

from ensemble.recipe import Size
from ensemble.recipes.hot_sellers.model import TARGETS
from ensemble.recipes.hot_sellers.settings import RecipeConfig


def of(
    config: RecipeConfig, about: dict[str, Any], num_reviews: int, num_rows: int, num_weeks: int, num_series: int
) -> Size:
    """What the layers must keep of the series, and of each review's words where no pretrained encoder reads them."""
    width, num_features = config.width, sum(feature["name"] != "category" for feature in about["features"])
    block, reads_words = 8 * width**2 + 11 * width, bool(num_reviews) and not config.text_encoder
    num_tokens, vocabulary_size = about["config"]["num_tokens"], about["config"]["vocabulary_size"]
    num_parameters = (
        config.num_layers * block
        + (num_weeks + num_series + 3 + len(about["categories"])) * width
        + 4 * num_features * width + 2 * width**2 + 3 * width
        + 6 * width**2 + 8 * width + (2 * width + 1) * len(TARGETS) + width
    )  # fmt: skip
    if num_reviews:
        num_parameters += block + width**2 + 4 * width
    if reads_words:
        num_parameters += (vocabulary_size + num_tokens) * width + config.text_layers * block
    words = num_rows * num_reviews * num_tokens
    layers_kept = 1 if config.gradient_checkpointing else 8
    kept = num_rows * num_weeks * width * layers_kept * config.num_layers
    kept += words * width * (1 + layers_kept * config.text_layers) if reads_words else 0
    return Size(
        num_parameters=num_parameters,
        batch_bytes=8 * words + 4 * kept,
        settings=("recipe.width", "recipe.num_layers", "recipe.num_reviews", "recipe.text_layers"),
    )
