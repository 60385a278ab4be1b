"""Losses over a large number of items: each a sum over T places of what the model knows, (T, D), against the items, (V, D).

A place's score of an item is the product of the two. Row 0 of the items is padding: it is never a target nor drawn.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 1 << 24
"""Places × items whose scores are in memory at once: 64 MB in fp32."""


def cross_entropy(known_TD: Tensor, item_VD: Tensor, target_T: Tensor) -> Tensor:
    """The softmax over all items; places are taken in pieces, so that (T, V) scores are never in memory."""
    return _CrossEntropy.apply(known_TD, item_VD, target_T)


class _CrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward pass, while a piece's scores are there: they are not computed twice."""

    @staticmethod
    def forward(ctx: Any, known_TD: Tensor, item_VD: Tensor, target_T: Tensor) -> Tensor:
        piece = max(1, LOGITS_AT_ONCE // len(item_VD))
        item = item_VD.to(known_TD.dtype)
        total = known_TD.new_zeros((), dtype=torch.float32)
        needed = any(ctx.needs_input_grad[:2])
        known_slope = torch.empty_like(known_TD) if needed else None
        item_slope = torch.zeros_like(item_VD, dtype=torch.float32) if needed else None
        for begin in range(0, len(known_TD), piece):
            known, target = known_TD[begin : begin + piece], target_T[begin : begin + piece, None]
            score = (known @ item.T).float()
            score[:, 0] = -torch.inf
            chance = torch.log_softmax(score, dim=1)
            total -= chance.gather(1, target).sum()
            if known_slope is None or item_slope is None:
                continue
            slope = chance.exp_()
            slope.scatter_add_(1, target, torch.full_like(target, -1, dtype=slope.dtype))
            slope = slope.to(known.dtype)
            known_slope[begin : begin + piece] = slope @ item
            item_slope += (slope.T @ known).float()
        ctx.save_for_backward(known_slope, None if item_slope is None else item_slope.to(item_VD.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        known_slope, item_slope = ctx.saved_tensors
        return gradients[0].to(known_slope.dtype) * known_slope, gradients[0].to(item_slope.dtype) * item_slope, None


class Sampler:
    """Draws items by their counts, shape (V − 1,) for items 1 …, to some power; of those never counted as if once."""

    def __init__(self, count: Tensor, power: float):
        chance = count.clamp(min=1).double() ** power
        self.log_chance = (chance / chance.sum()).log().float()
        self._total = chance.cumsum(0)

    def draw(self, number: int) -> tuple[Tensor, Tensor]:
        """`number` items, with replacement, and the logarithm of the chance of each."""
        drawn = torch.rand(number, device=self._total.device, dtype=torch.float64) * self._total[-1]
        place = torch.searchsorted(self._total, drawn, right=True).clamp(max=len(self._total) - 1)
        return place + 1, self.log_chance[place]


def sampled_softmax(known_TD: Tensor, item_VD: Tensor, target_T: Tensor, number: int, sampler: Sampler) -> Tensor:
    """The softmax over the target and `number` items drawn for all places together.

    The score of a drawn item is lowered by the logarithm of how often it is expected among them, so that the loss is, in
    expectation and for many of them, that of all items (Bengio & Senécal 2008). One that is the target does not count.
    """
    negative_N, log_chance_N = sampler.draw(number)
    score_T1 = (known_TD * F.embedding(target_T, item_VD)).sum(-1, keepdim=True).float()
    score_TN = (known_TD @ F.embedding(negative_N, item_VD).T).float() - (log_chance_N + math.log(number))
    score_TN = score_TN.masked_fill(negative_N == target_T[:, None], -torch.inf)
    return (torch.cat([score_T1, score_TN], dim=1).logsumexp(1) - score_T1[:, 0]).sum()


def binary_cross_entropy(
    known_TD: Tensor, item_VD: Tensor, target_T: Tensor, negative_TN: Tensor, power: float = 1.0
) -> Tensor:
    """−log σ(target)^power − Σ log(1 − σ(negative)): SASRec's with one negative, gSASRec's gBCE with a power below 1."""
    item_TMD = F.embedding(torch.cat([target_T[:, None], negative_TN], dim=1), item_VD)
    score_TM = (item_TMD @ known_TD[..., None].to(item_TMD.dtype)).squeeze(-1).float()
    return -power * F.logsigmoid(score_TM[:, 0]).sum() - F.logsigmoid(-score_TM[:, 1:]).sum()


def gbce_power(share: float, calibration: float) -> float:
    """β of gSASRec (Petrov & Macdonald 2023, arXiv:2308.07192), for the share of items that are drawn and its t."""
    return share * (calibration * (1 - 1 / share) + 1 / share)


def draw_negatives(batch: dict[str, Tensor], num_items: int, number: int) -> Tensor:
    """For each place asked for, `number` items that its user has not taken in the training history, all alike; (T, N).

    `taken.g` of the batch has the distinct items of each user, rising, less their place in that list. The x-th of the
    items that are not in it is then x + the number of its entries that are ≤ x: no draw has to be thrown away.
    """
    found, group = [], 0
    while (items_BL := batch.get(f"items.{group}")) is not None:
        taken = batch[f"taken.{group}"]
        free_B1 = num_items - (taken <= num_items).sum(1, keepdim=True)
        drawn = torch.rand(len(taken), items_BL.shape[1] * number, device=taken.device, dtype=torch.float64)
        drawn = (drawn * free_B1).long() + 1
        drawn += torch.searchsorted(taken.contiguous(), drawn, right=True)
        # Of a sequence that holds every item, the padding: it is ranked nowhere
        found.append(torch.where(free_B1 > 0, drawn, 0).clamp(max=num_items).view(-1, number))
        group += 1
    return torch.cat(found)[batch["places"]]
