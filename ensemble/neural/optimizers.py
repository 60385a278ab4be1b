"""Optimizers that torch does not have: AdamATan2, and sign SGD for embedding tables with sparse gradients.

    [AdamATan2(body, lr=1e-3, weight_decay=0.1), SparseSignSGD([table], lr=1e-2, weight_decay=0.1)]

Both keep all their state in `state`, as torch's optimizers do, so checkpoints contain it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed


class AdamATan2(torch.optim.Optimizer):
    """Adam with atan2 instead of the division, which needs no ε and makes steps independent of the scale of the loss.

    With the gradient g at step t:

        m ← β₁ m + (1 − β₁) g                  v ← β₂ v + (1 − β₂) g²
        p ← p (1 − lr · weight_decay) − lr / (1 − β₁ᵗ) · atan2(m, √v / √(1 − β₂ᵗ))

    The first bias correction is outside atan2, as in the reference implementation. A step is at most π/2 · lr / (1 − β₁ᵗ). A
    loss multiplied by a power of two gives bitwise equal weights, unless squares of gradients under- or overflow.

    Source: Everett et al. 2024, arXiv:2407.05872, section on Adam-atan2; imoneoi/adam-atan2, `csrc/adam_atan2.cu`.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.0
    ) -> None:
        if not (lr >= 0 and weight_decay >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(
                f"lr={lr}, betas={betas}, weight_decay={weight_decay}: rates must be 0 or more, betas in [0, 1)"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; parameters without a gradient do not change."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            by_step: dict[int, list[torch.Tensor]] = {}
            for parameter in parameters:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(parameter)
            for step, parameters_at_step in by_step.items():
                self._update(group, step, parameters_at_step)

    def _update(self, group: dict[str, Any], step: int, parameters: list[torch.Tensor]) -> None:
        """Update parameters that have taken the same number of steps."""
        (beta1, beta2), rate = group["betas"], group["lr"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        means, squares = ([self.state[parameter][name] for parameter in parameters] for name in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scales = torch._foreach_div(squares, 1 - beta2**step)
        torch._foreach_sqrt_(scales)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        for parameter, mean, scale in zip(parameters, means, scales, strict=True):
            parameter.sub_(torch.atan2(mean, scale), alpha=rate / (1 - beta1**step))


class SparseSignSGD(torch.optim.Optimizer):
    """w ← w (1 − lr · weight_decay) − lr · sign(g), for the rows of a table that the global batch used.

    g is the sum of a row's gradients over all uses of the row and all ranks; summing signs instead would give another
    result. `table.grad` is a sparse COO tensor (ids, gradient rows) of this rank, or None if the rank used no row. A use
    with a gradient of 0 in every column does not count, since idle ranks at the end of an epoch have such gradients.

    `step` is collective: ranks exchange the ids and gradients of the rows they used, and all take the same step. Sums are in
    float64, which is exact for float32 gradients unless their magnitudes differ by more than about 2^25, so the result is
    bitwise equal on any number of ranks. Memory and communication do not grow with the number of rows of the table.

    Source: sapientinc/HRM, `models/sparse_embedding.py`.
    """

    def __init__(self, tables: Iterable[torch.nn.Parameter], lr: float = 1e-2, weight_decay: float = 0.0) -> None:
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(f"lr={lr}, weight_decay={weight_decay}: both must be 0 or more")
        super().__init__(tables, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; collective if a process group is initialised."""
        assert closure is None
        for group in self.param_groups:
            for table in group["params"]:
                ids, sums = sum_row_gradients(table)
                if len(ids):
                    rows = table[ids] * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * sums.sign().to(table.dtype)
                    table.index_copy_(0, ids, rows)


def sum_row_gradients(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids of the rows that any rank used, int64 (n,), ascending, and the sums of their gradients, float64 (n, columns).

    The same on every rank; collective if a process group is initialised.
    """
    if table.grad is None:
        ids, gradients = torch.zeros(0, dtype=torch.long, device=table.device), table.new_zeros(0, *table.shape[1:])
    else:
        # Not coalesced: that would sum in float32, in an arbitrary order
        ids, gradients = table.grad._indices()[0], table.grad._values()
        used = gradients.flatten(1).any(1)
        ids, gradients = ids[used], gradients[used]
    ids, gradients = all_gather(ids), all_gather(gradients)
    used_ids, positions = ids.unique(return_inverse=True)
    sums = torch.zeros(len(used_ids), *gradients.shape[1:], dtype=torch.float64, device=gradients.device)
    return used_ids, sums.index_add_(0, positions, gradients.double())


def all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """Concatenate the tensors of all ranks, which may differ in their first dimension."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return tensor
    lengths = [torch.empty(1, dtype=torch.long, device=tensor.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(lengths, torch.full_like(lengths[0], len(tensor)))
    longest = int(max(lengths))
    if not longest:
        return tensor
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    pieces = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(pieces, padded)
    return torch.cat([piece[: int(length)] for piece, length in zip(pieces, lengths, strict=True)])
