"""Values for settings that are 0 or auto, by the size of the table."""

import dataclasses
import math
from typing import Any

from ensemble import configuration
from ensemble.data.cross_validation import CrossValidation
from ensemble.recipes.table.settings import RecipeConfig
from ensemble.task import Task

MANY_CLASSES, MANY_ROWS = 8, 10_000
"""From `MANY_CLASSES` classes on the hidden layers are wider, since more hidden features are needed. With at most
`MANY_ROWS` rows a width of 256 overfits."""


def of_network(
    config: RecipeConfig, task: Task, num_rows: int, num_features: int, cv: CrossValidation | None
) -> RecipeConfig:
    """The settings of the network, with a value for each that is 0 or auto.

    The first layer has `embedding_size` inputs per numeric value, which dominates the cost for tables with many columns.
    """
    num_submodels, width = 8, 64
    if len(task.classes) >= MANY_CLASSES:
        num_submodels, width = (8, 128) if num_rows <= MANY_ROWS else (4, 256)
    new_rows = config.new_rows
    if new_rows == "auto":
        needs_refit = cv is not None and (cv.scheme == "forward" or (cv.scheme == "holdout" and cv.stop_share == 1))
        new_rows = "refit" if needs_refit else "copies"
    return dataclasses.replace(
        config,
        num_submodels=config.num_submodels or num_submodels,
        width=config.width or width,
        num_layers=config.num_layers or 2,
        num_bins=config.num_bins or (32 if task.kind == "regression" else 16),
        embedding_size=config.embedding_size or (8 if num_features <= 32 else 4 if num_features <= 128 else 2),
        new_rows=new_rows,
        num_copies=config.num_copies or (cv.num_folds if cv else 1),
    )


BATCHES = ((2_000, 64, 96.0), (5_000, 128, 64.0), (20_000, 256, 40.0), (50_000, 256, 32.0), (math.inf, 512, 20.0))
"""Each with the largest number of training rows, the global batch size and the epochs: few rows have more epochs, many rows
larger batches. With a time limit the training has as many of these epochs as fit."""
LEARNING_RATE, REFERENCE_BATCH = 0.015, 256
"""The peak learning rate is `LEARNING_RATE` at a batch size of `REFERENCE_BATCH`, and is proportional to the square root of
the batch size up to four times `REFERENCE_BATCH`, and constant beyond."""
REGRESSION_EPOCHS = 1.5
"""Factor on the epochs for regression, whose error still decreases when classifiers begin to overfit."""


def of_training(config: Any, kind: str, num_rows: int) -> Any:
    """The settings of a training on `num_rows` rows; `config` already has those of the network."""
    batch_size, max_epochs = next((size, epochs) for most, size, epochs in BATCHES if num_rows <= most)
    batch_size = config.batch_size or batch_size
    return dataclasses.replace(
        config,
        batch_size=batch_size,
        max_epochs=config.max_epochs or max_epochs * (REGRESSION_EPOCHS if kind == "regression" else 1.0),
        learning_rate=config.learning_rate
        or LEARNING_RATE * math.sqrt(min(batch_size, 4 * REFERENCE_BATCH) / REFERENCE_BATCH),
    )


def check(config: RecipeConfig) -> None:
    """Raise `UserError` for settings outside their ranges."""
    configuration.check(
        config,
        "recipe.",
        at_least_0="num_submodels width num_layers embedding_size num_copies",
        num_bins=(config.num_bins == 0 or config.num_bins >= 2, "at least 2, or 0"),
        dropout=(0 <= config.dropout < 1, "0 or more and below 1"),
    )
