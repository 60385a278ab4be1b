"""Imports without a library's optional dependencies, which can take longer than the library itself."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ensemble import errors


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Within it, imports of the packages fail, in the project's commands; afterwards they work.

    LightGBM and XGBoost do without sklearn and pandas, which only their wrapper classes need: 1.3 CPU seconds. A program of
    the user's may use these classes, so nothing is left out there.
    """
    absent = [package for package in packages if errors.is_command() and package not in sys.modules]
    try:
        for package in absent:
            sys.modules[package] = None  # type: ignore[assignment]
        yield
    finally:
        for package in absent:
            del sys.modules[package]
