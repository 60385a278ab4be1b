"""SASRec and TiSASRec predict the next item of a sequence by causal self-attention, each with or without mHC.

    items ─ embedding ─┬─ [ attention · perceptron ] × layers ─ norm ─ · embedding of every item ─ scores
                       └─ residual, or the streams of hyper_connections.py

SASRec (Kang & McAuley 2018, arXiv:1808.09781) adds a learned vector for each position to the items. TiSASRec (Li et al.
2020, WSDM) instead adds vectors for the position and for the time between two items to keys and values. For the time this
would need a vector for each pair of items, (B, L, L, D). Here the same sums are computed in another order, without these.
For keys, the product of the query with each of the S intervals is computed once, and pairs gather from it. For values, a
query's attention weights are summed by interval, and the sums are multiplied by the table of interval vectors. Results are
equal up to rounding, except for dropout, which is applied to rows of the table instead of pairs.

Two details differ from the papers. The perceptron has GELU, where SASRec has ReLU. The interval of two items is the
difference of their times, each rounded to a multiple of the sequence's shortest gap, where TiSASRec has the quotient of the
difference and this gap, rounded down.

Sequences are padded on the right, so that the causal mask also masks the padding. To save padding, they come in groups of
similar length, `items.0`, `items.1`, …, each (B, L) with its own B and L. Only attention is computed by group. All other
layers process the positions of all groups as one dimension P.

Shape suffixes: B sequences of a group, L positions, P positions of all groups, D width, H heads, K width of a head,
S intervals, N streams, V items + 1 (id 0 is padding), T positions with an output.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ensemble.recipes.next_item.hyper_connections import HyperConnection, expand, reduce

PAD = 0
LARGEST_ROUNDING = 0.02
"""Largest relative error of a rounded dropout rate: 0.1 becomes 0.1016 and 0.05 0.0508; 0.01 and 0.999 are not rounded."""


class Dropout(nn.Module):
    """Dropout that on CPUs compares random bytes with a threshold, nearly three times as fast as PyTorch's.

    With bytes the rate is rounded to a multiple of 1/256. PyTorch's dropout is used if this would change the rate, or
    1 − rate, by a relative error of more than `LARGEST_ROUNDING`.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.threshold = round(rate * 256)
        self.needs_exact_rate = abs(self.threshold / 256 - rate) > LARGEST_ROUNDING * min(rate, 1 - rate)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.rate):
            return x
        if self.needs_exact_rate or x.device.type != "cpu":
            return F.dropout(x, self.rate)
        words = torch.empty(math.ceil(x.numel() / 8), dtype=torch.int64).random_(-(2**63), None)
        byte = words.view(torch.uint8)[: x.numel()].view(x.shape)
        # Compared as numbers: conversion to bool and back takes five times as long
        return x * byte.to(x.dtype).ge_(self.threshold).mul_(256 / (256 - self.threshold))


class _IntervalScores(torch.autograd.Function):
    """The product of each pair's query (B, H, L, K) and the row of its interval in a table (H, S, K): (B, H, L, L).

    Autograd of plain operations would save values for all S intervals of each position for the backward pass, here and in
    `_IntervalValues`.
    """

    @staticmethod
    def forward(ctx: Any, query_BHLK: Tensor, table_HSK: Tensor, index_BHLL: Tensor) -> Tensor:
        ctx.save_for_backward(query_BHLK, table_HSK, index_BHLL)
        return _by_head(query_BHLK, table_HSK.mT).gather(-1, index_BHLL)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        query_BHLK, table_HSK, index_BHLL = ctx.saved_tensors
        binned_BHLS = _binned(gradients[0], index_BHLL, table_HSK.shape[1])
        query_gradient = _by_head(binned_BHLS, table_HSK.to(binned_BHLS.dtype))
        table_gradient = (_flat(query_BHLK).to(binned_BHLS.dtype).mT @ _flat(binned_BHLS)).mT
        return query_gradient.to(query_BHLK.dtype), table_gradient.to(table_HSK.dtype), None


