"""Imports without a library's optional dependencies, which can take longer than the library itself, and without its user's
settings."""

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ensemble import errors


class _Absent:
    """A finder that raises `ModuleNotFoundError` for some packages, and leaves all other imports to the next finder.

    An entry None in sys.modules also makes an import fail, but pyarrow 26 uses this entry as if it were the module.
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
    absent = _Absent([package for package in packages if errors.is_command and package not in sys.modules])
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


@functools.cache
def pyarrow_alone() -> None:
    """Import pyarrow; in the project's commands without pandas, whose import takes half a CPU second.

    pyarrow imports pandas once, at the first array, to recognise pandas objects. `to_pandas` still works: it imports pandas.
    """
    with without("pandas"):
        import pyarrow

        pyarrow.array([])


def in_advance(*names: str) -> None:
    """Import modules that are needed later. An import that fails is repeated there, where its error is explained."""
    with suppress(Exception):
        for name in names:
            importlib.import_module(name)


@functools.cache
def figure_class() -> Any:
    """Matplotlib's class `Figure`; in the project's commands with default settings, since those of a file matplotlibrc
    of the user could cut pictures, or need LaTeX."""
    import matplotlib
    from matplotlib.figure import Figure

    if errors.is_command:
        matplotlib.rcdefaults()
    return Figure
