"""LightGBM and XGBoost are imported without scikit-learn and pandas, which only their wrapper classes need.

These cost 1.3 CPU seconds in each process, and nothing here uses the wrappers.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ensemble import errors

OPTIONAL = ("sklearn", "pandas")
"""Packages that LightGBM 4.7 and XGBoost 3.2 do without if they cannot be imported."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Imports of OPTIONAL fail within it, in the project's commands. A user's own program may use the wrapper classes."""
    absent = [package for package in OPTIONAL if errors.is_command() and package not in sys.modules]
    try:
        for package in absent:
            sys.modules[package] = None  # type: ignore[assignment]
        yield
    finally:
        for package in absent:
            del sys.modules[package]
