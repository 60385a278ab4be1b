"""Losses over many items equal their plain formulas, and negatives are never items that the user took."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ensemble.recipes.next_item import losses


@pytest.fixture
def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, item embeddings and targets; float64."""
    torch.manual_seed(0)
    known = torch.randn(37, 8, dtype=torch.float64, requires_grad=True)
    item = torch.randn(101, 8, dtype=torch.float64, requires_grad=True)
    return known, item, torch.randint(1, 101, (37,))


def test_cross_entropy_in_pieces_is_that_of_all(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk would be left out, padding would count as an item, or gradients would be exchanged."""
    known, item, target = parts
    score = (known @ item.T)[:, 1:]
    plain = F.cross_entropy(score, target - 1, reduction="sum")
    expected = torch.autograd.grad(3 * plain, [known, item])
    for at_once in (1, 500, 1 << 24):
        monkeypatch.setattr(losses, "LOGITS_AT_ONCE", at_once)
        loss = losses.cross_entropy(known, item, target)
        torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=0)
        for actual_gradient, expected_gradient in zip(torch.autograd.grad(3 * loss, [known, item]), expected, strict=True):
            torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def test_sampled_softmax_approaches_that_of_all(parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """Without the correction, popular items would have too low scores, since they are sampled often."""
    known, item, target = parts
    whole = losses.cross_entropy(known, item, target).item()
    count = torch.arange(1, 101) ** 2
    torch.manual_seed(1)
    for power in (0.0, 0.5, 1.0):
        sampler = losses.Sampler(count, power)
        actual = losses.sampled_softmax(known, item, target, 200_000, sampler).item()
        assert actual == pytest.approx(whole, rel=0.02), power


def test_the_sampler_draws_by_counts() -> None:
    """The correction would be of another distribution than the samples."""
    torch.manual_seed(0)
    count = torch.tensor([1, 0, 16, 4])
    sampler = losses.Sampler(count, 0.5)
    drawn, log_chance = sampler.draw(100_000)
    share = np.bincount(drawn.numpy(), minlength=5)[1:] / 100_000
    assert share == pytest.approx(np.array([1, 1, 4, 2]) / 8, abs=0.01)
    torch.testing.assert_close(log_chance.exp(), torch.tensor([1, 1, 4, 2])[drawn - 1] / 8)


def test_negatives_are_uniform_over_items_not_taken() -> None:
    """An item that the user took would be a negative, or some items would never be sampled."""
    torch.manual_seed(0)
    items = torch.tensor([[3, 5, 3, 0], [9, 1, 2, 10]])
    huge = 1 << 40
    taken = torch.tensor([[3 - 0, 4 - 1, 5 - 2, huge, huge], [1, 2 - 1, 9 - 2, 10 - 3, huge]])
    batch = {"items.0": items, "taken.0": taken, "places": torch.tensor([0, 2, 4, 7])}
    drawn = losses.draw_negatives(batch, 10, 20_000)
    assert drawn.shape == (4, 20_000)
    for place, free in zip(drawn, ([1, 2, 6, 7, 8, 9, 10],) * 2 + ([3, 4, 5, 6, 7, 8],) * 2, strict=True):
        share = np.bincount(place.numpy(), minlength=11) / 20_000
        assert set(np.flatnonzero(share)) == set(free)
        assert share[free] == pytest.approx(1 / len(free), abs=0.012)


def test_negatives_are_padding_if_all_items_were_taken() -> None:
    """Items that the user took, even the target, would be negatives."""
    batch = {"items.0": torch.tensor([[1, 2]]), "taken.0": torch.tensor([[1, 1, 1]]), "places": torch.tensor([0, 1])}
    assert (losses.draw_negatives(batch, 3, 50) == 0).all()


def test_bce_and_gbce() -> None:
    """The loss would not be that of the papers."""
    known, item = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.5, -1.0], [2.0, 0.0]])
    negatives = torch.tensor([[2, 3]])
    positive, first, second = 3.0, -1.5, 2.0
    plain = np.log1p(np.exp(-positive)) + np.log1p(np.exp(first)) + np.log1p(np.exp(second))
    actual = losses.binary_cross_entropy(known, item, torch.tensor([1]), negatives)
    assert float(actual) == pytest.approx(plain, rel=1e-5)
    power = losses.gbce_power(share=0.1, calibration=1.0)
    assert power == pytest.approx(0.1)  # with a calibration of 1, the share itself
    assert losses.gbce_power(share=0.1, calibration=0.0) == pytest.approx(1)
    actual = losses.binary_cross_entropy(known, item, torch.tensor([1]), negatives, power)
    assert float(actual) == pytest.approx(plain - 0.9 * np.log1p(np.exp(-positive)), rel=1e-5)
