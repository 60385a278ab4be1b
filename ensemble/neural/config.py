"""What scripts/train.py can be told: how to learn, and each recipe's own settings under `recipe.`.

Nothing heavy is imported here, so that `--help` answers at once.
"""

import dataclasses
from typing import Literal

from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to learn; what to learn is the recipe's, and on what hardware is the accelerate YAML's."""

    data: str = "???"
    """The folder of prepared data."""
    out: str = "???"
    """The folder of the run."""
    batch_size: int = 512
    """Examples in a global batch, over all ranks and accumulation steps."""
    micro_batch_size: int = 0
    """Examples in one forward pass of one rank; 0 for as many as make accumulation unnecessary."""
    max_epochs: float = 3.0
    """Passes over the training split."""
    learning_rate: float = 1e-3
    """Peak learning rate, for the global batch."""
    weight_decay: float = 0.01
    """AdamW's decoupled decay, on matrices only."""
    warmup_steps: int = 50
    """Optimizer steps of linear warm-up; a cosine to zero follows."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 for no clipping."""
    evaluations_per_epoch: int = 2
    """How often the validation split is scored and a checkpoint written."""
    patience: int = 4
    """Evaluations without a better score after which training stops."""
    num_workers: int = 0
    """DataLoader processes per rank; the gather is fast enough for none on small models."""
    log_every: int = 10
    """Steps between two lines of train.log."""
    seed: int = 0
    """Of the initial weights, the order of rows, and dropout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HotSellersConfig:
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


RECIPES: dict[str, type] = {"hot_sellers": HotSellersConfig}
"""A recipe's name, which is also its module in `ensemble.neural.recipes`, and its settings."""


def config_class(recipe: str) -> type:
    """`TrainConfig` with the settings of a recipe in its field `recipe`; `UserError` for a recipe that does not exist."""
    if recipe not in RECIPES:
        raise UserError(f"there is no recipe '{recipe}': known are {', '.join(RECIPES)}")
    settings = RECIPES[recipe]
    return dataclasses.make_dataclass(
        "Config",
        [("recipe", settings, dataclasses.field(default_factory=settings))],
        bases=(TrainConfig,),
        frozen=True,
        kw_only=True,
    )
