"""Manifold-constrained hyper-connections (mHC): a residual of N streams that layers read from and write to.

    X' = H_res X + h_post ⊗ F(h_pre · X)        X (N, D), one matrix of each kind for every token

Hyper-connections: Zhu et al. 2024, arXiv:2409.19606. On the manifold of doubly stochastic matrices: DeepSeek 2025,
arXiv:2512.24880. With x̃ the flattened streams after RMSNorm, in fp32 whatever the autocast:

    h_pre = σ(α θ x̃ + b)    h_post = 2 σ(α θ x̃ + b)    H_res = Sinkhorn(exp(α θ x̃ + b))

The streams are copies of the input when they begin (`expand`) and their mean when they end (`reduce`); in between they are
carried from layer to layer. As initialised, all this is a plain residual: θ is 0, h_post 1, and h_pre sums to 1. Layer k
then reads mostly from stream k mod N: were the streams treated alike, they would stay alike for ever.

Shape suffixes: N streams, D width; whatever comes before them is written as three dots.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STARTING_SCALE = 0.01
"""α: how much the mappings listen to the token at the start."""
READ_FROM_OTHERS = 0.02
"""What a layer reads at the start from each stream that is not its own."""
STARTING_DIAGONAL = 8.0
"""Logit of the diagonal of H_res: exp(-8) of a stream goes to each other one."""


class HyperConnection(nn.Module):
    """The streams around one layer; `layer_number` counts the layers of the model from 0."""

    def __init__(self, num_streams: int, width: int, layer_number: int, num_iterations: int = 20):
        super().__init__()
        self.num_streams, self.num_iterations = num_streams, num_iterations
        self.mapping = nn.Linear(num_streams * width, num_streams * (num_streams + 2))
        self.scale = nn.Parameter(torch.full((3,), STARTING_SCALE))
        nn.init.zeros_(self.mapping.weight)
        with torch.no_grad():
            pre_N, post_N, res_NN = self._split(self.mapping.bias)
            own = layer_number % num_streams
            share_N = torch.full((num_streams,), READ_FROM_OTHERS if num_streams > 1 else 0.0)
            share_N[own] = 1 - (num_streams - 1) * READ_FROM_OTHERS
            pre_N.copy_(torch.logit(share_N, eps=1e-4))
            post_N.zero_()
            res_NN.copy_(STARTING_DIAGONAL * torch.eye(num_streams))

    def forward(self, streams_ND: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        """The streams (…, N, D) after `layer`, which maps (…, D) to (…, D)."""
        pre_N, post_N, res_NN = self.mappings(streams_ND)
        dtype = streams_ND.dtype
        read_D = (pre_N.to(dtype)[..., None, :] @ streams_ND)[..., 0, :]
        written_D = layer(read_D)
        return torch.addcmul(res_NN.to(dtype) @ streams_ND, post_N.to(dtype)[..., None], written_D[..., None, :])

    def mappings(self, streams_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h_pre (…, N) in (0, 1), h_post (…, N) in (0, 2) and H_res (…, N, N), doubly stochastic; float32."""
        with torch.autocast(streams_ND.device.type, enabled=False):
            flat = streams_ND.flatten(-2).float()
            mean_square = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).square() / flat.shape[-1]
            # RMSNorm after the product: what it scales is smaller then
            heard = nn.functional.linear(flat, self.mapping.weight.float()) * torch.rsqrt(mean_square + 1e-6)
            pre_N, post_N, res_NN = (
                scale * part + bias
                for scale, part, bias in zip(
                    self.scale.float(), self._split(heard), self._split(self.mapping.bias.float()), strict=True
                )
            )
            return torch.sigmoid(pre_N), 2 * torch.sigmoid(post_N), sinkhorn(res_NN, self.num_iterations)

    def _split(self, mapped: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        num = self.num_streams
        pre_N, post_N, res = mapped.split([num, num, num * num], dim=-1)
        return pre_N, post_N, res.unflatten(-1, (num, num))


def sinkhorn(logits_NN: Tensor, num_iterations: int) -> Tensor:
    """The doubly stochastic matrix that logits (…, N, N) approach by normalising rows, then columns, again and again.

    Columns are normalised last and sum to 1; how far rows still are from it grows with the logits: 2e-7, 4e-4 and 0.06 after
    20 iterations on normal logits of deviation 0.1, 1 and 3.
    """
    return _Sinkhorn.apply(logits_NN, num_iterations)


class _Sinkhorn(torch.autograd.Function):
    """Tokens lie along the last dimension, for sums of few numbers each are slow; plain operations would take five times as
    long, most of it backward.
    """

    @staticmethod
    def forward(ctx: Any, logits_NN: Tensor, num_iterations: int) -> Tensor:
        logits = logits_NN.movedim((-2, -1), (0, 1)).contiguous()
        # Each row less its own maximum: the first step makes no difference of it, and no row underflows to zeros
        matrix = torch.exp(logits - logits.amax(1, keepdim=True))
        kept = [matrix]
        for number in range(2 * num_iterations):
            total = matrix.sum(1 - number % 2, keepdim=True).add_(1e-30)
            matrix = matrix / total
            kept += [matrix, total]
        ctx.save_for_backward(*kept)
        return matrix.movedim((0, 1), (-2, -1)).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        begin, *kept = ctx.saved_tensors
        slope = gradients[0].movedim((-2, -1), (0, 1)).contiguous()
        for number in reversed(range(len(kept) // 2)):
            matrix, total = kept[2 * number : 2 * number + 2]
            slope = (slope - (slope * matrix).sum(1 - number % 2, keepdim=True)) / total
        return (slope * begin).movedim((0, 1), (-2, -1)), None


def expand(x_D: Tensor, num_streams: int) -> Tensor:
    """Streams (…, N, D) that are all `x_D`, (…, D)."""
    return x_D[..., None, :].expand(*x_D.shape[:-1], num_streams, x_D.shape[-1])


def reduce(streams_ND: Tensor) -> Tensor:
    """The mean of the streams, (…, D)."""
    return streams_ND.mean(-2)
