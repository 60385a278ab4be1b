"""Layers of the reasoning models: blocks that mix the cells and have a gated perceptron, and the puzzle embedding.

A block is x ← norm(x + mix(x)), x ← norm(x + perceptron(x)), where norm is RMSNorm without weights (eps 1e-5). mix is one
of:

    attention  softmax attention of all cells to all cells, as in the reference HRM; with or without RoPE
    heads      each head sums the values of all cells with learned weights (heads, L, L) that do not depend on the input
    tokens     a gated perceptron over the cells, separately for each channel; the norm after it is over the cells too, as in
               the reference TRM-MLP

Initial weights: normal, truncated at two standard deviations, with standard deviation 1 / √(inputs) after the truncation.

Shape suffixes: B rows, L tokens, D width, H heads.
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
"""The inner widths of the references' perceptrons are multiples of this."""
ROWS_AT_ONCE = 2048
"""Rows that a perceptron computes at a time on a CPU without gradients. If it computed a whole batch at once, the allocator
would request the memory of the hidden layer from the system in each call."""


def truncated_normal(*size: int, std: float) -> nn.Parameter:
    """Normal weights with standard deviation `std`, truncated at two deviations of the untruncated distribution.

    The untruncated distribution is wider, so that the standard deviation is `std` after the truncation.
    """
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    truncated = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2.0)))  # standard deviation of a unit normal, truncated at ±2
    weights = torch.empty(size)
    nn.init.trunc_normal_(weights, std=std / truncated, a=-2 * std / truncated, b=2 * std / truncated)
    return nn.Parameter(weights)


class Linear(nn.Linear):
    """A linear layer without bias, with the initial weights of the module's docstring."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs, bias=False)
        self.weight.data = truncated_normal(num_outputs, num_inputs, std=num_inputs**-0.5).data


def reference_inner_width(width: int) -> int:
    """The inner width of the references' perceptrons: 8/3 of the width, rounded up to a multiple of 256."""
    return -(-8 * width // (3 * ROUNDED_TO)) * ROUNDED_TO


class NormedSum(torch.autograd.Function):
    """RMSNorm without weights of x + y over the last dimension, in float32 or float64.

    With n = (x + y) / r, where r = √(mean((x + y)²) + EPSILON), both gradients are (g − n · mean(g · n)) / r.
    Autograd of PyTorch's own norm reads and writes memory about six times more often.
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
        total_gradient = torch.addcmul(gradient, normed, along, value=-1).mul_(scale)
        return total_gradient, total_gradient


class Gated(torch.autograd.Function):
    """silu(first half) · second half of the last dimension. The backward pass writes both gradients into one tensor."""

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
        x_gradient = torch.empty_like(x)
        gate_gradient, value_gradient = x_gradient.chunk(2, dim=-1)
        torch.mul(gradient, F.silu(gate), out=value_gradient)
        torch.ops.aten.silu_backward(gradient * value, gate, grad_input=gate_gradient)
        return x_gradient


class Perceptron(nn.Module):
    """SwiGLU: W₂(silu(W_g x) · W_u x)."""

    def __init__(self, width: int, inner_width: int):
        super().__init__()
        self.widen, self.narrow = Linear(width, 2 * inner_width), Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu":
            return self._whole(x)
        return torch.cat([self._whole(rows) for rows in x.reshape(-1, x.shape[-1]).split(ROWS_AT_ONCE)]).view(x.shape)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(Gated.apply(self.widen(x)))


class Attention(nn.Module):
    """Softmax attention of all tokens to all tokens, with or without rotary position embeddings (RoPE).

    RoPE rotates pairs of neighbouring channels (Su et al. 2021, arXiv:2104.09864). The reference HRM pairs the two halves of
    a head, which is the same except for the order of the rows of `project`.
    """

    def __init__(self, num_tokens: int, width: int, num_heads: int, has_rope: bool):
        super().__init__()
        self.num_heads = num_heads
        self.project, self.join = Linear(width, 3 * width), Linear(width, width)
        self.has_rope = has_rope
        self.rotations: torch.Tensor
        if has_rope:
            frequency = ROPE_BASE ** -(torch.arange(0, width // num_heads, 2) / (width // num_heads))
            angle = torch.outer(torch.arange(num_tokens), frequency)
            # Cosine and sine for each token and pair, (L, 1, D / H / 2, 2)
            self.register_buffer("rotations", torch.stack([angle.cos(), angle.sin()], dim=-1)[:, None], persistent=False)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        num_rows, num_tokens, width = x_BLD.shape
        projected = self.project(x_BLD).view(num_rows, num_tokens, 3, self.num_heads, -1)
        query, key, value = projected.unbind(2)
        if self.has_rope:
            query, key = self.rotated(projected[:, :, :2].flatten(2, 3)).unflatten(2, (2, -1)).unbind(2)
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        return self.join(mixed.transpose(1, 2).reshape(num_rows, num_tokens, width))

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of channels of x, (B, L, heads, D / H). Complex numbers need one pass over memory instead of five."""
        pairs, factors = (torch.view_as_complex(precise(tensor)) for tensor in (x.unflatten(-1, (-1, 2)), self.rotations))
        return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)


