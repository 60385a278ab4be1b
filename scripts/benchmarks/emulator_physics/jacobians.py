"""Jacobians of 100,000 rows of 14 → 64 × 3 → 1 in float32, on one thread: ours, eager autograd, and vmap(jacrev).

The ways are called in turn, and each ratio is taken within a round, in CPU seconds.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.func import jacrev, vmap

from ensemble.recipes.emulator import networks

NUM_ROWS, NUM_INPUTS, WIDTHS = 100_000, 14, (64, 64, 64)


def measured(rounds: int) -> dict[str, Any]:
    """CPU seconds of each way, ratios of autograd's and vmap(jacrev)'s to ours, and the largest relative difference."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ones = {name: torch.ones(NUM_INPUTS if name.startswith("input") else 1) for name in networks.STATISTICS}
    network = networks.build("mlp", NUM_INPUTS, 1, widths=WIDTHS, statistics=ones).requires_grad_(False)
    x = torch.randn(NUM_ROWS, NUM_INPUTS)

    def by_autograd() -> torch.Tensor:
        inputs = x.clone().requires_grad_()
        return torch.autograd.grad(network(inputs).sum(), inputs)[0].unsqueeze(1)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "autograd": by_autograd,
        "ours": lambda: network.jacobian(x),
        "vmap_jacrev": lambda: vmap(jacrev(lambda row: network(row.unsqueeze(0)).squeeze(0)))(x),
    }
    reference = ways["vmap_jacrev"]()
    differences = {
        name: float((way() - reference).abs().max() / reference.abs().max()) for name, way in ways.items()
    }  # and a first call of each
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    return {
        "rows": NUM_ROWS,
        "network": [NUM_INPUTS, *WIDTHS, 1],
        "rounds": rounds,
        "cpu_s": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "times_of_ours": {
            name: _summary([other / ours for other, ours in zip(seconds[name], seconds["ours"], strict=True)])
            for name in ("autograd", "vmap_jacrev")
        },
        "largest_difference": max(differences.values()),
    }


def _summary(ratios: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(ratios), 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}
