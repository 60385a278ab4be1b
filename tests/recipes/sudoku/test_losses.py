"""Stablemax and the losses, compared with their formulas."""

import math

import pytest
import torch

from ensemble.recipes.sudoku.losses import binary, cross_entropy, is_solved, log_probabilities


def test_stablemax_is_its_formula() -> None:
    """Training would use another normalisation than predictions."""
    logits = torch.tensor([[-3.0, 0.0, 2.0], [1e30, -1e30, 0.0]])
    scores = [[1 / 4, 1.0, 3.0], [1e30, 1e-30, 1.0]]
    expected = [[math.log(score / sum(row)) for score in row] for row in scores]
    result = log_probabilities(logits, "stablemax")
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(result.exp().sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(log_probabilities(logits[:1], "softmax"), logits[:1].double().log_softmax(-1))


def test_the_gradient_of_stablemax_is_finite_and_right() -> None:
    """A logit of 0, where the two branches meet, would give NaN."""
    logits = torch.tensor([[0.0, -0.5, 0.7, -1e4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: log_probabilities(x, "stablemax"), [logits[:, 1:3].detach().requires_grad_()])
    zeros = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)  # d log s / dx is 1 at 0, from both sides
    log_probabilities(zeros, "stablemax")[0, 0].backward()
    assert zeros.grad.tolist() == [[0.75, -0.25, -0.25, -0.25]]
    log_probabilities(logits, "stablemax")[0, 0].backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_loss_of_a_puzzle_is_the_mean_over_its_cells() -> None:
    """The weight of the loss of digits relative to that of halting would depend on the size of the board."""
    logits = torch.zeros(2, 16, 4)
    solution = torch.ones(2, 16, dtype=torch.long)
    torch.testing.assert_close(
        cross_entropy(logits, solution, "stablemax"), torch.full((2,), math.log(4), dtype=torch.float64)
    )
    logits[0, :8, 0] = 5.0  # a score of 6 among three of 1
    expected = 0.5 * math.log(4) + 0.5 * math.log(9 / 6)
    assert cross_entropy(logits, solution, "stablemax")[0].item() == pytest.approx(expected)


def test_solved_means_every_cell() -> None:
    """The network would learn to halt when most of a board is right."""
    solution = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    logits = torch.nn.functional.one_hot(solution - 1, 4).float()
    logits[1, 2] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert is_solved(logits, solution).tolist() == [True, False]


def test_binary_is_not_reduced() -> None:
    """The weight of the loss of halting would depend on the batch."""
    result = binary(torch.tensor([0.0, 2.0]), torch.tensor([True, False]))
    assert result.tolist() == pytest.approx([math.log(2), 2 + math.log1p(math.exp(-2))])
