"""Settings of the training of `pains`. Nothing heavy is imported here."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe benchmarks.pains.recipe."""

    out: str = "???"
    """The folder of prepared data to write."""
    num_rows: int = 192
    """Rows of the training split."""
    max_tokens: int = 1
    """Each row has 1 to so many tokens, by which the loss is averaged."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    extra_width: int = 0
    """Width of a square matrix that is added to the model, for checkpoints of any size; 0 for none."""
