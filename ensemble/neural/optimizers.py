"""Optimizers that torch has not: AdamATan2, and sign descent of embedding tables whose gradients are sparse.

    [AdamATan2(body, lr=1e-3, weight_decay=0.1), SparseSignSGD([table], lr=1e-2, weight_decay=0.1)]

Both keep everything that they remember in `state`, so checkpoints hold it as they do for torch's own optimizers.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed


class AdamATan2(torch.optim.Optimizer):
    """Adam with atan2 in place of the division: no ε, and steps that do not depend on the scale of the loss.

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
        """One step; parameters without a gradient are left as they are."""
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
            for step, together in by_step.items():
                self._move(group, step, together)

    def _move(self, group: dict[str, Any], step: int, parameters: list[torch.Tensor]) -> None:
        """A step of parameters that have had equally many before."""
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

    g is the sum of a row's gradients over all its uses and all ranks. The sign of each rank's own sum, or of each use, would
    give another result. `table.grad` is a sparse COO tensor (ids, rows of gradients), of this rank alone; None if it used no
    row. A use whose gradient is 0 in every column counts as none: ranks that stand idle at the end of an epoch have such.

    `step` is collective: ranks exchange ids and gradients of the rows that they used, and each makes the same step. Sums are
    in float64, which adds float32 gradients exactly unless their magnitudes differ by more than some 2^25: so the result is
    bitwise equal on any number of ranks. Neither memory nor communication grows with the rows of the table.

    Source: sapientinc/HRM, `models/sparse_embedding.py`.
    """

    def __init__(self, tables: Iterable[torch.nn.Parameter], lr: float = 1e-2, weight_decay: float = 0.0) -> None:
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(f"lr={lr}, weight_decay={weight_decay}: both must be 0 or more")
        super().__init__(tables, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; collective where a process group is initialised."""
        assert closure is None
        for group in self.param_groups:
            for table in group["params"]:
                ids, sums = summed_rows(table)
                if len(ids):
                    rows = table[ids] * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * sums.sign().to(table.dtype)
                    table.index_copy_(0, ids, rows)


def summed_rows(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a table that any rank used, int64 (n,), rising, and the sums of their gradients, float64 (n, columns).

    Collective where a process group is initialised; the same on every rank.
    """
    if table.grad is None:
        ids, gradients = torch.zeros(0, dtype=torch.long, device=table.device), table.new_zeros(0, *table.shape[1:])
    else:
        # Not coalesced: that would add up in an order, and in float32
        ids, gradients = table.grad._indices()[0], table.grad._values()
        used = gradients.flatten(1).any(1)
        ids, gradients = ids[used], gradients[used]
    ids, gradients = gathered(ids), gathered(gradients)
    touched, place = ids.unique(return_inverse=True)
    sums = torch.zeros(len(touched), *gradients.shape[1:], dtype=torch.float64, device=gradients.device)
    return touched, sums.index_add_(0, place, gradients.double())


def gathered(of_rank: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, which may differ in length, one after another."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return of_rank
    lengths = [torch.empty(1, dtype=torch.long, device=of_rank.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(lengths, torch.full_like(lengths[0], len(of_rank)))
    longest = int(max(lengths))
    if not longest:
        return of_rank
    padded = of_rank.new_zeros(longest, *of_rank.shape[1:])
    padded[: len(of_rank)] = of_rank
    pieces = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(pieces, padded)
    return torch.cat([piece[: int(length)] for piece, length in zip(pieces, lengths, strict=True)])
