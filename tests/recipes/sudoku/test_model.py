"""The update rules of HRM, TRM and the direct network: which module is called when, and where a gradient flows."""

import dataclasses
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ensemble.recipes.sudoku.layers import (
    EPSILON,
    Attention,
    Blocks,
    Gated,
    NormedSum,
    reference_inner_width,
    truncated_normal,
)  # fmt: skip
from ensemble.recipes.sudoku.model import Reasoner, Shape

SHAPE = Shape(
    side=4,
    box_rows=2,
    box_columns=2,
    variant="hrm",
    mixing="attention",
    positions="rope",
    width=16,
    num_layers=1,
    num_heads=2,
    inner_width=24,
    high_cycles=2,
    low_cycles=2,
    num_starts=2,
    has_puzzle_token=False,
)
PUZZLES = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(1))


def model(**changed: Any) -> Reasoner:
    torch.manual_seed(0)
    return Reasoner(dataclasses.replace(SHAPE, **changed)).double()


def segment(
    network: Reasoner, is_new: tuple[bool, bool, bool] = (True, True, True), states: Any = None, start: int = 0
) -> Any:
    """A segment of three puzzles."""
    high, low = torch.zeros(2, 3, network.shape.num_tokens, 16, dtype=torch.float64) if states is None else states
    return network(PUZZLES, torch.full((3,), start), torch.tensor(is_new), high, low)


def calls(network: Reasoner) -> list[str]:
    """The modules called in a segment, in order; in capitals those with a gradient."""
    seen = []
    for letter, module in (("l", network.low), ("h", network.high)):
        if module is not None:

            def record(*_: Any, letter: str = letter) -> None:
                seen.append(letter.upper() if torch.is_grad_enabled() else letter)

            module.register_forward_pre_hook(record)
    segment(network)
    return seen


@pytest.mark.parametrize(
    ("variant", "cycles", "expected"),
    [
        ("hrm", (2, 2), "llhlLH"),
        ("hrm", (1, 1), "LH"),
        ("hrm", (1, 3), "llLH"),
        ("trm", (3, 2), "llllllLLL"),
        ("trm", (1, 1), "LL"),
        ("direct", (2, 2), "LH"),
    ],
)
def test_modules_are_called_as_in_the_reference(variant: str, cycles: tuple[int, int], expected: str) -> None:
    """The one-step gradient of HRM would reach further back, or the gradient of TRM less far than its whole last cycle."""
    assert "".join(calls(model(variant=variant, high_cycles=cycles[0], low_cycles=cycles[1]))) == expected


def test_hrm_is_its_update_rule() -> None:
    """z_H would reach the low module late, or the input would be left out of an update."""
    network = model()
    result = segment(network)
    x = network.embed(PUZZLES)
    high, low = network.high_start[0].expand_as(x), network.low_start[0].expand_as(x)
    assert network.high is not None
    for _ in range(2):
        for _ in range(2):
            low = network.low(low + high + x)
        high = network.high(high + low)
    torch.testing.assert_close(result.high, high)
    torch.testing.assert_close(result.low, low)
    torch.testing.assert_close(result.digits, high @ network.to_digits.weight.T)
    torch.testing.assert_close(result.halting, high[:, 0] @ network.to_halting.weight.T - 5.0)


def test_trm_updates_both_states_with_one_network() -> None:
    """The input would enter the update of z_H, or there would be a second network."""
    network = model(variant="trm", high_cycles=2, low_cycles=3)
    result = segment(network)
    x = network.embed(PUZZLES)
    high, low = network.high_start[0].expand_as(x), network.low_start[0].expand_as(x)
    for _ in range(2):
        for _ in range(3):
            low = network.low(low + high + x)
        high = network.low(high + low)
    assert network.high is None
    torch.testing.assert_close(result.high, high)
    torch.testing.assert_close(result.low, low)


def test_only_new_places_begin_anew() -> None:
    """A puzzle would lose its latent state in the middle, or begin with that of the puzzle before it."""
    network = model()
    first = segment(network)
    states = first.high.detach(), first.low.detach()
    again = segment(network, (False, True, False), states)
    onward, anew = segment(network, (False, False, False), states), first
    assert torch.equal(again.high[[0, 2]], onward.high[[0, 2]])
    torch.testing.assert_close(again.high[1], anew.high[1])
    assert not torch.allclose(onward.high[1], anew.high[1])
    assert not torch.allclose(segment(network, start=1).high, anew.high), "all starts are the same"
    other_low = segment(network, (False, False, False), (states[0], states[1] + 1))
    assert not torch.allclose(other_low.high, onward.high), "z_L begins anew"


def test_gradients_stay_within_the_segment() -> None:
    """The memory of a puzzle would grow with its segments."""
    network = model()
    high, low = (torch.randn(3, 16, 16, dtype=torch.float64, requires_grad=True) for _ in "HL")
    segment(network, (False,) * 3, (high, low)).digits.sum().backward()
    assert high.grad is None
    assert low.grad is None
    assert all(parameter.grad is not None for name, parameter in network.named_parameters() if "halting" not in name)


