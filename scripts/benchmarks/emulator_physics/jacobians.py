"""Jacobians of 100,000 rows of 14 → 64 × 3 → 1 in float32, on one thread: ours, eager autograd, and vmap(jacrev).

    python scripts/benchmark.py emulator_jacobian

The methods are called alternately, and each ratio is that of CPU seconds in one round. `products` is a lower bound of any
method: the products of the matrices of the forward and the backward pass alone, in blocks of rows like ours.
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import jacrev, vmap

from benchmarks.runs import spread
from benchmarks.timing import cpu_seconds
from ensemble.recipes.emulator import networks

NUM_ROWS, NUM_INPUTS, WIDTHS = 100_000, 14, (64, 64, 64)


def random_network() -> networks.Emulator:
    """A network with random weights, and statistics of 1, for a process with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ones = {name: torch.ones(NUM_INPUTS if name.startswith("input") else 1) for name in networks.STATISTICS}
    return networks.build("mlp", NUM_INPUTS, 1, widths=WIDTHS, statistics=ones).requires_grad_(False)


def emulator_jacobian(rounds: int) -> dict[str, Any]:
    """CPU seconds of each method, ratios of autograd and vmap(jacrev) to ours, and the largest relative difference."""
    network = random_network()
    x = torch.randn(NUM_ROWS, NUM_INPUTS)

    def by_autograd() -> torch.Tensor:
        inputs = x.clone().requires_grad_()
        return torch.autograd.grad(network(inputs).sum(), inputs)[0].unsqueeze(1)

    def products() -> None:
        for values in x.split(networks.BLOCK_ROWS):
            for weight in weights:
                values = F.linear(values, weight)
            for weight in reversed(weights):
                values = values @ weight

    weights = [weight for name, weight in network.named_parameters() if name.endswith("weight")]
    methods: dict[str, Callable[[], torch.Tensor]] = {
        "autograd": by_autograd,
        "ours": lambda: network.jacobian(x),
        "vmap_jacrev": lambda: vmap(jacrev(lambda row: network(row.unsqueeze(0)).squeeze(0)))(x),
    }
    reference = methods["vmap_jacrev"]()
    # These calls are a warm-up too
    differences = [float((method() - reference).abs().max() / reference.abs().max()) for method in methods.values()]
    timed: dict[str, Callable[[], object]] = {**methods, "products": products}
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, method in timed.items():
            seconds[name].append(cpu_seconds(method))
    return {
        "rows": NUM_ROWS,
        "network": [NUM_INPUTS, *WIDTHS, 1],
        "rounds": rounds,
        "cpu_s": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "times_of_ours": {
            name: spread([other / ours for other, ours in zip(seconds[name], seconds["ours"], strict=True)], 3)
            for name in ("autograd", "vmap_jacrev", "products")
        },
        "largest_difference": max(differences),
    }
