"""For tests of launched ranks: the tensors that ranks recorded, their last checkpoint, and a rank that is killed."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def recorded(launched: Path, name: str) -> "dict[str, torch.Tensor]":
    """The tensors that each of two ranks recorded, which must be bitwise equal."""
    import torch
    from safetensors.torch import load_file

    first, other = (load_file(launched / name / f"{rank}.safetensors") for rank in range(2))
    assert all(torch.equal(first[key], other[key]) for key in first)
    return first


def last_checkpoint(run: Path) -> "dict[str, torch.Tensor]":
    from safetensors.torch import load_file

    folder = max((run / "checkpoints").glob("step-*"))
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "state.safetensors")}


def error(actual: "torch.Tensor", expected: "torch.Tensor") -> float:
    """The norm of the difference, relative to the norm of `expected`."""
    import torch

    return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected))


def kill_at(step: int, recipe: Any) -> None:
    """Let this process be killed in the forward pass of a step, in a training without gradient accumulation."""
    calls, recipe_step = iter(range(step + 4)), recipe.step

    def step_or_die(*arguments: Any) -> Any:
        if next(calls, None) is None:  # the first five calls are before the first step
            os.kill(os.getpid(), signal.SIGKILL)
        return recipe_step(*arguments)

    recipe.step = step_or_die
