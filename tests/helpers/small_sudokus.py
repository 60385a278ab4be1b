"""Small data for tests of the recipe sudoku: 4 × 4 puzzles with 8 clues, and a network that is trained in seconds."""

from pathlib import Path
from typing import Any

from ensemble.recipes.sudoku import prepare
from ensemble.recipes.sudoku.settings import PrepareConfig, RecipeConfig

NUM_TRAIN = 35


def prepared(folder: Path, num_train: int = NUM_TRAIN) -> Path:
    """Puzzles to train on, and 10 of each other split."""
    counts = {"num_train": num_train, "num_validation": 10, "num_blend": 10, "num_test": 10}
    prepare.prepare(PrepareConfig(out=str(folder / "prepared"), side=4, clues=8, threads=1, **counts))
    return folder / "prepared"


def config(**changed: Any) -> RecipeConfig:
    small: dict[str, Any] = {
        "variant": "hrm",
        "width": 16,
        "num_heads": 2,
        "num_layers": 1,
        "inner_width": 24,
        "segments": 4,
        "predict_segments": 4,
        "images": 1,
    }
    if changed.get("variant") == "direct":
        small["segments"] = 1
    return RecipeConfig(**{**small, **changed})
