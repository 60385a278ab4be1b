"""What the settings that are 0 or auto become, by the size of the table."""

import dataclasses
from typing import Any

from ensemble import configuration
from ensemble.data.cross_validation import CrossValidation
from ensemble.recipes.table.settings import RecipeConfig


def of_network(config: RecipeConfig, cross_validation: CrossValidation | None) -> RecipeConfig:
    """The settings of the network, none of them 0 or auto."""
    new_rows = config.new_rows
    if new_rows == "auto":
        is_whole = cross_validation is not None and cross_validation.scheme in ("forward", "holdout")
        new_rows = "refit" if is_whole else "copies"
    return dataclasses.replace(
        config,
        num_submodels=config.num_submodels or 8,
        width=config.width or 128,
        num_layers=config.num_layers or 2,
        num_bins=config.num_bins or 16,
        embedding_size=config.embedding_size or 8,
        new_rows=new_rows,
        num_copies=config.num_copies or (cross_validation.num_folds if cross_validation else 1),
    )


def of_training(config: Any, num_rows: int) -> Any:
    """The settings of a training on `num_rows` rows, with those of the network in place already."""
    return dataclasses.replace(
        config,
        batch_size=config.batch_size or 256,
        max_epochs=config.max_epochs or 16.0,
        learning_rate=config.learning_rate or 3e-3,
    )


def check(config: RecipeConfig) -> None:
    configuration.check(
        config,
        "recipe.",
        num_submodels=(config.num_submodels >= 0, "0 or more"),
        width=(config.width >= 0, "0 or more"),
        num_layers=(config.num_layers >= 0, "0 or more"),
        num_bins=(config.num_bins == 0 or config.num_bins >= 2, "at least 2, or 0"),
        embedding_size=(config.embedding_size >= 0, "0 or more"),
        dropout=(0 <= config.dropout < 1, "0 or more and below 1"),
        num_copies=(config.num_copies >= 0, "0 or more"),
    )
