"""The network of hot_sellers: a transformer over weekly series, a text encoder over recent reviews, and table features.

    series ── transformer ──┐ queries
                            ├── cross-attention ── pool ──┐
    reviews ─ text encoder ─┘ keys, values                ├── heads: hot, growth, rating, engagement
    table ─── MLP ────────────────────────────────────────┘

Shape suffixes: B batch, N rows of a group of the batch, T weeks, C channels of the series, R reviews, L tokens of a review,
D width, F table features, P positions of all groups, M positions of all memories, S positions of a row's memory, H attention
heads, K width of a head. Attention: Vaswani et al. 2017, arXiv:1706.03762, in pre-norm order.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TARGETS = ("hot", "growth", "rating_next", "engagement")
NUM_GROUPS = 6
"""Number of groups of similar length into which the rows of a batch are divided on a CPU."""


class Span(NamedTuple):
    """The sizes of N rows of a batch, with T queries each, which attend to the S positions of their row's memory."""

    queries: torch.Size
    """(N, T)."""
    valid_NS: Tensor
    """True for positions of the memory that are not padding."""


class LengthGroup(NamedTuple):
    """Rows of a batch whose sequences have about the same length. They are cut to the length of the longest of them."""

    rows_N: Tensor
    """Indices of the rows in the batch."""
    valid_NL: Tensor
    """True for positions that are not padding, (N, length)."""


def length_groups(valid_BL: Tensor, blocks: nn.ModuleList, from_end: bool = False) -> list[LengthGroup]:
    """Divide rows into groups of similar length. The valid positions of a row are its first, or with `from_end` its last.

    This saves computations on padding, which is half of the positions in the demo. On other devices than a CPU there is one
    group, since the lengths would have to be copied from the device. For compiled `blocks` there is one group too, since
    their compile time grows with the number of groups.
    """
    if valid_BL.device.type != "cpu" or any(block._compiled_call_impl for block in blocks):
        return [LengthGroup(torch.arange(len(valid_BL), device=valid_BL.device), valid_BL)]
    length_B, order_B = valid_BL.sum(1).sort(stable=True)
    groups = []
    for length_N, rows_N in zip(length_B.tensor_split(NUM_GROUPS), order_B.tensor_split(NUM_GROUPS), strict=True):
        longest = max(1, int(length_N[-1])) if len(length_N) else 1
        groups.append(LengthGroup(rows_N, valid_BL[rows_N, -longest:] if from_end else valid_BL[rows_N, :longest]))
    return groups


def in_order(parts: list[Tensor], groups: list[LengthGroup]) -> Tensor:
    """The rows of the groups, each (N, …), in the order of the batch."""
    order_B = torch.cat([group.rows_N for group in groups]).argsort()
    return torch.cat(parts).index_select(0, order_B)


