"""TabM-mini (Gorishniy et al. 2025, arXiv:2410.24210) with piecewise-linear embeddings of numbers, in several copies.

Shapes: B rows, b of them for one copy, C copies, k submodels of a copy, N numerical features, E length of an embedding, D
inputs of the first layer, W width.

The layers are those of the packages `tabm` and `rtdl_num_embeddings`. There, the first layer multiplies each row's D inputs
by the scaling of each submodel, (B, k, D). Here the weights are multiplied by the scaling instead, so that the k first
layers are one matrix product of (B, D) with (D, k × W): the same values in less time, see `Network.forward`.
"""

import dataclasses
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from rtdl_num_embeddings import PiecewiseLinearEmbeddings
from tabm import LinearEnsemble, make_tabm_backbone
from torch import nn

LARGEST = 3e38
"""Replaces infinite inputs."""
LARGEST_ONE_HOT = 32
"""With more codes (its categories, and one for missing values), a feature has an embedding of half this length; else it is
one-hot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that determine the shapes of the weights."""

    num_numbers: int
    categories: tuple[int, ...]
    """Number of categories of each categorical feature."""
    num_outputs: int
    num_knots: int
    num_bins: int
    embedding_size: int
    num_submodels: int
    width: int
    num_layers: int
    dropout: float


