"""The weights of finished trainings, compared bit by bit."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def weights(run_folder: Path) -> dict[str, torch.Tensor]:
    return load_file(run_folder / "final" / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
