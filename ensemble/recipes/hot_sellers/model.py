"""The network of hot_sellers: a transformer over weekly series, a text encoder over recent reviews, and table features.

    series ── transformer ──┐ queries
                            ├── cross-attention ── pool ──┐
    reviews ─ text encoder ─┘ keys, values                ├── heads: hot, growth, rating, engagement
    table ─── MLP ────────────────────────────────────────┘

Shape suffixes: B batch, T weeks, C channels of the series, R reviews, L tokens of a review, D width, F table features,
H heads of attention, K width of a head. Attention: Vaswani et al. 2017, arXiv:1706.03762, in pre-norm order.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TARGETS = ("hot", "growth", "rating_next", "engagement")


class Attention(nn.Module):
    """Multi-head attention from queries (B, T, D) to the positions of a memory (B, S, D) where `valid` (B, S) is True."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, query_BTD: Tensor, memory_BSD: Tensor, valid_BS: Tensor) -> Tensor:
        query_BHTK = self._heads(self.query(query_BTD))
        key_BHSK, value_BHSK = (self._heads(half) for half in self.key_value(memory_BSD).chunk(2, dim=-1))
        mask = valid_BS[:, None, None, :]
        attended_BHTK = F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, attn_mask=mask)
        return self.out(attended_BHTK.transpose(1, 2).flatten(2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block: attention and a two-layer perceptron, each with layer norm and a residual connection."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x_BTD: Tensor, valid_BT: Tensor, memory_BSD: Tensor | None = None) -> Tensor:
        """Self-attention, or with `memory_BSD` cross-attention; then `valid_BT` is the mask of the memory, (B, S)."""
        normed_BTD = self.attention_norm(x_BTD)
        source = normed_BTD if memory_BSD is None else memory_BSD
        x_BTD = x_BTD + self.attention(normed_BTD, source, valid_BT)
        return x_BTD + self.perceptron(self.perceptron_norm(x_BTD))


class HashedTextEncoder(nn.Module):
    """Encodes token ids (N, L) as vectors (N, D): embedding, transformer blocks, mean over words. Id 0 is padding."""

    def __init__(self, *, vocabulary_size: int, num_tokens: int, width: int, num_layers: int, num_heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, width, padding_idx=0)
        self.position_LD = nn.Parameter(torch.randn(num_tokens, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))

    def forward(self, tokens_NL: Tensor) -> Tensor:
        valid_NL = tokens_NL != 0
        # A text without words attends to its padding, since softmax over no position is NaN; its mean is zero below
        attended_NL = valid_NL | ~valid_NL.any(dim=1, keepdim=True)
        x_NLD = self.embedding(tokens_NL) + self.position_LD
        for block in self.blocks:
            x_NLD = block(x_NLD, attended_NL)
        weight_NL1 = valid_NL[..., None].to(x_NLD.dtype)
        return (x_NLD * weight_NL1).sum(1) / weight_NL1.sum(1).clamp(min=1)


class PretrainedTextEncoder(nn.Module):
    """A text encoder from transformers: the mean of the last hidden states over words, projected to width D.

    `encoder` is any model whose output has `last_hidden_state`. If frozen, it stays in evaluation mode without gradients.
    """

    def __init__(self, encoder: Any, width: int, frozen: bool):
        super().__init__()
        self.encoder, self.frozen = encoder, frozen
        self.project = nn.Linear(encoder.config.hidden_size, width)
        if frozen:
            self.encoder.requires_grad_(False)
        elif getattr(encoder, "pooler", None) is not None:
            self.encoder.pooler.requires_grad_(False)  # unused here, and DDP waits for the gradient of every parameter

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
        weight_NL1 = valid_NL[..., None].to(x_NLD.dtype)
        return self.project((x_NLD * weight_NL1).sum(1) / weight_NL1.sum(1).clamp(min=1))


class Forecaster(nn.Module):
    """The network in the module's docstring.

    `feature_mean` and `feature_scale`, shape (F,), are statistics of the training split after a signed logarithm; they are
    buffers, so that a checkpoint contains them. `text_encoder` maps token ids (N, L) to (N, D); None for data without text.
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
        with torch.no_grad():  # start at the base rate, so that the first steps need not learn that hot rows are rare
            self.heads.bias.zero_()
            self.heads.bias[0] = math.log(base_rate / (1 - base_rate))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Outputs of the heads, shape (B, 4), in the order of `TARGETS`; the first is the logit of hot.

        `batch` contains series (B, T, C), valid_weeks (B, T), week (B,), features (B, F), category (B,), and, with text,
        tokens (B, R, L), rating_and_age (B, R, 2), valid_reviews (B, R).
        """
        series_BTC, valid_BT = batch["series"], batch["valid_weeks"]
        num_weeks = series_BTC.shape[1]
        offset_T = torch.arange(1 - num_weeks, 1, device=series_BTC.device)
        angle_BT = (batch["week"][:, None] + offset_T) * (2 * math.pi * 7 / 365.25)
        season_BT2 = torch.stack([angle_BT.sin(), angle_BT.cos()], dim=-1)
        x_BTD = self.series_in(torch.cat([series_BTC, season_BT2.to(series_BTC.dtype)], dim=-1)) + self.week_TD
        for block in self.blocks:
            x_BTD = self._run(block, x_BTD, valid_BT)
        if self.text_encoder is not None:
            memory_BSD, valid_BS = self._reviews(batch)
            x_BTD = self._run(self.cross, x_BTD, valid_BS, memory_BSD)

        score_BT = (x_BTD @ self.pool_query_D).masked_fill(~valid_BT, -torch.inf)
        pooled_BD = (score_BT.softmax(dim=-1)[..., None] * x_BTD).sum(dim=1)
        table_BD = self.table(self._features(batch["features"])) + self.category(batch["category"])
        return self.heads(self.joint(torch.cat([pooled_BD, x_BTD[:, -1], table_BD], dim=-1)))

    def _features(self, features_BF: Tensor) -> Tensor:
        """Standardized signed logarithms, 0 for unknown values, followed by an indicator of known values: (B, 2F)."""
        known_BF = torch.isfinite(features_BF)
        logarithm_BF = features_BF.sign() * features_BF.abs().log1p()
        standard_BF = ((logarithm_BF - self.feature_mean) / self.feature_scale).clamp(-5, 5)
        return torch.cat([torch.where(known_BF, standard_BF, 0.0), known_BF.to(standard_BF.dtype)], dim=-1)

    def _reviews(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The reviews as a memory (B, R + 1, D) whose first position stands for 'no review', and its mask (B, R + 1)."""
        tokens_BRL, valid_BR = batch["tokens"], batch["valid_reviews"]
        assert self.text_encoder is not None
        text_BRD = self._run(self.text_encoder, tokens_BRL.flatten(0, 1)).unflatten(0, tokens_BRL.shape[:2])
        review_BRD = self.review_in(torch.cat([text_BRD, batch["rating_and_age"].to(text_BRD.dtype)], dim=-1))
        none_B1D = self.no_review_D.to(review_BRD.dtype).expand(len(review_BRD), 1, -1)
        always_B1 = torch.ones_like(valid_BR[:, :1])
        return torch.cat([none_B1D, review_BRD], dim=1), torch.cat([always_B1, valid_BR], dim=1)

    def _run(self, module: nn.Module, *inputs: Tensor) -> Tensor:
        """Call a module; with gradient checkpointing, only its inputs are kept for the backward pass."""
        if self.gradient_checkpointing and self.training:
            return checkpoint(module, *inputs, use_reentrant=False)
        return module(*inputs)
