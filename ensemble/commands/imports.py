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


def torch_alone() -> None:
    """Let a training prepare its model and optimizers without sympy and torch._dynamo: 1.6 CPU seconds, in commands only.

    PyTorch wraps the methods of optimizers in functions that import torch._dynamo at their first call, so that a compiler
    does not compile them. No command compiles an optimizer. Accelerate imports torch.distributed.tensor, and with it sympy,
    to search the model for its parameters. DistributedDataParallel imports both in any case.
    """
    if not errors.is_command():
        return
    from accelerate import accelerator
    from torch import _compile, no_grad, optim

    for method in vars(optim.Optimizer).values():
        if getattr(getattr(method, "__code__", None), "co_filename", "") == _compile.__file__:
            method.__wrapped__.__dynamo_disable = method.__wrapped__
    step = optim.Adam.step
    if step.__code__.co_name == "_use_grad":  # imports torch._dynamo for optimizers with differentiable=True
        optim.Adam.step = no_grad()(step.__wrapped__)  # type: ignore[attr-defined, method-assign]
    has_dtensor = accelerator.model_has_dtensor
    accelerator.model_has_dtensor = lambda model: "torch.distributed.tensor" in sys.modules and has_dtensor(model)
