"""Layers of the reasoning models: post-norm blocks of a mixing between cells and a gated perceptron; the puzzle embedding.

A block is x ← norm(x + mix(x)), x ← norm(x + perceptron(x)) with RMSNorm without weights (eps 1e-5). Three ways to mix:

    attention  softmax attention among all cells, each to each, as in the reference HRM; with or without RoPE
    heads      each head adds up the values of all cells by learned weights (heads, L, L) that do not depend on the input
    tokens     a gated perceptron over the cells, for each channel by itself, as in the reference TRM-MLP

Initial weights: normal, truncated at two standard deviations, of standard deviation 1 / √(inputs) after the cut.

Letters of shapes: B rows, L tokens, D width, H heads.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

EPSILON = 1e-5
ROPE_BASE = 10_000.0
ROUNDED_TO = 256
"""Of the inner widths of the references' perceptrons."""
ROWS_IN_CACHE = 2048
"""That a perceptron takes at a time on a CPU where no gradient is asked for. For the widened rows of a whole batch, the
allocator would ask the system for memory in each call."""


def truncated_normal(*size: int, std: float) -> nn.Parameter:
    """Weights of this standard deviation, none further than two untruncated deviations from 0.

    The normal that is cut is wider, so that `std` holds after the cut.
    """
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    kept = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2.0)))  # standard deviation of a unit normal, cut at ±2
    weights = torch.empty(size)
    nn.init.trunc_normal_(weights, std=std / kept, a=-2 * std / kept, b=2 * std / kept)
    return nn.Parameter(weights)