class HeadMixing(nn.Module):
    """Sums over cells, with learned weights for each head and pair of cells that do not depend on the input."""

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


class Blocks(nn.Module):
    """A sequence of blocks, see the module's docstring."""

    def __init__(
        self, num_tokens: int, width: int, num_layers: int, num_heads: int, inner_width: int, *, mixing: str, has_rope: bool
    ):
        super().__init__()

        def mix() -> nn.Module:
            if mixing == "attention":
                return Attention(num_tokens, width, num_heads, has_rope)
            if mixing == "heads":
                return HeadMixing(num_tokens, width, num_heads)
            return Perceptron(num_tokens, reference_inner_width(num_tokens))

        self.is_over_tokens = mixing == "tokens"
        self.mixers = nn.ModuleList(mix() for _ in range(num_layers))
        self.perceptrons = nn.ModuleList(Perceptron(width, inner_width) for _ in range(num_layers))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        for mixer, perceptron in zip(self.mixers, self.perceptrons, strict=True):
            if self.is_over_tokens:
                x_BDL = x_BLD.transpose(1, 2)
                x_BLD = NormedSum.apply(x_BDL, mixer(x_BDL)).transpose(1, 2)
            else:
                x_BLD = NormedSum.apply(x_BLD, mixer(x_BLD))
            x_BLD = NormedSum.apply(x_BLD, perceptron(x_BLD))
        return x_BLD


class PuzzleEmbedding(nn.Module):
    """A table of embeddings with a sparse gradient: ids and gradients of the rows that the batches of this rank used.

    The table has `requires_grad=False`, so that DDP, the gradient norm, clipping and the moving average ignore it. A hook
    sets its `grad`, which accumulates over micro-batches; `SparseSignSGD` sums it over the ranks.
    """

    def __init__(self, num_ids: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(num_ids, width), requires_grad=False)

    def forward(self, ids_B: torch.Tensor) -> torch.Tensor:
        """The rows of `ids_B` (int64), (B, D)."""
        rows_BD = self.table[ids_B]
        if torch.is_grad_enabled():
            rows_BD.requires_grad_().register_hook(lambda gradient_BD: self._accumulate(ids_B, gradient_BD))
        return rows_BD

    def _accumulate(self, ids_B: torch.Tensor, gradient_BD: torch.Tensor) -> None:
        added = torch.sparse_coo_tensor(ids_B[None], gradient_BD.detach(), self.table.shape, check_invariants=False)
        self.table.grad = added if self.table.grad is None else self.table.grad + added


def precise(x: torch.Tensor) -> torch.Tensor:
    """x in float32, or in float64 if it is float64."""
    return x if x.dtype == torch.float64 else x.float()
