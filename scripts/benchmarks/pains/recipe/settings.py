"""Settings of the training of `pains`. No large library is imported here."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe benchmarks.pains.recipe."""

    out: str = "???"
    """The folder of prepared data to write."""
    num_rows: int = 192
    """Rows of the training split."""
    max_tokens: int = 1
    """The largest number of tokens of a row, over which the loss is averaged; the smallest is 1."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    extra_width: int = 0
    """Width of an additional square matrix of the model, for large checkpoints; 0 for none."""
