"""Predictions of a reasoning model: several latent starts, several symmetric images of a puzzle, and how they are joined.

A candidate is one latent start on one symmetric image of the puzzle. Candidate number 0 is the trained start 0 on the puzzle
as it is. Starts beyond the trained ones are drawn from the distribution that those were drawn from.

    mean   the mean over the candidates of the probabilities after the last segment
    vote   the board that most candidates end with, of equally frequent ones the more probable: the mean of those candidates
    surest the candidate with the highest logit of halting after the last segment
    first  the candidate that halts first, of several the one with the highest logit of halting, at the segment in which it
           halts; the candidate with the highest logit after the last segment if none halts. A puzzle takes part in no
           further segment once one of its candidates has halted. A candidate halts with `How.halt_probability`: with 0.5,
           as in training, the first of several to halt is often one that is wrong.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from ensemble.errors import UserError
from ensemble.recipes.sudoku.boards import Board
from ensemble.recipes.sudoku.layers import truncated_normal
from ensemble.recipes.sudoku.losses import log_probabilities
from ensemble.recipes.sudoku.model import Segment, Shape
from ensemble.recipes.sudoku.symmetry import Symmetries, identity, mixed, symmetries_of

SELECT = ("mean", "vote", "surest", "first")
SEED_OF_VOTES, SEED_OF_STARTS = 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """How predictions are made."""

    segments: int
    starts: int = 1
    """Latent starts."""
    votes: int = 1
    """Symmetric images of the puzzle, the first of which is the puzzle itself."""
    select: str = "mean"
    """How candidates are joined: one of SELECT."""
    halt_probability: float = 0.98
    """The least probability of halting with which a candidate halts for select=first."""


class Predicted(NamedTuple):
    """Of B puzzles."""

    probabilities: torch.Tensor
    """(B, cells, side) float64."""
    segments: torch.Tensor
    """Segments until a candidate halted, or all of them; (B,) int64."""
    calls: torch.Tensor
    """Segments of all candidates together, which is what the prediction cost; (B,) int64."""
    candidates: torch.Tensor
    """The probabilities of each candidate when they were joined; (B, N, cells, side) float64."""
    halting: torch.Tensor
    """Their logits of halting; (B, N)."""


def checked(how: How, variant: str, starts: int, votes: int, select: str) -> How:
    """`how` with the settings that are not 0 or empty; `UserError` for what is impossible."""
    if starts < 0 or votes < 0:
        raise UserError(f"starts={starts} and votes={votes} must be 1 or more, or 0 for one")
    if select and select not in SELECT:
        raise UserError(f"select={select} is no way to join candidates: choose one of {', '.join(SELECT)}")
    if variant == "direct" and starts > 1:
        raise UserError(f"starts={starts} is for networks that reason: leave it out with recipe.variant=direct")
    return dataclasses.replace(how, starts=starts or how.starts, votes=votes or how.votes, select=select or how.select)


def one_segment(
    model: torch.nn.Module,
    puzzle: torch.Tensor,
    puzzle_id: torch.Tensor,
    is_new: torch.Tensor,
    high: torch.Tensor,
    low: torch.Tensor,
) -> Segment:
    """One segment of K latent states of each of B puzzles, high and low (B, K, L, D); the result has B × K rows."""
    num_starts = high.shape[1]
    inputs = (of.repeat_interleave(num_starts, dim=0) for of in (puzzle, puzzle_id))
    begins = is_new.repeat_interleave(num_starts, dim=0)
    # Only puzzles that begin need the number of their start, and only trained starts have one
    start = torch.where(begins, torch.arange(num_starts, device=puzzle.device).repeat(len(puzzle)), 0)
    found: Segment = model(*inputs, start, begins, high.flatten(0, 1), low.flatten(0, 1))
    return found


def first_states(
    model: torch.nn.Module, shape: Shape, num_puzzles: int, num_starts: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `one_segment` begins with: is_new, high and low. Starts that were not trained are in high and low already."""
    high, low = torch.zeros(2, num_puzzles, num_starts, shape.num_tokens, shape.width, device=device)
    is_new = torch.full((num_puzzles,), num_starts <= shape.num_starts, device=device)
    if num_starts > shape.num_starts:
        of: Any = getattr(model, "module", model)
        drawn = drawn_starts(num_starts - shape.num_starts, shape.width).to(device)
        high += torch.cat([of.high_start, drawn[0]])[:, None]
        low += torch.cat([of.low_start, drawn[1]])[:, None]
    return is_new, high, low


