"""Imports without a library's optional dependencies, which can take longer than the library itself."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ensemble import errors


class _Absent:
    """Finds no module: raises `ModuleNotFoundError` for the packages, and leaves all others to the next finder."""

    def __init__(self, packages: list[str]):
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Within it, imports of the packages fail, in the project's commands; afterwards they work.

    LightGBM and XGBoost do without sklearn and pandas, which only their wrapper classes need: 1.3 CPU seconds. A program of
    the user's may use these classes, so nothing is left out there.
    """
    absent = _Absent([package for package in packages if errors.is_command() and package not in sys.modules])
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


@functools.cache
def pyarrow_alone() -> None:
    """Let pyarrow work without pandas in the project's commands, which takes half a CPU second to import.

    pyarrow looks for pandas once, at the first array, to recognise pandas objects. `to_pandas` still imports it.
    """
    with without("pandas"):
        import pyarrow

        pyarrow.array([])
