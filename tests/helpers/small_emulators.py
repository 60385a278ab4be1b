"""Small data of the recipe emulator: generated sea ice of some thousand points, and a ring of eight points."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import open_table, read_columns
from ensemble.recipes.emulator import prepare
from ensemble.recipes.emulator.settings import PrepareConfig, RecipeConfig

SMALL: dict[str, Any] = {"num_files": 1, "num_times": 1, "num_rows": 48, "num_columns": 48, "tile": 4}
RING: dict[str, Any] = {"system": "lorenz96", "num_points": 8, "num_states": 220, "num_scored": 50, "stencil": 3}


def sea_ice(folder: Path, **changed: Any) -> Path:
    prepare.prepare(PrepareConfig(out=str(folder / "sea_ice"), **{**SMALL, **changed}))
    return folder / "sea_ice"


def lorenz96(folder: Path, **changed: Any) -> Path:
    prepare.prepare(PrepareConfig(out=str(folder / "lorenz96"), **{**RING, **changed}))
    return folder / "lorenz96"


def columns(data: Path, kind: str, split: str) -> dict[str, np.ndarray]:
    """All columns of a table of prepared data; `kind` is rows or pairs."""
    table = data / kind / split
    return read_columns(table, open_table(table).column_names)


def train(data: Path, out: Path, network: RecipeConfig, **settings: Any) -> None:
    """Train a network in this process, with a learning rate of 0.01."""
    from accelerate import Accelerator

    from ensemble.neural import loop
    from ensemble.neural.settings import config_class
    from ensemble.recipes.emulator import training

    config = config_class("emulator")(
        data=str(data), out=str(out), recipe=network, learning_rate=1e-2, trackers=(), **settings
    )
    loop.train(training.make(network, str(data)), config, Accelerator(cpu=True))