@torch.no_grad()
def predict(model: torch.nn.Module, puzzle: torch.Tensor, board: Board, shape: Shape, how: How, loss: str) -> Predicted:
    """The digits of puzzles (B, cells), int64, 0 for blanks. loss : whose normalisation makes the probabilities."""
    num_puzzles, num_candidates = len(puzzle), how.votes * how.starts
    symmetries = images_of(puzzle, board, how.votes)
    images = torch.stack([of.apply(puzzle) for of in symmetries], dim=1).flatten(0, 1)
    puzzle_id = torch.zeros_like(images[:, 0])
    is_new, high, low = first_states(model, shape, len(images), how.starts, puzzle.device)
    left = torch.arange(num_puzzles, device=puzzle.device)
    probabilities = torch.zeros(num_puzzles, board.cells, board.side, dtype=torch.float64, device=puzzle.device)
    segments = torch.zeros_like(left)
    candidates = torch.zeros(num_puzzles, num_candidates, board.cells, board.side, dtype=torch.float64, device=puzzle.device)
    logits = torch.zeros(num_puzzles, num_candidates, device=puzzle.device)
    for number in range(1, how.segments + 1):
        found = one_segment(model, images, puzzle_id, is_new, high, low)
        is_last = number == how.segments
        if not is_last and how.select != "first":
            is_done = torch.zeros_like(left, dtype=torch.bool)
        else:
            halting = found.halting[:, 0].view(len(left), num_candidates)
            is_done = (halting.sigmoid() >= how.halt_probability).any(dim=1) | is_last
            on_images = (
                log_probabilities(found.digits, loss).exp().view(len(left), how.votes, how.starts, *found.digits.shape[1:])
            )
            done = left[is_done]
            each = torch.stack(
                [
                    _rows_of(of, done).undo_classes(on_images[is_done, vote, start])
                    for vote, of in enumerate(symmetries)
                    for start in range(how.starts)
                ],
                dim=1,
            )
            candidates[done], logits[done] = each, halting[is_done].to(logits.dtype)
            probabilities[done] = joined(each, halting[is_done], how.select)
            segments[done] = number
        high, low = (of.view(len(images), how.starts, *of.shape[1:]) for of in (found.high, found.low))
        is_new = torch.zeros_like(is_new)
        if is_done.any():
            going_on = ~is_done.repeat_interleave(how.votes)
            images, puzzle_id, is_new, high, low = (of[going_on] for of in (images, puzzle_id, is_new, high, low))
            left = left[~is_done]
            if not len(left):
                break
    return Predicted(probabilities, segments, segments * num_candidates, candidates, logits)


def joined(each: torch.Tensor, halting: torch.Tensor, select: str) -> torch.Tensor:
    """Probabilities (B, cells, side) of N candidates with probabilities (B, N, cells, side) and logits of halting (B, N)."""
    rows = torch.arange(len(each), device=each.device)
    if select in ("surest", "first"):
        return each[rows, halting.argmax(dim=1)]
    if select == "mean":
        return each.mean(dim=1)
    most, digits = each.max(dim=-1)
    is_same = (digits[:, :, None] == digits[:, None]).all(dim=-1)
    # Candidates with equal boards are counted; the mean of the highest probabilities, below 1, decides between equal counts
    chosen = (is_same.sum(dim=-1) + 0.5 * most.mean(dim=-1)).argmax(dim=1)
    voters = is_same[rows, chosen].to(each.dtype)
    return (each * voters[:, :, None, None]).sum(dim=1) / voters.sum(dim=1)[:, None, None]


def images_of(puzzle: torch.Tensor, board: Board, num_images: int) -> list[Symmetries]:
    """The identity and num_images − 1 symmetries of each puzzle, which follow from its cells, not from its batch."""
    keys = np.zeros(len(puzzle), np.uint64)
    if num_images > 1:
        for cell in puzzle.cpu().numpy().T:
            keys = mixed(keys, cell)
    drawn = [symmetries_of(board, SEED_OF_VOTES, number, keys) for number in range(1, num_images)]
    return [identity(board, len(puzzle)), *drawn]


def _rows_of(symmetries: Symmetries, rows: torch.Tensor) -> Symmetries:
    numbers = rows.cpu().numpy()
    return Symmetries(symmetries.cells[numbers], symmetries.digits[numbers])


def drawn_starts(num_starts: int, width: int) -> torch.Tensor:
    """Latent starts that were not trained: z_H and z_L, (2, num_starts, width). Start k does not depend on their number."""
    state = torch.get_rng_state()
    try:
        torch.manual_seed(SEED_OF_STARTS)
        return torch.stack([truncated_normal(2, width, std=1.0).data for _ in range(num_starts)], dim=1)
    finally:
        torch.set_rng_state(state)
