"""SASRec and TiSASRec: what comes next in a sequence of items, by causal self-attention; both with or without mHC.

    items ─ embedding ─┬─ [ attention · perceptron ] × layers ─ norm ─ · embedding of every item ─ scores
                       └─ residual, or the streams of hyper_connections.py

SASRec (Kang & McAuley 2018, arXiv:1808.09781) adds a learned vector for each position. TiSASRec (Li et al. 2020, WSDM) adds
vectors for position and for the time between two items to keys and values instead. Written down, that is a vector for each
pair of items, (B, L, L, D). Here it is *binned*, which is the same sum in another order: of keys, the query meets each of
the S intervals once, and pairs look theirs up; of values, a query's attention is summed by interval, and that meets the
table.
The same to rounding, but for dropout, which falls on the table's rows and not on pairs.

Sequences are padded on the right, so that a causal mask alone hides the padding. To save padding they come in groups of
like length, `items.0`, `items.1`, …, each (B, L) of its own. Only attention sees groups: all else takes their places in one
long row, with or without sequences.

Shape suffixes: B sequences of a group, L places, P places of all groups, one group after another, D width, H heads, K width
of a head, S intervals, N streams, V items + 1 (id 0 is padding), T the places asked for.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ensemble.recipes.next_item.hyper_connections import HyperConnection, expand, reduce

PAD = 0
LARGEST_ROUNDING = 0.02
"""For dropout: 0.1 and 0.05 become 0.1016 and 0.0508; 0.01 and 0.999 stay as they are."""


class Dropout(nn.Module):
    """Dropout that on CPUs compares random bytes: nearly three times as fast.

    The share is then rounded to a 256th. Where that would change it by more than `LARGEST_ROUNDING` of itself, or of the
    share that is kept, PyTorch's own dropout is used, which is exact.
    """

    def __init__(self, share: float):
        super().__init__()
        self.share = share
        self.least = round(share * 256)
        self.is_exact = abs(self.least / 256 - share) > LARGEST_ROUNDING * min(share, 1 - share)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.share):
            return x
        if self.is_exact or x.device.type != "cpu":
            return F.dropout(x, self.share)
        words = torch.empty(math.ceil(x.numel() / 8), dtype=torch.int64).random_(-(2**63), None)
        return _Kept.apply(x, words.view(torch.uint8)[: x.numel()].view(x.shape), self.least)


class _Kept(torch.autograd.Function):
    """x where its byte is at least `least`, scaled; else 0. The bytes wait for the backward pass: a quarter of a mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, byte: Tensor, least: int) -> Tensor:
        ctx.save_for_backward(byte)
        ctx.least = least
        return x * _mask(byte, least, x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (byte,) = ctx.saved_tensors
        return gradients[0] * _mask(byte, ctx.least, gradients[0].dtype), None, None


def _mask(byte: Tensor, least: int, dtype: torch.dtype) -> Tensor:
    return byte.to(dtype).ge_(least).mul_(256 / (256 - least))  # to and from bool would take five times as long


class _LookUp(torch.autograd.Function):
    """Of each pair, the product of its query (B, H, L, K) and its interval's row of a table (H, S, K): (B, H, L, L).

    As plain operations, this and `_Mix` would keep numbers for all S intervals of each place until the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, query_BHLK: Tensor, table_HSK: Tensor, index_BHLL: Tensor) -> Tensor:
        ctx.save_for_backward(query_BHLK, table_HSK, index_BHLL)
        return _by_head(query_BHLK, table_HSK.mT).gather(-1, index_BHLL)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        query_BHLK, table_HSK, index_BHLL = ctx.saved_tensors
        binned_BHLS = _binned(gradients[0], index_BHLL, table_HSK.shape[1])
        query_slope = _by_head(binned_BHLS, table_HSK.to(binned_BHLS.dtype))
        table_slope = (_flat(query_BHLK).to(binned_BHLS.dtype).mT @ _flat(binned_BHLS)).mT
        return query_slope.to(query_BHLK.dtype), table_slope.to(table_HSK.dtype), None


class _Mix(torch.autograd.Function):
    """The rows of a table (H, S, K) at the intervals, summed with the weights of the pairs (B, H, L, L): (B, H, L, K)."""

    @staticmethod
    def forward(ctx: Any, weight_BHLL: Tensor, table_HSK: Tensor, index_BHLL: Tensor) -> Tensor:
        ctx.save_for_backward(weight_BHLL, table_HSK, index_BHLL)
        return _by_head(_binned(weight_BHLL, index_BHLL, table_HSK.shape[1]), table_HSK)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight_BHLL, table_HSK, index_BHLL = ctx.saved_tensors
        slope_BHLK = gradients[0]
        weight_slope = _by_head(slope_BHLK, table_HSK.mT.to(slope_BHLK.dtype)).gather(-1, index_BHLL)
        binned_BHLS = _binned(weight_BHLL, index_BHLL, table_HSK.shape[1]).to(slope_BHLK.dtype)
        table_slope = (_flat(slope_BHLK).mT @ _flat(binned_BHLS)).mT
        return weight_slope.to(weight_BHLL.dtype), table_slope.to(table_HSK.dtype), None


def _binned(x_BHLL: Tensor, index_BHLL: Tensor, num_intervals: int) -> Tensor:
    return x_BHLL.new_zeros(*x_BHLL.shape[:3], num_intervals).scatter_add_(-1, index_BHLL, x_BHLL)


def _by_head(x_BHLM: Tensor, table_HMN: Tensor) -> Tensor:
    """Each head's part of x times its table, (B, H, L, N); plain `@` would copy the table for each sequence."""
    num_sequences, _, length, _ = x_BHLM.shape
    return (_flat(x_BHLM) @ table_HMN).unflatten(1, (num_sequences, length)).transpose(0, 1)


def _flat(x_BHLM: Tensor) -> Tensor:
    """(H, B · L, M)"""
    return x_BHLM.transpose(0, 1).flatten(1, 2)


class LengthGroup:
    """What the layers share of sequences that attend together: the causal mask (0 or −∞), and TiSASRec's intervals."""

    def __init__(
        self,
        shape: torch.Size,
        causal_LL: Tensor,
        intervals_BLL: Tensor | None = None,
        interval_SD: tuple[Tensor, Tensor] | None = None,
    ):
        self.shape, self.causal_LL = shape, causal_LL
        self.intervals_BLL, self.interval_SD = intervals_BLL, interval_SD


class Surroundings:
    """The groups, and TiSASRec's positions for keys and values."""

    def __init__(self, groups: list[LengthGroup], position_PD: tuple[Tensor, Tensor] | None):
        self.groups, self.position_PD = groups, position_PD


class Attention(nn.Module):
    """Causal multi-head attention (P, D) to (P, D), of each sequence to itself."""

    def __init__(self, width: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, Dropout(dropout)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_PD: Tensor, around: Surroundings) -> Tensor:
        query_PD, key_PD, value_PD = self.query_key_value(x_PD).chunk(3, dim=-1)
        if around.position_PD is not None:
            key_PD, value_PD = key_PD + around.position_PD[0], value_PD + around.position_PD[1]
        sizes = [group.shape.numel() for group in around.groups]
        parts = zip(*(x_PD.split(sizes) for x_PD in (query_PD, key_PD, value_PD)), around.groups, strict=True)
        mixed = [self._of_group(query, key, value, group) for query, key, value, group in parts]
        return self.out(torch.cat(mixed))

    def _of_group(self, query_PD: Tensor, key_PD: Tensor, value_PD: Tensor, group: LengthGroup) -> Tensor:
        query, key, value = (
            x_PD.unflatten(-1, (self.num_heads, -1)).unflatten(0, group.shape).transpose(1, 2)
            for x_PD in (query_PD, key_PD, value_PD)
        )
        dropout = self.dropout.share if self.training else 0.0
        if group.intervals_BLL is None and (dropout == 0 or query.device.type != "cpu"):
            mixed_BHLK = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        else:
            # On CPUs SDPA with dropout falls back to a slow path
            mixed_BHLK = self._attend(query / math.sqrt(query.shape[-1]), key, value, group)
        return mixed_BHLK.transpose(1, 2).flatten(2).flatten(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, group: LengthGroup) -> Tensor:
        score_BHLL = query @ key.transpose(-2, -1)
        if group.intervals_BLL is not None:
            assert group.interval_SD is not None
            index_BHLL = group.intervals_BLL[:, None].expand(-1, self.num_heads, -1, -1)
            key_table_HSK, value_table_HSK = (
                table_SD.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for table_SD in group.interval_SD
            )
            score_BHLL = score_BHLL + _LookUp.apply(query, key_table_HSK, index_BHLL)
        weight_BHLL = self.dropout(torch.softmax(score_BHLL + group.causal_LL, dim=-1))
        mixed_BHLK = weight_BHLL @ value
        if group.intervals_BLL is not None:
            mixed_BHLK = mixed_BHLK + _Mix.apply(weight_BHLL, value_table_HSK, index_BHLL)
        return mixed_BHLK


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and around a residual, or around streams."""

    def __init__(self, width: int, num_heads: int, dropout: float, widening: int, num_streams: int, number: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, dropout)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, widening * width), nn.GELU(), Dropout(dropout), nn.Linear(widening * width, width)
        )
        self.dropout = Dropout(dropout)
        self.connections = nn.ModuleList(
            HyperConnection(num_streams, width, 2 * number + part) for part in range(2 if num_streams else 0)
        )

    def forward(self, x: Tensor, around: Surroundings) -> Tensor:
        """(P, D), or streams (P, N, D)."""
        if self.connections:
            x = self.connections[0](x, lambda x_PD: self._attend(x_PD, around))
            return self.connections[1](x, self._perceive)
        x = x + self._attend(x, around)
        return x + self._perceive(x)

    def _attend(self, x_PD: Tensor, around: Surroundings) -> Tensor:
        return self.dropout(self.attention(self.attention_norm(x_PD), around))

    def _perceive(self, x_PD: Tensor) -> Tensor:
        return self.dropout(self.perceptron(self.perceptron_norm(x_PD)))


class SequenceModel(nn.Module):
    """SASRec, or TiSASRec with `num_intervals` > 0; with `num_streams` > 0, mHC in place of residuals."""

    def __init__(
        self,
        *,
        num_items: int,
        max_length: int,
        width: int,
        num_layers: int,
        num_heads: int,
        dropout: float,
        widening: int = 1,
        num_intervals: int = 0,
        num_streams: int = 0,
    ):
        super().__init__()
        self.num_intervals, self.num_streams = num_intervals, num_streams
        self.item_VD = nn.Parameter(torch.randn(num_items + 1, width) / math.sqrt(width))
        tables = 2 if num_intervals else 1  # for keys and for values
        self.position_LD = nn.Parameter(torch.randn(tables, max_length, width) / math.sqrt(width))
        self.interval_SD = nn.Parameter(torch.randn(2, num_intervals, width) * 0.02) if num_intervals else None
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, dropout, widening, num_streams, number) for number in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: dict[str, Any], use: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """What the model knows at the places asked for, (T, D): its product with an item's embedding is the item's score.
        Or what `use` makes of that and of all items, (V, D): where weights are sharded, they are whole in here only.

        batch: `items.g` (B, L) int64, 0 for padding; for TiSASRec `times.g` (B, L) int64, in units of the user's shortest
        gap; `places` (T,) int64, indices into all groups' places, flattened and one group after another.
        """
        items: list[Tensor] = []
        groups: list[LengthGroup] = []
        while (items_BL := batch.get(f"items.{len(items)}")) is not None:
            groups.append(self._group(items_BL, batch.get(f"times.{len(items)}")))
            items.append(items_BL)
        x = F.embedding(torch.cat([items_BL.flatten() for items_BL in items]), self.item_VD)
        from_end_P = torch.cat([_from_end(items_BL).flatten() for items_BL in items])
        if self.num_intervals:
            key_PD, value_PD = (self.dropout(F.embedding(from_end_P, table_LD)) for table_LD in self.position_LD)
            around = Surroundings(groups, (key_PD, value_PD))
        else:
            x = x + F.embedding(from_end_P, self.position_LD[0])
            around = Surroundings(groups, None)
        x = self.dropout(x)
        if self.num_streams:
            x = expand(x, self.num_streams)
        for block in self.blocks:
            x = block(x, around)
        known_TD = self.norm((reduce(x) if self.num_streams else x)[batch["places"]])
        return use(known_TD, self.item_VD) if use else known_TD

    def _group(self, items_BL: Tensor, times_BL: Tensor | None) -> LengthGroup:
        length = items_BL.shape[1]
        causal_LL = torch.full((length, length), -torch.inf, device=items_BL.device).triu(1)
        if self.interval_SD is None:
            return LengthGroup(items_BL.shape, causal_LL)
        assert times_BL is not None
        between_BLL = (times_BL[:, :, None] - times_BL[:, None, :]).abs().clamp(max=self.num_intervals - 1)
        key_SD, value_SD = (self.dropout(table_SD) for table_SD in self.interval_SD)
        return LengthGroup(items_BL.shape, causal_LL, between_BLL, (key_SD, value_SD))


def _from_end(items_BL: Tensor) -> Tensor:
    """How many items come after each; the last has position 0, whatever the length. 0 for padding too."""
    place_L = torch.arange(items_BL.shape[1], device=items_BL.device)
    return ((items_BL != PAD).sum(1, keepdim=True) - 1 - place_L).clamp(min=0)
