"""One file per recipe: data + model + loss + metrics. Each has `make(config, data)`, which returns a `recipe.Recipe`."""

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """The module of a recipe; the known names are in `ensemble.neural.config.RECIPES`."""
    return importlib.import_module(f"ensemble.neural.recipes.{name}")
