"""Predictions from several latent starts and several images of a puzzle, and their combination."""

import dataclasses
from typing import Any

import pytest
import small_sudokus
import torch

from ensemble.errors import UserError
from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.inference import PredictOptions, combined
from ensemble.recipes.sudoku.model import Reasoner, Segment, Shape

BOARD = board_of(4)
SHAPE = Shape(
    side=4, box_rows=2, box_columns=2, variant="trm", mixing="heads", positions="units", width=16, num_layers=1,
    num_heads=2, inner_width=24, high_cycles=1, low_cycles=1, num_starts=2, has_puzzle_token=False,
)  # fmt: skip


def puzzles(num_puzzles: int) -> torch.Tensor:
    return torch.randint(0, 5, (num_puzzles, 16), generator=torch.Generator().manual_seed(0))


def model() -> Reasoner:
    torch.manual_seed(0)
    return Reasoner(SHAPE).double()


def predicted(network: Any, puzzle: torch.Tensor, **settings: Any) -> inference.Predicted:
    options = PredictOptions(**{"segments": 3, "halt_probability": 0.5, **settings})
    return inference.predict(network, puzzle, BOARD, SHAPE, options, "stablemax")


class Equivariant(torch.nn.Module):
    """A network that commutes with all symmetries: a given cell scores its digit, and a blank cell no digit.

    It halts after three segments, and start 1 after two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.high_start = self.low_start = torch.zeros(2, 16)

    def forward(self, puzzle: Any, start: Any, is_new: Any, high: Any, low: Any, others: Any = None) -> Segment:
        count = torch.where(is_new[:, None, None], 0, high) + 1
        digits = torch.nn.functional.one_hot(puzzle, 5)[..., 1:].double() * count[:, :, :1]
        low = torch.where(is_new[:, None, None], start[:, None, None].to(low.dtype), low)
        halt = (count + low >= 3)[:, 0, 0].double() - 0.5
        return Segment(digits, torch.stack([halt, -halt], dim=1), count, low, None)


def test_images_are_undone() -> None:
    """Votes would count for other cells or digits."""
    puzzle = puzzles(6)
    alone, voted = (predicted(Equivariant(), puzzle, votes=votes).probabilities for votes in (1, 7))
    torch.testing.assert_close(voted, alone)
    given = puzzle > 0
    assert torch.equal(alone.argmax(-1)[given] + 1, puzzle[given])


def test_images_follow_from_the_puzzle_not_from_its_batch() -> None:
    """Predictions would depend on the batch size and on the order of rows."""
    network, puzzle = model(), puzzles(6)
    whole = predicted(network, puzzle, votes=4, starts=3).probabilities
    for rows in ([0], [4, 1]):
        torch.testing.assert_close(predicted(network, puzzle[rows], votes=4, starts=3).probabilities, whole[rows])
    symmetries = inference.images_of(puzzle, BOARD, 3)
    assert torch.equal(symmetries[0].apply(puzzle), puzzle)
    assert not torch.equal(symmetries[1].apply(puzzle), symmetries[2].apply(puzzle))


def test_one_candidate_is_the_trained_start_after_all_segments() -> None:
    """A prediction would use another start, or halt early, which the reference does not."""
    network, puzzle = model(), puzzles(4)
    is_new, high, low = inference.first_states(network, SHAPE, 4, 1, puzzle.device)
    for _ in range(3):
        segment = inference.one_segment(network, puzzle, is_new, high, low)
        is_new, high, low = torch.zeros_like(is_new), segment.high[:, None], segment.low[:, None]
    alone = predicted(network, puzzle)
    expected = inference.log_probabilities(segment.digits, "stablemax").exp()
    torch.testing.assert_close(alone.probabilities, expected)
    assert alone.segments.tolist() == [3] * 4
    assert alone.calls.tolist() == [3] * 4


def test_starts_beyond_the_trained_ones_are_drawn() -> None:
    """A start would be a copy of another one, or change with the number of starts."""
    three, four = inference.drawn_starts(3, 16), inference.drawn_starts(4, 16)
    assert torch.equal(three, four[:, :3])
    assert len(four.flatten(0, 1).unique(dim=0)) == 8
    network = model()
    is_new, high, _ = inference.first_states(network, SHAPE, 5, 4, torch.device("cpu"))
    assert not is_new.any()
    assert torch.equal(high[0, :2, 0].double(), network.high_start.float().double())
    assert torch.equal(high[3, 2:, 7], inference.drawn_starts(2, 16)[0])
    state = torch.get_rng_state()
    inference.drawn_starts(2, 16)
    assert torch.equal(state, torch.get_rng_state()), "the random numbers of a training would change after an evaluation"


def test_the_first_candidate_to_halt_ends_the_prediction() -> None:
    """A puzzle would have more segments than its first candidate needs, or get the board of another candidate."""
    alone = predicted(Equivariant(), puzzles(3), segments=9, select="first")
    assert alone.segments.tolist() == [3] * 3
    raced = predicted(Equivariant(), puzzles(3), segments=9, select="first", starts=2, votes=2)
    assert raced.segments.tolist() == [2] * 3
    assert raced.calls.tolist() == [8] * 3
    waiting = predicted(Equivariant(), puzzles(3), segments=9, select="surest", starts=2, votes=2)
    assert waiting.segments.tolist() == [9] * 3
    unsure = predicted(Equivariant(), puzzles(3), segments=9, select="first", halt_probability=0.7)
    assert unsure.segments.tolist() == [9] * 3


def test_puzzles_end_independently() -> None:
    """The states of other puzzles would be exchanged when one ends."""
    network, puzzle = model(), puzzles(8)
    torch.nn.init.normal_(network.to_halting.weight, std=2.0)
    torch.nn.init.constant_(network.to_halting.bias, -4.0)
    together = predicted(network, puzzle, segments=6, select="first", starts=2, votes=2)
    assert len(together.segments.unique()) > 1
    for row in range(8):
        alone = predicted(network, puzzle[row : row + 1], segments=6, select="first", starts=2, votes=2)
        torch.testing.assert_close(alone.probabilities, together.probabilities[row : row + 1])
        assert alone.segments[0] == together.segments[row]


def board(*digits: int, sure: float = 0.7) -> torch.Tensor:
    """Probabilities (cells, 3) whose most probable digits are these."""
    rest = (1 - sure) / 2
    return rest + (sure - rest) * torch.nn.functional.one_hot(torch.tensor(digits), 3).double()


def test_candidates_are_combined() -> None:
    """A majority would be of cells, not of boards, or a tie would go to the less probable board."""
    halting = torch.tensor([[0.1, 3.0, 0.2, -1.0]])
    each = torch.stack([board(0, 1), board(0, 1, sure=0.6), board(2, 2, sure=0.95), board(1, 2)])[None]
    assert torch.equal(combined(each, halting, "first"), each[:, 1])
    assert torch.equal(combined(each, halting, "surest"), each[:, 1])
    torch.testing.assert_close(combined(each, halting, "mean"), each.mean(1))
    torch.testing.assert_close(combined(each, halting, "vote"), each[:, :2].mean(1))
    tied = torch.stack([board(0, 1, sure=0.6), board(2, 2), board(0, 1, sure=0.6), board(2, 2)])[None]
    assert combined(tied, halting, "vote").argmax(-1).tolist() == [[2, 2]]
    # Cell by cell, 0 and 0 would have two of three votes each
    cells = torch.stack([board(0, 0), board(0, 1), board(1, 0)])[None]
    assert combined(cells + 0, halting[:, :3], "vote").argmax(-1).tolist() in ([[0, 0]], [[0, 1]], [[1, 0]])


def test_impossible_settings_are_refused() -> None:
    """A misspelt value would be ignored."""
    options = PredictOptions(segments=4)
    assert inference.with_settings(options, "hrm", 0, 0, "") == options
    assert inference.with_settings(options, "trm", 3, 2, "vote") == dataclasses.replace(
        options, starts=3, votes=2, select="vote"
    )
    with pytest.raises(UserError, match="select=majority is not a way"):
        inference.with_settings(options, "hrm", 0, 0, "majority")
    with pytest.raises(UserError, match="starts=-1"):
        inference.with_settings(options, "hrm", -1, 0, "")
    with pytest.raises(UserError, match="variant=direct"):
        inference.with_settings(options, "direct", 2, 0, "")
    assert small_sudokus.config(variant="direct").segments == 1
