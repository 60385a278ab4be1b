"""Settings of the recipe of the benchmark `pains`. No large library is imported here."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings of scripts/prepare_data.py --recipe benchmarks.pains.recipe."""

    out: str = "???"
    """The folder of prepared data to write."""
    num_rows: int = 192
    """The number of rows of the train split."""
    max_tokens: int = 1
    """The largest number of tokens in a row; the smallest is 1. The loss is averaged over tokens."""
    overwrite: bool = False
    """Replace `out` if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    extra_width: int = 0
    """The width of an additional square matrix of the model, which makes checkpoints large; 0 for no matrix."""