def test_initial_weights() -> None:
    """The first weights would be too large, or puzzles would halt before anything is learned."""
    weights = truncated_normal(400, 500, std=0.3)
    assert weights.std().item() == pytest.approx(0.3, rel=0.02)
    carried = 0.3 / weights.abs().max().item()
    assert carried == pytest.approx(0.8796 / 2, rel=0.01), "cut at two standard deviations of the wider normal"
    network = model(width=64)
    assert network.to_digits.weight.std().item() == pytest.approx(1 / 8, rel=0.1)
    narrow = network.low.perceptrons[0].narrow.weight  # type: ignore[union-attr]
    assert narrow.std().item() == pytest.approx(1 / math.sqrt(24), rel=0.1)
    halting = segment(model()).halting
    assert torch.equal(halting, torch.full_like(halting, -5.0))
    assert {"high_start", "low_start"} <= network.state_dict().keys()


@pytest.mark.parametrize(
    ("mixing", "positions"),
    [("attention", "learned"), ("attention", "units"), ("heads", "units"), ("heads", "none"), ("tokens", "none")],
)
def test_every_mixing_reaches_every_cell(mixing: str, positions: str) -> None:
    """A cell could not see another one."""
    network = model(mixing=mixing, positions=positions)
    x = torch.randn(1, 16, 16, dtype=torch.float64, requires_grad=True)
    network.low(x)[0, 3].sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum(-1).ne(0).all()
    blank = network.embed(torch.zeros(1, 16, dtype=torch.long))
    assert len(network.low(blank)[0].unique(dim=0)) == 16, "two cells look the same"


def test_inner_widths_are_those_of_the_references() -> None:
    """The published settings would build another network: HRM's width is 512, and TRM-MLP mixes 97 tokens."""
    assert [reference_inner_width(width) for width in (64, 96, 97, 512)] == [256, 256, 512, 1536]


def test_rope_depends_on_distances_only() -> None:
    """Positions would be absolute: attention would change when all tokens are shifted."""
    torch.manual_seed(0)
    attention = Attention(12, 16, 2, has_rope=True).double()
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    query, key, _ = attention.project(x).view(1, 6, 3, 2, -1).unbind(2)

    def scores(offset: int) -> torch.Tensor:
        rotations, attention.rotations = attention.rotations, attention.rotations[offset : offset + 6]
        result = torch.einsum("blhd,bmhd->bhlm", attention.rotated(query), attention.rotated(key))
        attention.rotations = rotations
        return result

    torch.testing.assert_close(scores(0), scores(5), rtol=0, atol=1e-5)
    assert not torch.allclose(scores(0), torch.einsum("blhd,bmhd->bhlm", query, key))


def test_blocks_are_normed_after_the_sum() -> None:
    """Latent states would grow from segment to segment."""
    torch.manual_seed(0)
    block = Blocks(16, 16, 1, 2, 24, mixing="heads", has_rope=False).double()
    x = 100 * torch.randn(2, 16, 16, dtype=torch.float64)
    norm = partial(F.rms_norm, normalized_shape=(16,), eps=EPSILON)
    mixed = norm(x + block.mixers[0](x))
    result = block(x)
    torch.testing.assert_close(result, norm(mixed + block.perceptrons[0](mixed)))
    torch.testing.assert_close(result.square().mean(-1), torch.ones(2, 16, dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_mixing_of_tokens_is_that_of_the_reference() -> None:
    """TRM-MLP would be another network than the published one, whose norm after mixing is over the tokens of a channel."""
    torch.manual_seed(0)
    block = Blocks(16, 12, 1, 2, 24, mixing="tokens", has_rope=False).double()
    x = torch.randn(2, 16, 12, dtype=torch.float64)
    moved = x.transpose(1, 2)
    mixed = F.rms_norm(moved + block.mixers[0](moved), (16,), eps=EPSILON).transpose(1, 2)
    torch.testing.assert_close(block(x), F.rms_norm(mixed + block.perceptrons[0](mixed), (12,), eps=EPSILON))


def test_gradients_written_by_hand_are_those_of_the_functions() -> None:
    """Training would follow another direction than that of the loss."""
    torch.manual_seed(0)
    x, y, wide = (torch.randn(3, size, dtype=torch.float64, requires_grad=True) for size in (5, 5, 8))
    torch.autograd.gradcheck(NormedSum.apply, (x, y))
    torch.autograd.gradcheck(Gated.apply, (wide,))
    assert torch.equal(Gated.apply(wide), F.silu(wide[:, :4]) * wide[:, 4:])
    half = NormedSum.apply(x.bfloat16(), y.bfloat16())
    assert half.dtype == torch.float32, "the sum of squares would have 8 bits"


def test_the_puzzle_embedding_has_a_sparse_gradient_of_each_use() -> None:
    """The gradients of one id would be summed before the ranks exchange them, or another optimizer would train the table."""
    network = model(positions="learned", has_puzzle_token=True)
    assert network.puzzles is not None
    result = segment(network)
    assert result.digits.shape == (3, 16, 4)
    result.digits.square().sum().backward()
    gradient = network.puzzles.table.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert gradient._indices().tolist() == [[0, 0, 0]]
    assert not network.puzzles.table.requires_grad
    segment(network).digits.square().sum().backward()
    assert network.puzzles.table.grad._indices().tolist() == [[0] * 6]  # type: ignore[union-attr]
