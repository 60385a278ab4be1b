"""Imports without a library's optional dependencies, which can take longer than the library itself."""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ensemble import errors


class _Absent:
    """Finds no module: raises `ModuleNotFoundError` for the packages, and leaves all others to the next finder.

    None in sys.modules does the same for Python's own imports, but pyarrow 26 uses it as if it were the module.
    """

    def __init__(self, packages: list[str]):
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def without(*packages: str) -> Iterator[None]:
    """Inside the context, imports of the packages fail in the project's commands; afterwards they work.

    LightGBM and XGBoost need sklearn and pandas only for their wrapper classes, which the commands do not use; these imports
    take 1.3 CPU seconds. In a program of the user, which may use the wrapper classes, nothing is left out.
    """
    absent = _Absent([package for package in packages if errors.is_command() and package not in sys.modules])
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


@functools.cache
def pyarrow_alone() -> None:
    """Use pyarrow without importing pandas in the project's commands, which would take half a CPU second.

    pyarrow imports pandas once, at the first array, to recognise pandas objects. `to_pandas` still imports it.
    """
    with without("pandas"):
        import pyarrow

        pyarrow.array([])