class Linear(nn.Linear):
    """Without bias; see the docstring of this file for the initial weights."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs, bias=False)
        self.weight.data = truncated_normal(num_outputs, num_inputs, std=num_inputs**-0.5).data


def reference_inner_width(width: int) -> int:
    """Of the references' perceptrons: 8/3 of their width, rounded up to a multiple of 256."""
    return -(-8 * width // (3 * ROUNDED_TO)) * ROUNDED_TO


class NormedSum(torch.autograd.Function):
    """RMSNorm without weights of x + y over the last dimension, in float32 or float64.

    With n = (x + y) / r, where r is the root of the mean square + EPSILON, both gradients are (g − n · mean(g · n)) / r.
    Autograd of torch's own norm reads and writes memory some six times more.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = precise(x) + y
        scale = torch.linalg.vector_norm(total, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
        normed = total.mul_(scale)
        ctx.save_for_backward(normed, scale)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed, scale = ctx.saved_tensors
        along = (gradient * normed).mean(dim=-1, keepdim=True)
        of_sum = torch.addcmul(gradient, normed, along, value=-1).mul_(scale)
        return of_sum, of_sum


class Gated(torch.autograd.Function):
    """silu(first half) · second half, of the last dimension. The backward pass writes both halves into one tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate, value = x.chunk(2, dim=-1)
        of_x = torch.empty_like(x)
        of_gate, of_value = of_x.chunk(2, dim=-1)
        torch.mul(gradient, F.silu(gate), out=of_value)
        torch.ops.aten.silu_backward(gradient * value, gate, grad_input=of_gate)
        return of_x


class Perceptron(nn.Module):
    """SwiGLU: W₂(silu(W_g x) · W_u x)."""

    def __init__(self, width: int, inner_width: int):
        super().__init__()
        self.widen, self.narrow = Linear(width, 2 * inner_width), Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return self._whole(x)
        return torch.cat([self._whole(rows) for rows in x.reshape(-1, x.shape[-1]).split(ROWS_IN_CACHE)]).view(x.shape)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = Gated.apply(self.widen(x))
        return self.narrow(gated)


class Attention(nn.Module):
    """Softmax attention of all tokens to all tokens.

    RoPE turns pairs of neighbouring channels, as in its source (Su et al. 2021, arXiv:2104.09864). The reference HRM pairs
    the two halves of a head, which is the same up to the order of the rows of `project`.
    """

    def __init__(self, num_tokens: int, width: int, num_heads: int, has_rope: bool):
        super().__init__()
        self.num_heads = num_heads
        self.project, self.join = Linear(width, 3 * width), Linear(width, width)
        self.has_rope = has_rope
        self.turns: torch.Tensor
        if has_rope:
            frequency = ROPE_BASE ** -(torch.arange(0, width // num_heads, 2) / (width // num_heads))
            angle = torch.outer(torch.arange(num_tokens), frequency)
            # Cosine and sine for each token and pair, (L, 1, D / H / 2, 2)
            self.register_buffer("turns", torch.stack([angle.cos(), angle.sin()], dim=-1)[:, None], persistent=False)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        num_rows, num_tokens, width = x_BLD.shape
        projected = self.project(x_BLD).view(num_rows, num_tokens, 3, self.num_heads, -1)
        query, key, value = projected.unbind(2)
        if self.has_rope:
            query, key = self._turned(projected[:, :, :2].flatten(2, 3)).unflatten(2, (2, -1)).unbind(2)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return self.join(mixed.transpose(1, 2).reshape(num_rows, num_tokens, width))

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """x : (B, L, heads, D / H). Complex numbers make one pass of what would be five."""
        pairs, turns = (torch.view_as_complex(precise(of)) for of in (x.unflatten(-1, (-1, 2)), self.turns))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class Heads(nn.Module):
    """Sums over cells whose weights are learned for each head and pair of cells, and do not depend on the input."""

    def __init__(self, num_tokens: int, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.project, self.join = Linear(width, width), Linear(width, width)
        self.weight_HLL = truncated_normal(num_heads, num_tokens, num_tokens, std=num_tokens**-0.5)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        num_rows, num_tokens, width = x_BLD.shape
        value = self.project(x_BLD).view(num_rows, num_tokens, self.num_heads, -1)
        mixed = torch.einsum("hlm,bmhd->blhd", self.weight_HLL, value)
        return self.join(mixed.reshape(num_rows, num_tokens, width))


class Tokens(nn.Module):
    """A gated perceptron over the tokens of each channel."""

    def __init__(self, num_tokens: int):
        super().__init__()
        self.perceptron = Perceptron(num_tokens, reference_inner_width(num_tokens))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return self.perceptron(x_BLD.transpose(1, 2)).transpose(1, 2)


class Module(nn.Module):
    """Blocks, one after another."""

    def __init__(
        self, num_tokens: int, width: int, num_layers: int, num_heads: int, inner_width: int, *, mixing: str, has_rope: bool
    ):
        super().__init__()

        def mix() -> nn.Module:
            if mixing == "attention":
                return Attention(num_tokens, width, num_heads, has_rope)
            return Heads(num_tokens, width, num_heads) if mixing == "heads" else Tokens(num_tokens)

        self.mixers = nn.ModuleList(mix() for _ in range(num_layers))
        self.perceptrons = nn.ModuleList(Perceptron(width, inner_width) for _ in range(num_layers))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        for mixer, perceptron in zip(self.mixers, self.perceptrons, strict=True):
            x_BLD = NormedSum.apply(x_BLD, mixer(x_BLD))
            x_BLD = NormedSum.apply(x_BLD, perceptron(x_BLD))
        return x_BLD


class PuzzleEmbedding(nn.Module):
    """A table whose gradient is sparse and of this rank alone: ids and raw gradients of the rows that its batches used.

    The table requires no gradient, so that DDP, the gradient norm, clipping and the moving average leave it alone. A hook
    sets its `grad`, which adds up over micro-batches as others do; `SparseSignSGD` sums it over the ranks.
    """

    def __init__(self, num_ids: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(num_ids, width), requires_grad=False)

    def forward(self, ids_B: torch.Tensor) -> torch.Tensor:
        """The rows of `ids_B` (int64), (B, D)."""
        rows_BD = self.table[ids_B]
        if torch.is_grad_enabled():
            rows_BD.requires_grad_().register_hook(lambda gradient_BD: self._keep(ids_B, gradient_BD))
        return rows_BD

    def _keep(self, ids_B: torch.Tensor, gradient_BD: torch.Tensor) -> None:
        added = torch.sparse_coo_tensor(ids_B[None], gradient_BD.detach(), self.table.shape, check_invariants=False)
        self.table.grad = added if self.table.grad is None else self.table.grad + added


def precise(x: torch.Tensor) -> torch.Tensor:
    """In float32, unless it is in float64."""
    return x if x.dtype == torch.float64 else x.float()