class Attention(nn.Module):
    """Multi-head attention from queries (P, D) to a memory (M, D); both have the positions of all spans in order."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, query_PD: Tensor, memory_MD: Tensor, spans: list[Span]) -> Tensor:
        queries = self.query(query_PD).split([math.prod(span.queries) for span in spans])
        memories = self.key_value(memory_MD).split([span.valid_NS.numel() for span in spans])
        attended = [self._attended(*parts) for parts in zip(queries, memories, spans, strict=True)]
        return self.out(torch.cat(attended))

    def _attended(self, query_PD: Tensor, key_value_MD: Tensor, span: Span) -> Tensor:
        query_NHTK = self._heads(query_PD.unflatten(0, span.queries))
        key_NHSK, value_NHSK = (self._heads(x) for x in key_value_MD.unflatten(0, span.valid_NS.shape).chunk(2, dim=-1))
        mask = span.valid_NS[:, None, None, :]
        attended_NHTK = F.scaled_dot_product_attention(query_NHTK, key_NHSK, value_NHSK, attn_mask=mask)
        return attended_NHTK.transpose(1, 2).flatten(2).flatten(0, 1)

    def _heads(self, x_NTD: Tensor) -> Tensor:
        return x_NTD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block: attention and a two-layer perceptron, each with layer norm and a residual connection."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x_PD: Tensor, spans: list[Span], memory_MD: Tensor | None = None) -> Tensor:
        """Self-attention, or with `memory_MD` cross-attention."""
        normed_PD = self.attention_norm(x_PD)
        x_PD = x_PD + self.attention(normed_PD, normed_PD if memory_MD is None else memory_MD, spans)
        return x_PD + self.perceptron(self.perceptron_norm(x_PD))


class HashedTextEncoder(nn.Module):
    """Encodes token ids (N, L) as vectors (N, D): embedding, transformer blocks, mean over words. Id 0 is padding."""

    def __init__(self, *, vocabulary_size: int, num_tokens: int, width: int, num_layers: int, num_heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, width, padding_idx=0)
        self.position_LD = nn.Parameter(torch.randn(num_tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))

    def forward(self, tokens_NL: Tensor) -> Tensor:
        groups = length_groups(tokens_NL != 0, self.blocks)
        tokens = [tokens_NL[rows_N, : valid_NL.shape[1]] for rows_N, valid_NL in groups]
        positions = [self.position_LD[: part.shape[1]].expand(len(part), -1, -1).flatten(0, 1) for part in tokens]
        x_PD = self.embedding(torch.cat([part.flatten() for part in tokens])) + torch.cat(positions)
        # A text without words attends to its padding, since softmax over no position is NaN; `_mean` is zero for such a text
        attended = [valid_NL | ~valid_NL.any(dim=1, keepdim=True) for _, valid_NL in groups]
        spans = [Span(valid_NL.shape, valid_NL) for valid_NL in attended]
        for block in self.blocks:
            x_PD = block(x_PD, spans)
        parts = x_PD.split([part.numel() for part in tokens])
        pairs = zip(parts, groups, strict=True)
        means = [_mean(part_PD.unflatten(0, valid_NL.shape), valid_NL) for part_PD, (_, valid_NL) in pairs]
        return in_order(means, groups)


class PretrainedTextEncoder(nn.Module):
    """A text encoder of the library transformers: the mean of the last hidden states over words, projected to width D.

    `encoder` is any model whose output has `last_hidden_state`. If frozen, it has no gradients and stays in evaluation mode.
    """

    def __init__(self, encoder: Any, width: int, frozen: bool):
        super().__init__()
        self.encoder, self.frozen = encoder, frozen
        self.project = nn.Linear(encoder.config.hidden_size, width)
        if frozen:
            self.encoder.requires_grad_(False)
        elif getattr(encoder, "pooler", None) is not None:
            # The pooler is not used here, and DDP waits for the gradient of every trained parameter
            self.encoder.pooler.requires_grad_(False)

    def train(self, mode: bool = True) -> "PretrainedTextEncoder":
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, tokens_NL: Tensor) -> Tensor:
        valid_NL = tokens_NL != self.encoder.config.pad_token_id
        attended_NL = valid_NL | ~valid_NL.any(dim=1, keepdim=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            x_NLD = self.encoder(input_ids=tokens_NL, attention_mask=attended_NL.long()).last_hidden_state
        return self.project(_mean(x_NLD, valid_NL))


def _mean(x_NLD: Tensor, valid_NL: Tensor) -> Tensor:
    """The mean over valid positions, (N, D); zero if there are none."""
    weight_NL1 = valid_NL[..., None].to(x_NLD.dtype)
    return (x_NLD * weight_NL1).sum(1) / weight_NL1.sum(1).clamp(min=1)


class Forecaster(nn.Module):
    """The network in the module's docstring.

    `feature_mean` and `feature_scale`, shape (F,), are statistics of the training split after a signed logarithm; they are
    buffers, so that a checkpoint contains them. The scale of a feature is 0 if it is constant there, and -1 if it is never
    known. `text_encoder` maps token ids (N, L) to (N, D); with None, reviews are not an input.
    """

    def __init__(
        self,
        *,
        num_weeks: int,
        num_channels: int,
        num_categories: int,
        feature_mean: Tensor,
        feature_scale: Tensor,
        text_encoder: nn.Module | None,
        width: int,
        num_layers: int,
        num_heads: int,
        dropout: float,
        base_rate: float,
        gradient_checkpointing: bool,
    ):
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.feature_mean: Tensor
        self.feature_scale: Tensor
        self.register_buffer("feature_mean", feature_mean)
        self.register_buffer("feature_scale", feature_scale)
        self.series_in = nn.Linear(num_channels + 2, width)  # + 2: season, as sine and cosine
        self.week_TD = nn.Parameter(torch.randn(num_weeks, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.category = nn.Embedding(num_categories, width)
        nn.init.normal_(self.category.weight, std=0.02)
        self.table = nn.Sequential(
            nn.Linear(2 * len(feature_mean), 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.text_encoder = text_encoder
        if text_encoder is not None:
            self.review_in = nn.Linear(width + 2, width)  # + 2: rating and age of the review
            self.no_review_D = nn.Parameter(torch.zeros(width))
            self.cross = Block(width, num_heads)
        self.pool_query_D = nn.Parameter(torch.randn(width) * 0.02)
        self.joint = nn.Sequential(nn.LayerNorm(3 * width), nn.Linear(3 * width, 2 * width), nn.GELU(), nn.Dropout(dropout))
        self.heads = nn.Linear(2 * width, len(TARGETS))
        with torch.no_grad():  # predictions begin near the base rate, so the first steps need not learn that hot is rare
            self.heads.bias.zero_()
            self.heads.bias[0] = math.log(base_rate / (1 - base_rate))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Outputs of the heads, shape (B, 4), in the order of `TARGETS`; the first is the logit of hot.

        `batch` contains series (B, T, C), valid_weeks (B, T), week (B,), features (B, F), category (B,), and, with text,
        tokens (B, R, L), rating_and_age (B, R, 2), valid_reviews (B, R).
        """
        series_BTC, week_B = batch["series"], batch["week"]
        num_weeks = series_BTC.shape[1]
        offset_T = torch.arange(1 - num_weeks, 1, device=series_BTC.device)
        angle_BT = (week_B[:, None] + offset_T) * (2 * math.pi * 7 / 365.25)
        season_BT2 = torch.stack([angle_BT.sin(), angle_BT.cos()], dim=-1)
        input_BTC = torch.cat([series_BTC, season_BT2.to(series_BTC.dtype)], dim=-1)
        groups = length_groups(batch["valid_weeks"], self.blocks, from_end=True)
        inputs = [input_BTC[rows_N, -valid_NT.shape[1] :].flatten(0, 1) for rows_N, valid_NT in groups]
        weeks = [self.week_TD[-valid_NT.shape[1] :].expand(len(valid_NT), -1, -1).flatten(0, 1) for _, valid_NT in groups]
        x_PD = self.series_in(torch.cat(inputs)) + torch.cat(weeks)
        spans = [Span(valid_NT.shape, valid_NT) for _, valid_NT in groups]
        for block in self.blocks:
            x_PD = self._run(block, x_PD, spans)
        if self.text_encoder is not None:
            memory_BSD, valid_BS = self._reviews(batch)
            spans = [Span(span.queries, valid_BS[group.rows_N]) for span, group in zip(spans, groups, strict=True)]
            memory_MD = torch.cat([memory_BSD[group.rows_N].flatten(0, 1) for group in groups])
            x_PD = self._run(self.cross, x_PD, spans, memory_MD)

        pooled, last = [], []
        for part_PD, (_, valid_NT) in zip(x_PD.split([valid.numel() for _, valid in groups]), groups, strict=True):
            x_NTD = part_PD.unflatten(0, valid_NT.shape)
            score_NT = (x_NTD @ self.pool_query_D).masked_fill(~valid_NT, -torch.inf)
            pooled.append((score_NT.softmax(dim=-1)[..., None] * x_NTD).sum(dim=1))
            last.append(x_NTD[:, -1])
        pooled_BD, last_BD = in_order(pooled, groups), in_order(last, groups)
        table_BD = self.table(self.standardised_features(batch["features"])) + self.category(batch["category"])
        return self.heads(self.joint(torch.cat([pooled_BD, last_BD, table_BD], dim=-1)))

    def standardised_features(self, features_BF: Tensor) -> Tensor:
        """Standardised signed logarithms, clipped to ±5 and 0 if unknown, followed by indicators of known values: (B, 2F).

        The value of a feature that was constant or never known in training is 0, since its weights were not trained. The
        indicator of a feature that was never known there is 0 too.
        """
        known_BF = torch.isfinite(features_BF) & (self.feature_scale >= 0)
        logarithm_BF = features_BF.sign() * features_BF.abs().log1p()
        standard_BF = ((logarithm_BF - self.feature_mean) / self.feature_scale).clamp(-5, 5)
        value_BF = torch.where(known_BF & (self.feature_scale > 0), standard_BF, 0.0)
        return torch.cat([value_BF, known_BF.to(value_BF.dtype)], dim=-1)

    def _reviews(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The reviews as a memory (B, R + 1, D) whose first position stands for 'no review', and its mask (B, R + 1)."""
        tokens_BRL, valid_BR = batch["tokens"], batch["valid_reviews"]
        assert self.text_encoder is not None
        text_BRD = self._run(self.text_encoder, tokens_BRL.flatten(0, 1)).unflatten(0, tokens_BRL.shape[:2])
        review_BRD = self.review_in(torch.cat([text_BRD, batch["rating_and_age"].to(text_BRD.dtype)], dim=-1))
        none_B1D = self.no_review_D.to(review_BRD.dtype).expand(len(review_BRD), 1, -1)
        always_B1 = torch.ones_like(valid_BR[:, :1])
        return torch.cat([none_B1D, review_BRD], dim=1), torch.cat([always_B1, valid_BR], dim=1)

    def _run(self, module: nn.Module, *inputs: Any) -> Tensor:
        """Call a module; with gradient checkpointing, only its inputs are kept for the backward pass."""
        if self.gradient_checkpointing and self.training:
            return checkpoint(module, *inputs, use_reentrant=False)
        return module(*inputs)
