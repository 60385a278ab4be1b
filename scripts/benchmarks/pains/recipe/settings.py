"""Settings of the recipe of the benchmark `pains`. No large library is imported here."""

import dataclasses

NAME = "benchmarks.pains.recipe"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Settings of scripts/train.py under `recipe.`."""

    extra_width: int = 0
    """The width of an additional square matrix of the model, which makes checkpoints large; 0 for no matrix."""
