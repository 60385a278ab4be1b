"""Calls a function with a module as soon as the module is imported.

The files sitecustomize.py of benchmarks use it in each process of a measured command, so that it imports little.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from typing import Any


class _Finder:
    def __init__(self, actions: Mapping[str, Callable[[Any], None]]):
        self._actions = actions

    def find_spec(self, name: str, path: Any = None, target: object = None) -> Any:
        """Find a watched module as Python does; its action follows its import. None for other modules."""
        if name not in self._actions:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._actions[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch(actions: Mapping[str, Callable[[Any], None]]) -> None:
    """For each name of a module, call a function with the module after its import."""
    sys.meta_path.insert(0, _Finder(actions))
