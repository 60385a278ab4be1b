"""Checkpoints: a folder of safetensors and JSON with a list of checksums; no pickle is ever written or loaded.

model.safetensors       weights
state.safetensors       optimizer moments and every rank's random state
state.json              step, scores, configuration, and the scalars of the optimizers
manifest.json           each file's size and SHA-256
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ensemble.data import manifest
from ensemble.errors import UserError


def save(folder: Path, model: torch.nn.Module, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint beside `folder` and rename it into place; the one before it stays until then."""
    with manifest.new_folder(folder, True, "checkpoint") as scratch:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, scratch / "model.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch / "state.safetensors")
        (scratch / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        manifest.write_manifest(scratch, {"kind": "checkpoint"})


def load_state(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The JSON state and the tensors beside it, after checking every file; `UserError` names a damaged one."""
    manifest.verify(folder)
    return manifest.read_json(folder / "state.json"), _load(folder / "state.safetensors")


def load_model(folder: Path, model: torch.nn.Module) -> None:
    """Load weights; `UserError` when the file is damaged or belongs to another model."""
    try:
        model.load_state_dict(_load(folder / "model.safetensors"))
    except RuntimeError as error:
        raise UserError(f"{folder} holds the weights of another model: {' '.join(str(error).split())[:300]}") from None


def flatten_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and JSON; `restore_optimizer` is its inverse."""
    state = optimizer.state_dict()
    tensors, scalars = {}, {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{number}.{name}"] = value
            else:
                scalars[f"{number}.{name}"] = value
    return tensors, {"groups": state["param_groups"], "scalars": scalars}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str, tensors: dict[str, torch.Tensor], about: dict[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        if key.startswith(f"{prefix}."):
            number, name = key.removeprefix(f"{prefix}.").split(".", 1)
            state.setdefault(int(number), {})[name] = tensor
    for key, value in about["scalars"].items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": about["groups"]})


def _load(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: name a checkpoint folder that train.py wrote") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}): use another checkpoint") from None
