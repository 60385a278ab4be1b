"""Small data of the recipe emulator: generated sea ice of some thousand points, and a ring of eight points."""

from pathlib import Path
from typing import Any

from ensemble.recipes.emulator import prepare
from ensemble.recipes.emulator.settings import PrepareConfig

SMALL: dict[str, Any] = {"num_files": 1, "num_times": 1, "num_rows": 48, "num_columns": 48, "tile": 4}
RING: dict[str, Any] = {"system": "lorenz96", "num_points": 8, "num_states": 220, "num_scored": 50, "stencil": 3}


def sea_ice(folder: Path, **changed: Any) -> Path:
    prepare.prepare(PrepareConfig(out=str(folder / "sea_ice"), **{**SMALL, **changed}))
    return folder / "sea_ice"


def lorenz96(folder: Path, **changed: Any) -> Path:
    prepare.prepare(PrepareConfig(out=str(folder / "lorenz96"), **{**RING, **changed}))
    return folder / "lorenz96"
