"""Networks of the recipe emulator: Jacobians of a batch, C++ and Python, and analysis errors beside those of DAPPER."""

import importlib
from typing import Any

MODULES = {"emulator_cpp": "compiled", "emulator_dapper": "assimilation", "emulator_jacobian": "jacobians"}


def __getattr__(name: str) -> Any:
    """The function of a benchmark. Only its module is imported: `emulator_dapper` must load its member before PyTorch."""
    if name not in MODULES:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"benchmarks.emulator_physics.{MODULES[name]}"), name)
