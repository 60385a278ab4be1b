"""Imports without a library's optional dependencies, which can take longer than the library itself."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

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


@functools.cache
def torch_alone() -> None:
    """Let a training prepare its model and optimizers without sympy and torch._dynamo: 1.6 CPU seconds, in commands only.

    Both serve compilers, and no command compiles an optimizer. PyTorch wraps methods of optimizers and of
    DistributedDataParallel in functions that import torch._dynamo at their first call, so that they are not compiled; the
    constructor of the latter reads a setting of it. Accelerate imports torch.distributed.tensor, and with it sympy, to
    search the model for its parameters.
    """
    if not errors.is_command():
        return
    from accelerate import accelerator
    from torch import _compile, no_grad, optim
    from torch.nn.parallel import DistributedDataParallel

    in_forward = getattr(DistributedDataParallel._inside_ddp_forward, "__wrapped__", None)
    for method in (*vars(optim.Optimizer).values(), in_forward):
        if getattr(getattr(method, "__code__", None), "co_filename", "") == _compile.__file__:
            method.__wrapped__.__dynamo_disable = method.__wrapped__
    step = optim.Adam.step
    if step.__code__.co_name == "_use_grad":  # imports torch._dynamo for optimizers with differentiable=True
        optim.Adam.step = no_grad()(step.__wrapped__)  # type: ignore[attr-defined, method-assign]
    has_dtensor = accelerator.model_has_dtensor
    accelerator.model_has_dtensor = lambda model: "torch.distributed.tensor" in sys.modules and has_dtensor(model)
    DistributedDataParallel.__init__ = _without_dynamo(DistributedDataParallel.__init__)  # type: ignore[method-assign]


def _without_dynamo(constructor: Callable[..., None]) -> Callable[..., None]:
    """The constructor, for which torch._dynamo has its default setting as long as it was not imported."""
    import torch

    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")

    @functools.wraps(constructor)
    def construct(*arguments: Any, **options: Any) -> None:
        if "torch._dynamo" in sys.modules:
            return constructor(*arguments, **options)
        torch._dynamo = SimpleNamespace(utils=utils)  # type: ignore[assignment]
        try:
            constructor(*arguments, **options)
        finally:
            del torch._dynamo

    return construct