class Network(nn.Module):
    """One copy: maps numbers (B, N) and codes of categories to the outputs of the submodels, (B, k, num_outputs)."""

    knots: torch.Tensor
    """(N, num_knots), see `encoding.Scale`, also for `segments` and `edges`."""
    segments: torch.Tensor
    """(N, num_knots, 5)"""
    edges: torch.Tensor
    """(N, num_bins + 1)"""
    seen: torch.Tensor
    """For each code of all features, one feature after the other: its share of the rows that the copy is fitted on."""
    last: torch.Tensor
    """The code of each feature for a missing or unknown category."""
    begin: torch.Tensor
    """Index of each feature's first code among the codes of all features."""
    place: torch.Tensor
    """Index of each one-hot feature's first code among the one-hot inputs."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        chunks: list[int] = []
        if shape.num_numbers:
            self.register_buffer("knots", torch.zeros(shape.num_numbers, shape.num_knots))
            self.register_buffer("segments", torch.zeros(shape.num_numbers, shape.num_knots, 5))
            self.register_buffer("edges", torch.zeros(shape.num_numbers, shape.num_bins + 1))
            bins = [torch.linspace(0, 1, shape.num_bins + 1)] * shape.num_numbers
            self.numbers = PiecewiseLinearEmbeddings(bins, shape.embedding_size, activation=False, version="B")
            self.missing = nn.Parameter(torch.zeros(shape.num_numbers, shape.embedding_size))
            chunks += [shape.embedding_size] * shape.num_numbers
        sizes = [number + 1 for number in shape.categories]
        self.one_hot = [column for column, size in enumerate(sizes) if size <= LARGEST_ONE_HOT]
        self.embedded = [column for column, size in enumerate(sizes) if size > LARGEST_ONE_HOT]
        self.num_one_hot = sum(sizes[column] for column in self.one_hot)
        if sizes:
            self.register_buffer("seen", torch.ones(sum(sizes)))
            self.register_buffer("last", torch.tensor(sizes) - 1, persistent=False)
            self.register_buffer("begin", torch.tensor(sizes).cumsum(0) - torch.tensor(sizes), persistent=False)
            one_hot_sizes = torch.tensor([sizes[column] for column in self.one_hot], dtype=torch.int64)
            self.register_buffer("place", one_hot_sizes.cumsum(0) - one_hot_sizes, persistent=False)
            chunks += [sizes[column] for column in self.one_hot]
        if self.embedded:
            self.categories = nn.Parameter(torch.randn(sum(sizes), LARGEST_ONE_HOT // 2) / 4)
            chunks += [LARGEST_ONE_HOT // 2] * len(self.embedded)
        self.backbone = make_tabm_backbone(
            d_in=sum(chunks),
            n_blocks=shape.num_layers,
            d_block=shape.width,
            dropout=shape.dropout,
            k=shape.num_submodels,
            arch_type="tabm-mini",
            start_scaling_init="normal" if shape.num_numbers else "random-signs",
            start_scaling_init_chunks=chunks,
        )
        self.output = LinearEnsemble(shape.width, shape.num_outputs, k=shape.num_submodels)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """numbers : (B, N) float32. codes : (B, number of categorical features) float32. Both are NaN if missing."""
        inputs_BD = self.inputs(numbers, codes)
        num_submodels, width = self.shape.num_submodels, self.shape.width
        first, *others = [block[0] for block in self.backbone.blocks]
        weight = (self.backbone.affine.weight[:, None] * first.weight).flatten(0, 1)  # (k × W, D)
        hidden = self._activated(F.linear(inputs_BD, weight, first.bias.repeat(num_submodels)))
        hidden = hidden.view(len(hidden) * num_submodels, width)
        for linear in others:
            hidden = self._activated(linear(hidden))
        hidden = hidden.view(-1, num_submodels, width)
        if self.shape.num_outputs == 1:
            weight = self.output.weight[..., 0].to(hidden.dtype)
            return torch.linalg.vecdot(hidden, weight)[..., None] + self.output.bias
        return self.output(hidden)

    def _activated(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(hidden, inplace=True)
        return dropout(hidden, self.shape.dropout) if self.training else hidden

    def inputs(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """The inputs of the first layer, (B, D)."""
        parts = []
        if self.shape.num_numbers:
            parts.append(self.embedded_numbers(numbers))
        if self.shape.categories:
            known = codes.isfinite() & (codes >= 0) & (codes < self.last)
            code = torch.where(known, codes, 0).long()
            # A category that is not in the rows of this copy counts as missing
            is_seen = self.seen > 0
            code = torch.where(known & is_seen[code + self.begin], code, self.last)
            seen = is_seen[code + self.begin].to(self.seen.dtype)
            if self.one_hot:
                flat = seen.new_zeros(len(codes), self.num_one_hot)
                parts.append(flat.scatter_(1, code[:, self.one_hot] + self.place, seen[:, self.one_hot]))
            if self.embedded:
                embedding = F.embedding((code + self.begin)[:, self.embedded], self.categories)
                parts.append((embedding * seen[:, self.embedded, None]).flatten(1))
        return torch.cat([part.float() for part in parts], dim=1)

    def embedded_numbers(self, numbers: torch.Tensor) -> torch.Tensor:
        """Embeddings of numbers (B, N), NaN if missing: (B, N × E).

        An embedding is linear within a bin. Therefore it is computed once at the edges of the bins, and interpolated for
        each row: the same values as those of `PiecewiseLinearEmbeddings` in less time.
        """
        layers, num_rows = self.numbers, self.shape.num_bins + 2
        by_score = torch.addcmul(layers.linear0.bias[:, None], layers.linear0.weight[:, None], self.edges[..., None])
        at_edges = by_score + F.pad(layers.linear.weight, (0, 0, 1, 0)).cumsum(dim=1)
        table = torch.cat([at_edges, self.missing[:, None]], dim=1).flatten(0, 1)  # (N × (num_bins + 2), E)

        x = numbers.nan_to_num(0.0, LARGEST, -LARGEST).T.contiguous()
        knot = torch.searchsorted(self.knots, x, right=True).sub_(1).clamp_(min=0)
        feature = torch.arange(len(x), device=x.device)
        segment = F.embedding((knot + feature[:, None] * self.shape.num_knots).T, self.segments.flatten(0, 1))
        begin, inverse_length, start, share, bin_number = segment.unbind(-1)
        position = torch.addcmul(start, share, ((x.T - begin) * inverse_length).clamp_(0.0, 1.0))  # in the bin, 0 to 1
        # A feature that is missing in all rows of this copy counts as missing; its other weights are untrained
        missing = numbers.isnan() | self.knots[:, 0].isposinf()
        left = torch.where(missing, num_rows - 1, bin_number.long()) + feature * num_rows
        right = left + (~missing).long()
        return torch.lerp(F.embedding(left, table), F.embedding(right, table), position[..., None]).flatten(1)

    def references(self, number: int) -> np.ndarray:
        """Reference rows for Shapley values, (number, N + number of categorical features) float32.

        The values of a feature are evenly spaced quantiles of the rows that the copy is fitted on, without missing values.
        So each value is about as frequent as in these rows. The order is random, and independent for each feature.
        """
        generator = np.random.default_rng(0)
        quantile = (np.arange(number) + 0.5) / number
        columns = []
        if self.shape.num_numbers:
            _, _, start, _, bin_number = self.segments.cpu().unbind(-1)
            low, high = (self.edges.cpu().gather(1, bin_number.long() + end) for end in (0, 1))
            share_below = torch.special.ndtr(torch.lerp(low, high, start)).numpy()  # includes half of the equal values
            for knots, share in zip(self.knots.cpu().numpy(), share_below, strict=True):
                known = knots[np.isfinite(knots)]
                if not known.size:
                    columns.append(np.full(number, np.nan))
                    continue
                columns.append(known[np.searchsorted(shares_up_to(share[: len(known)]), quantile)])
        for size, begin in zip(self.shape.categories, self.begin.tolist() if self.shape.categories else (), strict=True):
            up_to = np.cumsum(self.seen[begin : begin + size].cpu().numpy(), dtype=np.float64)
            columns.append(np.searchsorted(up_to, quantile * up_to[-1]) if up_to[-1] else np.full(number, np.nan))
        return np.stack([generator.permutation(column) for column in columns], axis=1).astype(np.float32)


def shares_up_to(share: np.ndarray) -> np.ndarray:
    """The share of values up to each knot, from the share below it plus half of the values that equal it, (num_knots,)."""
    up_to, result = 0.0, np.ones(len(share))
    for number, (this, following) in enumerate(itertools.pairwise(share)):
        up_to = result[number] = np.clip(2 * this - up_to, this, following)
    return result


def dropout(x: torch.Tensor, rate: float) -> torch.Tensor:
    """Dropout. On CPUs eight elements share a 64-bit random number, so the rate is rounded to a multiple of 1/256."""
    if x.device.type != "cpu" or not rate:
        return F.dropout(x, rate)
    threshold = min(round(rate * 256), 255)
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    return x * kept.to(x.dtype).mul_(256 / (256 - threshold))


class Copies(nn.Module):
    """The copies of a member, with separate weights and scales."""

    mean: torch.Tensor
    """Mean of the target in the rows that each copy is fitted on, (C,) float64; 0 for classes."""
    deviation: torch.Tensor
    """Standard deviation of the target in the same rows, (C,) float64; 1 if it is 0, and for classes."""

    def __init__(self, shape: Shape, num_copies: int):
        super().__init__()
        self.copies = nn.ModuleList([Network(shape) for _ in range(num_copies)])
        self.register_buffer("mean", torch.zeros(num_copies, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(num_copies, dtype=torch.float64))

    def forward(
        self, numbers: torch.Tensor, codes: torch.Tensor, rows_of_copies: tuple[torch.Tensor, ...]
    ) -> list[torch.Tensor]:
        """The outputs of each copy for its rows, (b, k, num_outputs). rows_of_copies : row numbers, (b,) for each copy.

        A copy without rows is called too, so that each weight has a gradient on each rank.
        """
        return [copy(numbers[rows], codes[rows]) for copy, rows in zip(self.copies, rows_of_copies, strict=True)]


def rows_of_copies(uses: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The numbers of the rows that each copy processes, from `uses`, (B, C) bool.

    With bool as an index the CPU would wait for the GPU at each tensor and copy; here it waits twice in all.
    """
    return uses.T.nonzero()[:, 1].split(uses.sum(dim=0).tolist())
