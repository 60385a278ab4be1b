"""Calls a function with a module as soon as the module is imported.

The files sitecustomize.py of benchmarks use this module in each process of a measured command, so it imports little itself.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def watch(actions: Mapping[str, Callable[[Any], None]]) -> None:
    """When a module whose name is in `actions` has been imported, call its action with the module."""

    def find_spec(name: str, path: Any = None, target: object = None) -> Any:
        """The spec of a watched module, whose execution is followed by its action; None for other modules."""
        if name not in actions:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                actions[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)
