"""Small networks of the recipe emulator with random weights, and a manifest of their data."""

from typing import Any

import torch

from ensemble.recipes.emulator import networks
from ensemble.recipes.emulator.networks import Emulator

NAMES = {"mlp": (7, 2), "bilinear": (9, 9), "conserved": (6, 6)}
"""Inputs and outputs of each network."""


def network(name: str) -> Emulator:
    num_inputs, num_outputs = NAMES[name]
    draw = torch.Generator().manual_seed(1)
    statistics = {
        f"{side}_{kind}": torch.rand(size, generator=draw) + 0.5
        for side, size in (("input", num_inputs), ("output", num_outputs))
        for kind in ("mean", "std")
    }
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "mlp": {"name": "mlp", "widths": (16, 8)},
        "bilinear": {"name": "bilinear", "widths": (3, 2)},
        "conserved": {"name": "mlp", "widths": (8,), "activation": "tanh", "residual": True, "conserve": (1.0,) * 6},
    }[name]
    return networks.build(num_inputs=num_inputs, num_outputs=num_outputs, statistics=statistics, **settings)


def manifest(emulator: Emulator) -> dict[str, Any]:
    inputs, outputs = (
        [f"{name}{n}" for n in range(size)] for name, size in (("in", emulator.num_inputs), ("out", emulator.num_outputs))
    )
    facts = {"system": "test", "inputs": inputs, "outputs": outputs, "units": {inputs[0]: "degC"}}
    return {"fingerprint": "f00d", "emulator": facts}
