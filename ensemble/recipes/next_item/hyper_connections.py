"""Manifold-constrained hyper-connections (mHC): N residual streams that each layer F reads from and writes to.

    X' = H_res X + h_post ⊗ F(h_pre · X)        X (N, D); h_pre, h_post and H_res are computed for each token

Hyper-connections: Zhu et al. 2024, arXiv:2409.19606. H_res on the manifold of doubly stochastic matrices: DeepSeek 2025,
arXiv:2512.24880. With x̃ the flattened streams after RMSNorm, always in fp32:

    h_pre = σ(α θ x̃ + b)    h_post = 2 σ(α θ x̃ + b)    H_res = Sinkhorn(exp(α θ x̃ + b))

where σ is the sigmoid, and each of the three has its own trained α (a number), θ (a matrix) and b (a vector).
The streams begin as copies of the input (`expand`), and the output is their mean (`reduce`). At initialisation this equals a
residual connection, since θ is 0, h_post is 1, and h_pre sums to 1. Layer k initially reads mostly from stream k mod N: if
all layers read from all streams equally, the streams would stay equal during training.

Shape suffixes: N streams, D width. "…" stands for leading dimensions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STARTING_SCALE = 0.01
"""Initial value of α, which scales the part of the mappings that depends on the token."""
NUM_ITERATIONS = 20
"""Iterations of `sinkhorn`."""
READ_FROM_OTHERS = 0.02
"""Initial value of h_pre for each stream except stream k mod N."""
STARTING_DIAGONAL = 8.0
"""Initial logit of the diagonal of H_res. Each stream then passes a share of about exp(−8) to each other stream."""


class HyperConnection(nn.Module):
    """The connection of the streams with one layer. layer_number : the number k of the layer in the model, from 0."""

    def __init__(self, num_streams: int, width: int, layer_number: int):
        super().__init__()
        self.num_streams = num_streams
        self.mapping = nn.Linear(num_streams * width, num_streams * (num_streams + 2))
        self.scale = nn.Parameter(torch.full((3,), STARTING_SCALE))
        nn.init.zeros_(self.mapping.weight)
        with torch.no_grad():
            pre_N, post_N, res_NN = self._split(self.mapping.bias)
            share_N = torch.full((num_streams,), READ_FROM_OTHERS if num_streams > 1 else 0.0)
            share_N[layer_number % num_streams] = 1 - (num_streams - 1) * READ_FROM_OTHERS
            pre_N.copy_(torch.logit(share_N, eps=1e-4))
            post_N.zero_()
            res_NN.copy_(STARTING_DIAGONAL * torch.eye(num_streams))

    def forward(self, streams_ND: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The streams (…, N, D) after `layer`, which maps (…, D) to (…, D)."""
        pre_N, post_N, res_NN = self.mappings(streams_ND)
        dtype = streams_ND.dtype
        input_D = (pre_N.to(dtype)[..., None, :] @ streams_ND)[..., 0, :]
        output_D = layer(input_D)
        return torch.addcmul(res_NN.to(dtype) @ streams_ND, post_N.to(dtype)[..., None], output_D[..., None, :])

    def mappings(self, streams_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h_pre (…, N) in (0, 1), h_post (…, N) in (0, 2) and H_res (…, N, N), doubly stochastic; float32."""
        with torch.autocast(streams_ND.device.type, enabled=False):
            flat = streams_ND.flatten(-2).float()
            mean_square = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).square() / flat.shape[-1]
            # The division of RMSNorm is applied after the product, which has fewer values than the streams
            projected = nn.functional.linear(flat, self.mapping.weight.float()) * torch.rsqrt(mean_square + 1e-6)
            pre_N, post_N, res_NN = (
                scale * part + bias
                for scale, part, bias in zip(
                    self.scale.float(), self._split(projected), self._split(self.mapping.bias.float()), strict=True
                )
            )
            return torch.sigmoid(pre_N), 2 * torch.sigmoid(post_N), sinkhorn(res_NN, NUM_ITERATIONS)

    def _split(self, mapped: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The parts for h_pre (…, N), h_post (…, N) and H_res (…, N, N) of (…, N (N + 2)) values."""
        num = self.num_streams
        pre_N, post_N, res = mapped.split([num, num, num * num], dim=-1)
        return pre_N, post_N, res.unflatten(-1, (num, num))


def sinkhorn(logits_NN: Tensor, num_iterations: int) -> Tensor:
    """Almost doubly stochastic matrices from logits (…, N, N): rows, then columns of exp(logits) are normalised repeatedly.

    The columns sum to 1, since they are normalised last. The error of the row sums grows with the logits: 2e-7, 4e-4 and
    0.06 after 20 iterations on normal logits with standard deviation 0.1, 1 and 3.
    """
    return _Sinkhorn.apply(logits_NN, num_iterations)


class _Sinkhorn(torch.autograd.Function):
    """The computation of `sinkhorn`, with the gradient written by hand: autograd of the same operations takes five times as
    long. Tokens are the last dimension here, since sums over a short last dimension are slow.
    """

    @staticmethod
    def forward(ctx: Any, logits_NN: Tensor, num_iterations: int) -> Tensor:
        logits = logits_NN.movedim((-2, -1), (0, 1)).contiguous()
        # The maximum of each row is subtracted, so no row underflows to zeros; the first normalisation cancels this factor
        matrix = torch.exp(logits - logits.amax(1, keepdim=True))
        saved = [matrix]
        for number in range(2 * num_iterations):
            total = matrix.sum(1 - number % 2, keepdim=True).add_(1e-30)
            matrix = matrix / total
            saved += [matrix, total]
        ctx.save_for_backward(*saved)
        return matrix.movedim((0, 1), (-2, -1)).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        first_matrix, *saved = ctx.saved_tensors
        gradient = gradients[0].movedim((-2, -1), (0, 1)).contiguous()
        for number in reversed(range(len(saved) // 2)):
            matrix, total = saved[2 * number : 2 * number + 2]
            gradient = (gradient - (gradient * matrix).sum(1 - number % 2, keepdim=True)) / total
        return (gradient * first_matrix).movedim((0, 1), (-2, -1)), None


def expand(x_D: Tensor, num_streams: int) -> Tensor:
    """N copies (…, N, D) of `x_D`, (…, D)."""
    return x_D[..., None, :].expand(*x_D.shape[:-1], num_streams, x_D.shape[-1])


def reduce(streams_ND: Tensor) -> Tensor:
    """The mean of the streams, (…, D)."""
    return streams_ND.mean(-2)
