"""Losses over many items, each summed over T positions, from hidden states (T, D) and item embeddings (V, D).

The score of an item is the product of its embedding and the hidden state. Row 0 of the embeddings is padding: it is never a
target, and a negative only for a user who took all items.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 1 << 24
"""Positions × items whose scores are in memory at once: 64 MB in fp32."""


def cross_entropy(hidden_TD: Tensor, item_VD: Tensor, target_T: Tensor) -> Tensor:
    """Softmax cross-entropy over all items, in chunks of positions: the (T, V) scores are never in memory at once."""
    return _CrossEntropy.apply(hidden_TD, item_VD, target_T)


class _CrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, while a chunk's scores are in memory, so that no score is computed twice."""

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, item_VD: Tensor, target_T: Tensor) -> Tensor:
        chunk = max(1, LOGITS_AT_ONCE // len(item_VD))
        item = item_VD.to(hidden_TD.dtype)
        total = hidden_TD.new_zeros((), dtype=torch.float32)
        hidden_gradient, item_gradient = torch.empty_like(hidden_TD), torch.zeros_like(item_VD, dtype=torch.float32)
        for begin in range(0, len(hidden_TD), chunk):
            hidden, target = hidden_TD[begin : begin + chunk], target_T[begin : begin + chunk, None]
            score = (hidden @ item.T).float()
            score[:, 0] = -torch.inf
            log_probability = torch.log_softmax(score, dim=1)
            total -= log_probability.gather(1, target).sum()
            gradient = log_probability.exp_()
            gradient.scatter_add_(1, target, torch.full_like(target, -1, dtype=gradient.dtype))
            gradient = gradient.to(hidden.dtype)
            hidden_gradient[begin : begin + chunk] = gradient @ item
            item_gradient += (gradient.T @ hidden).float()
        ctx.save_for_backward(hidden_gradient, item_gradient.to(item_VD.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, item = ctx.saved_tensors  # gradients of the sum
        return gradients[0].to(hidden.dtype) * hidden, gradients[0].to(item.dtype) * item, None


class Sampler:
    """Samples items with probability ∝ count^power. count : (V − 1,), of the items 1 …; a count of 0 is replaced by 1."""

    def __init__(self, count: Tensor, power: float):
        probability = count.clamp(min=1).double() ** power
        self.log_probability = (probability / probability.sum()).log().float()
        self._total = probability.cumsum(0)

    def draw(self, number: int) -> tuple[Tensor, Tensor]:
        """Sample `number` items with replacement; returns the items and their log probabilities."""
        uniform = torch.rand(number, device=self._total.device, dtype=torch.float64) * self._total[-1]
        index = torch.searchsorted(self._total, uniform, right=True).clamp(max=len(self._total) - 1)
        return index + 1, self.log_probability[index]


def sampled_softmax(hidden_TD: Tensor, item_VD: Tensor, target_T: Tensor, number: int, sampler: Sampler) -> Tensor:
    """Softmax cross-entropy over the target and `number` negatives that all positions share.

    The log of the expected count of a negative in the sample is subtracted from its score (logQ correction). With many
    negatives the loss then approaches `cross_entropy` (Bengio & Senécal 2008). Negatives equal to the target are masked.
    """
    negative_N, log_probability_N = sampler.draw(number)
    score_T1 = (hidden_TD * F.embedding(target_T, item_VD)).sum(-1, keepdim=True).float()
    score_TN = (hidden_TD @ F.embedding(negative_N, item_VD).T).float() - (log_probability_N + math.log(number))
    score_TN = score_TN.masked_fill(negative_N == target_T[:, None], -torch.inf)
    return (torch.cat([score_T1, score_TN], dim=1).logsumexp(1) - score_T1[:, 0]).sum()


def binary_cross_entropy(
    hidden_TD: Tensor, item_VD: Tensor, target_T: Tensor, negative_TN: Tensor, power: float = 1.0
) -> Tensor:
    """−log σ(target)^power − Σ log(1 − σ(negative)): with power 1 the loss of SASRec, with a lower power gBCE of gSASRec."""
    item_TMD = F.embedding(torch.cat([target_T[:, None], negative_TN], dim=1), item_VD)
    score_TM = (item_TMD @ hidden_TD[..., None].to(item_TMD.dtype)).squeeze(-1).float()
    return -power * F.logsigmoid(score_TM[:, 0]).sum() - F.logsigmoid(-score_TM[:, 1:]).sum()


def gbce_power(share: float, calibration: float) -> float:
    """β of gSASRec (Petrov & Macdonald 2023, arXiv:2308.07192), from the sampling rate `share` and calibration t."""
    return share * (calibration * (1 - 1 / share) + 1 / share)


def draw_negatives(batch: dict[str, Tensor], num_items: int, number: int) -> Tensor:
    """Sample `number` negatives for each position, uniformly from items that are not in the user's training history; (T, N).

    `taken.g` of the batch has, for each user of the length group g, the distinct items in ascending order, each minus its
    index in that order. The x-th item that the user did not take is then x + the number of entries ≤ x, so no sample has to
    be rejected.
    """
    negatives, group = [], 0
    while (items_BL := batch.get(f"items.{group}")) is not None:
        taken = batch[f"taken.{group}"]
        num_free_B1 = num_items - (taken <= num_items).sum(1, keepdim=True)
        uniform = torch.rand(len(taken), items_BL.shape[1] * number, device=taken.device, dtype=torch.float64)
        item = (uniform * num_free_B1).long() + 1
        item += torch.searchsorted(taken.contiguous(), item, right=True)
        # If the user took all items, the negative is item 0, the padding, which is never ranked
        negatives.append(torch.where(num_free_B1 > 0, item, 0).clamp(max=num_items).view(-1, number))
        group += 1
    return torch.cat(negatives)[batch["places"]]
