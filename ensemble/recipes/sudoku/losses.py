"""Losses of the recipe sudoku: stablemax or softmax cross-entropy in float64, and the loss of halting.

stablemax replaces exp in the softmax: s(x) = x + 1 for x ≥ 0, and 1 / (1 − x) below. Source: Prieto et al. 2025,
arXiv:2501.04697; sapientinc/HRM, `models/losses.py`.
"""

import torch
import torch.nn.functional as F


def log_probabilities(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Log probabilities over the last dimension, float64. kind : stablemax or softmax."""
    logits = logits.double()
    if kind == "softmax":
        return F.log_softmax(logits, dim=-1)
    # log s(x) = ±log(1 + |x|). With 1 / (1 − x) in torch.where, the gradient at x = 1 would be NaN
    sign = torch.where(logits < 0, -1.0, 1.0)  # not `abs`, whose gradient at 0 is 0
    log_scores = (logits * sign).log1p() * sign
    return log_scores - log_scores.exp().sum(dim=-1, keepdim=True).log()


def cross_entropy(logits_BLC: torch.Tensor, solution_BL: torch.Tensor, kind: str) -> torch.Tensor:
    """Cross-entropy of each puzzle, the mean over its cells, (B,) float64. solution_BL : digits from 1, int64."""
    log_BLC = log_probabilities(logits_BLC, kind)
    return -log_BLC.gather(-1, solution_BL[..., None] - 1)[..., 0].mean(dim=1)


def is_solved(logits_BLC: torch.Tensor, solution_BL: torch.Tensor) -> torch.Tensor:
    """Whether the most probable digit of every cell is right, (B,) bool."""
    return (logits_BLC.argmax(dim=-1) + 1 == solution_BL).all(dim=-1)


def binary(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy of each logit, not reduced."""
    return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