class _IntervalValues(torch.autograd.Function):
    """The row of each pair's interval in a table (H, S, K), summed over keys with the weights (B, H, L, L): (B, H, L, K)."""

    @staticmethod
    def forward(ctx: Any, weight_BHLL: Tensor, table_HSK: Tensor, index_BHLL: Tensor) -> Tensor:
        ctx.save_for_backward(weight_BHLL, table_HSK, index_BHLL)
        return _by_head(_binned(weight_BHLL, index_BHLL, table_HSK.shape[1]), table_HSK)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight_BHLL, table_HSK, index_BHLL = ctx.saved_tensors
        gradient_BHLK = gradients[0]
        weight_gradient = _by_head(gradient_BHLK, table_HSK.mT.to(gradient_BHLK.dtype)).gather(-1, index_BHLL)
        binned_BHLS = _binned(weight_BHLL, index_BHLL, table_HSK.shape[1]).to(gradient_BHLK.dtype)
        table_gradient = (_flat(gradient_BHLK).mT @ _flat(binned_BHLS)).mT
        return weight_gradient.to(weight_BHLL.dtype), table_gradient.to(table_HSK.dtype), None


def _binned(x_BHLL: Tensor, index_BHLL: Tensor, num_intervals: int) -> Tensor:
    return x_BHLL.new_zeros(*x_BHLL.shape[:3], num_intervals).scatter_add_(-1, index_BHLL, x_BHLL)


def _by_head(x_BHLM: Tensor, table_HMN: Tensor) -> Tensor:
    """Batched matrix product per head, (B, H, L, N) with any M and N; plain `@` would copy the table for each sequence."""
    num_sequences, _, length, _ = x_BHLM.shape
    return (_flat(x_BHLM) @ table_HMN).unflatten(1, (num_sequences, length)).transpose(0, 1)


def _flat(x_BHLM: Tensor) -> Tensor:
    """The positions of all sequences as one dimension, (H, B · L, M); M is any size."""
    return x_BHLM.transpose(0, 1).flatten(1, 2)


@dataclasses.dataclass
class LengthGroup:
    """Inputs of attention for sequences of similar length, the same in all layers."""

    shape: torch.Size
    """(B, L)"""
    causal_LL: Tensor
    """The causal mask, 0 or −∞."""
    intervals_BLL: Tensor | None = None
    """TiSASRec: the interval of each pair, as a row number of `interval_SD`."""
    interval_SD: tuple[Tensor, Tensor] | None = None
    """TiSASRec: the tables of intervals for keys and values."""


@dataclasses.dataclass
class AttentionContext:
    """Inputs of attention for all groups, the same in all layers."""

    groups: list[LengthGroup]
    position_PD: tuple[Tensor, Tensor] | None
    """TiSASRec: position vectors for keys and values."""


class Attention(nn.Module):
    """Causal multi-head self-attention, (P, D) to (P, D)."""

    def __init__(self, width: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, Dropout(dropout)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_PD: Tensor, context: AttentionContext) -> Tensor:
        query_PD, key_PD, value_PD = self.query_key_value(x_PD).chunk(3, dim=-1)
        if context.position_PD is not None:
            key_PD, value_PD = key_PD + context.position_PD[0], value_PD + context.position_PD[1]
        sizes = [group.shape.numel() for group in context.groups]
        parts = zip(*(x_PD.split(sizes) for x_PD in (query_PD, key_PD, value_PD)), context.groups, strict=True)
        attended = [self._of_group(query, key, value, group) for query, key, value, group in parts]
        return self.out(torch.cat(attended))

    def _of_group(self, query_PD: Tensor, key_PD: Tensor, value_PD: Tensor, group: LengthGroup) -> Tensor:
        query, key, value = (
            x_PD.unflatten(-1, (self.num_heads, -1)).unflatten(0, group.shape).transpose(1, 2)
            for x_PD in (query_PD, key_PD, value_PD)
        )
        dropout = self.dropout.rate if self.training else 0.0
        if group.intervals_BLL is None and (dropout == 0 or query.device.type != "cpu"):
            attended_BHLK = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        else:
            # With dropout on CPUs, scaled_dot_product_attention is slow
            attended_BHLK = self._attend(query / math.sqrt(query.shape[-1]), key, value, group)
        return attended_BHLK.transpose(1, 2).flatten(2).flatten(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, group: LengthGroup) -> Tensor:
        score_BHLL = query @ key.transpose(-2, -1)
        if group.intervals_BLL is not None:
            assert group.interval_SD is not None
            index_BHLL = group.intervals_BLL[:, None].expand(-1, self.num_heads, -1, -1)
            key_table_HSK, value_table_HSK = (
                table_SD.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for table_SD in group.interval_SD
            )
            score_BHLL = score_BHLL + _IntervalScores.apply(query, key_table_HSK, index_BHLL)
        weight_BHLL = self.dropout(torch.softmax(score_BHLL + group.causal_LL, dim=-1))
        attended_BHLK = weight_BHLL @ value
        if group.intervals_BLL is not None:
            attended_BHLK = attended_BHLK + _IntervalValues.apply(weight_BHLL, value_table_HSK, index_BHLL)
        return attended_BHLK


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm and with a residual connection, or with hyper-connections."""

    def __init__(self, width: int, num_heads: int, dropout: float, widening: int, num_streams: int, layer: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, dropout)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, widening * width), nn.GELU(), Dropout(dropout), nn.Linear(widening * width, width)
        )
        self.dropout = Dropout(dropout)
        self.connections = nn.ModuleList(
            HyperConnection(num_streams, width, 2 * layer + part) for part in range(2 if num_streams else 0)
        )

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """(P, D), or streams (P, N, D)."""
        if self.connections:
            x = self.connections[0](x, lambda x_PD: self._attention_branch(x_PD, context))
            return self.connections[1](x, self._perceptron_branch)
        x = x + self._attention_branch(x, context)
        return x + self._perceptron_branch(x)

    def _attention_branch(self, x_PD: Tensor, context: AttentionContext) -> Tensor:
        return self.dropout(self.attention(self.attention_norm(x_PD), context))

    def _perceptron_branch(self, x_PD: Tensor) -> Tensor:
        return self.dropout(self.perceptron(self.perceptron_norm(x_PD)))


class SequenceModel(nn.Module):
    """SASRec, or with `num_intervals` > 0 TiSASRec. With `num_streams` > 0, mHC replaces the residual connections."""

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
        num_tables = 2 if num_intervals else 1  # TiSASRec: one for keys and one for values
        self.position_LD = nn.Parameter(torch.randn(num_tables, max_length, width) / math.sqrt(width))
        self.interval_SD = nn.Parameter(torch.randn(2, num_intervals, width) * 0.02) if num_intervals else None
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, num_heads, dropout, widening, num_streams, layer) for layer in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: dict[str, Any], head: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """The hidden states (T, D), whose product with an item's embedding is the item's score; or the result of `head`.

        batch : `items.g` (B, L) int64, 0 for padding; for TiSASRec `times.g` (B, L) int64, in units of the sequence's
            shortest gap; `places` (T,) int64, indices of the T positions among the P positions of all groups.
        head : a function of the hidden states (T, D) and the item embeddings (V, D). It is called here, since sharded
            weights are complete only within forward.
        """
        items: list[Tensor] = []
        groups: list[LengthGroup] = []
        while (items_BL := batch.get(f"items.{len(items)}")) is not None:
            groups.append(self._group(items_BL, batch.get(f"times.{len(items)}")))
            items.append(items_BL)
        x = F.embedding(torch.cat([items_BL.flatten() for items_BL in items]), self.item_VD)
        from_end_P = torch.cat([_from_end(items_BL).flatten() for items_BL in items])
        context = AttentionContext(groups, None)
        if self.num_intervals:
            key_PD, value_PD = (self.dropout(F.embedding(from_end_P, table_LD)) for table_LD in self.position_LD)
            context.position_PD = (key_PD, value_PD)
        else:
            x = x + F.embedding(from_end_P, self.position_LD[0])
        x = self.dropout(x)
        if self.num_streams:
            x = expand(x, self.num_streams)
        for block in self.blocks:
            x = block(x, context)
        hidden_TD = self.norm((reduce(x) if self.num_streams else x)[batch["places"]])
        return head(hidden_TD, self.item_VD) if head else hidden_TD

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
    """The number of items after each item, so that the last item of a sequence has position 0; 0 for padding."""
    index_L = torch.arange(items_BL.shape[1], device=items_BL.device)
    return ((items_BL != PAD).sum(1, keepdim=True) - 1 - index_L).clamp(min=0)
