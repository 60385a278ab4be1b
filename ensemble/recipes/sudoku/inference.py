"""Predictions of a reasoning model from several latent starts and several symmetric images of a puzzle.

A candidate is the prediction from one latent start (the initial values of the latent states) for one symmetric image of the
puzzle. Candidate 0 is the prediction from start 0 for the puzzle itself. If a prediction has more starts than the training
had, the others are drawn from the same distribution. Candidates are combined in one of four ways:

    mean   the mean of the probabilities after the last segment
    vote   the mean of the candidates that predict the most frequent board; of equally frequent boards, the more probable one
    surest the candidate with the highest logit of halting after the last segment
    first  the candidate that halts first, at the segment in which it halts; of several, the one with the highest logit of
           halting. If none halts, as `surest`. No further segments are computed for a puzzle once one of its candidates has
           halted. A candidate halts if its probability of halting is at least `PredictOptions.halt_probability`. With 0.5,
           as in training, the first candidate to halt is often wrong
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from ensemble.data.splitmix import mixed
from ensemble.errors import UserError
from ensemble.recipes.sudoku.boards import Board
from ensemble.recipes.sudoku.layers import truncated_normal
from ensemble.recipes.sudoku.losses import log_probabilities
from ensemble.recipes.sudoku.model import Segment, Shape
from ensemble.recipes.sudoku.symmetry import Symmetries, identity, symmetries_of

SELECT = ("mean", "vote", "surest", "first")
SEED_OF_VOTES, SEED_OF_STARTS = 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options of a prediction."""

    segments: int
    """The largest number of segments."""
    starts: int = 1
    """Number of latent starts."""
    votes: int = 1
    """Number of symmetric images of the puzzle, including the puzzle itself."""
    select: str = "mean"
    """How candidates are combined: one of SELECT."""
    halt_probability: float = 0.98
    """With select=first, the smallest probability of halting with which a candidate halts."""


class Predicted(NamedTuple):
    """The predictions for B puzzles."""

    probabilities: torch.Tensor
    """The probabilities of the digits, (B, cells, side) float64."""
    segments: torch.Tensor
    """Number of segments: with select=first until a candidate halted, otherwise `PredictOptions.segments`; (B,) int64."""
    calls: torch.Tensor
    """Number of segments of all candidates together, the cost of the prediction; (B,) int64."""
    candidates: torch.Tensor
    """The probabilities of each of the N = votes × starts candidates; (B, N, cells, side) float64."""
    halting: torch.Tensor
    """The logits of halting of the candidates; (B, N)."""


def with_settings(options: PredictOptions, variant: str, starts: int, votes: int, select: str) -> PredictOptions:
    """`options` with the given starts, votes and select, each unless it is 0 or empty; `UserError` for impossible values."""
    if starts < 0 or votes < 0:
        raise UserError(f"starts={starts} and votes={votes} must be 1 or more, or 0 for one")
    if select and select not in SELECT:
        raise UserError(f"select={select} is not a way to combine candidates: choose one of {', '.join(SELECT)}")
    if variant == "direct" and starts > 1:
        raise UserError(f"starts={starts} is for recursive networks: leave it out with recipe.variant=direct")
    return dataclasses.replace(
        options, starts=starts or options.starts, votes=votes or options.votes, select=select or options.select
    )


def one_segment(
    model: torch.nn.Module, puzzle: torch.Tensor, is_new: torch.Tensor, high: torch.Tensor, low: torch.Tensor
) -> Segment:
    """One segment of K latent states of each of B puzzles; the result has B × K rows. high, low : (B, K, tokens, width)."""
    num_starts = high.shape[1]
    repeated, begins = (tensor.repeat_interleave(num_starts, dim=0) for tensor in (puzzle, is_new))
    # For puzzles that continue from `high` and `low` the index is not used, but must be that of a stored start
    start = torch.where(begins, torch.arange(num_starts, device=puzzle.device).repeat(len(puzzle)), 0)
    return model(repeated, start, begins, high.flatten(0, 1), low.flatten(0, 1))


def first_states(
    model: torch.nn.Module, shape: Shape, num_puzzles: int, num_starts: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The arguments is_new, high and low of `one_segment` for the first segment.

    If the model stores fewer than `num_starts` starts, is_new is False, and high and low contain the starts.
    """
    high, low = torch.zeros(2, num_puzzles, num_starts, shape.num_tokens, shape.width, device=device)
    is_new = torch.full((num_puzzles,), num_starts <= shape.num_starts, device=device)
    if num_starts > shape.num_starts:
        module: Any = getattr(model, "module", model)
        drawn = drawn_starts(num_starts - shape.num_starts, shape.width).to(device)
        high += torch.cat([module.high_start, drawn[0]])[:, None]
        low += torch.cat([module.low_start, drawn[1]])[:, None]
    return is_new, high, low


@torch.no_grad()
def predict(
    model: torch.nn.Module, puzzle: torch.Tensor, board: Board, shape: Shape, options: PredictOptions, loss: str
) -> Predicted:
    """Predict the digits of puzzles (B, cells), int64, 0 for blanks. loss : stablemax or softmax, as in training."""
    num_puzzles, num_candidates = len(puzzle), options.votes * options.starts
    symmetries = images_of(puzzle, board, options.votes)
    images = torch.stack([symmetry.apply(puzzle) for symmetry in symmetries], dim=1).flatten(0, 1)
    is_new, high, low = first_states(model, shape, len(images), options.starts, puzzle.device)
    unfinished = torch.arange(num_puzzles, device=puzzle.device)
    segments = torch.zeros_like(unfinished)
    candidates = torch.zeros(num_puzzles, num_candidates, board.cells, board.side, dtype=torch.float64, device=puzzle.device)
    logits = torch.zeros(num_puzzles, num_candidates, device=puzzle.device)
    for number in range(1, options.segments + 1):
        segment = one_segment(model, images, is_new, high, low)
        high, low = (states.unflatten(0, (len(images), options.starts)) for states in (segment.high, segment.low))
        is_new = torch.zeros_like(is_new)
        halting = segment.halting[:, 0].view(len(unfinished), num_candidates)
        has_halted = (halting.sigmoid() >= options.halt_probability).any(dim=1)
        is_done = (has_halted & (options.select == "first")) | (number == options.segments)
        if not is_done.any():
            continue
        image_probabilities = log_probabilities(segment.digits, loss).exp()
        image_probabilities = image_probabilities.unflatten(0, (len(unfinished), options.votes, options.starts))
        done = unfinished[is_done]
        rows = done.cpu().numpy()
        probabilities = [
            Symmetries(symmetry.cells[rows], symmetry.digits[rows]).undo_classes(image_probabilities[is_done, vote, start])
            for vote, symmetry in enumerate(symmetries)
            for start in range(options.starts)
        ]
        candidates[done], logits[done] = torch.stack(probabilities, dim=1), halting[is_done].to(logits.dtype)
        segments[done] = number
        continues = ~is_done.repeat_interleave(options.votes)
        images, is_new, high, low = (tensor[continues] for tensor in (images, is_new, high, low))
        unfinished = unfinished[~is_done]
        if not len(unfinished):
            break
    combination = combined(candidates, logits, options.select)
    return Predicted(combination, segments, segments * num_candidates, candidates, logits)


def combined(candidates: torch.Tensor, halting: torch.Tensor, select: str) -> torch.Tensor:
    """The combined probabilities (B, cells, side) of N candidates.

    candidates : their probabilities, (B, N, cells, side)
    halting : their logits of halting, (B, N)
    select : one of SELECT, see the docstring of the module
    """
    rows = torch.arange(len(candidates), device=candidates.device)
    if select in ("surest", "first"):
        return candidates[rows, halting.argmax(dim=1)]
    if select == "mean":
        return candidates.mean(dim=1)
    highest, digits = candidates.max(dim=-1)
    is_same = (digits[:, :, None] == digits[:, None]).all(dim=-1)
    # The number of candidates with the same board decides. Half the mean of the highest probabilities, which is below 1,
    # decides between equal numbers
    chosen = (is_same.sum(dim=-1) + 0.5 * highest.mean(dim=-1)).argmax(dim=1)
    voters = is_same[rows, chosen].to(candidates.dtype)
    return (candidates * voters[:, :, None, None]).sum(dim=1) / voters.sum(dim=1)[:, None, None]


def images_of(puzzle: torch.Tensor, board: Board, num_images: int) -> list[Symmetries]:
    """The identity and num_images − 1 symmetries for each puzzle, which are a function of its cells alone."""
    keys = np.zeros(len(puzzle), np.uint64)
    if num_images > 1:
        for cell in puzzle.cpu().numpy().T:
            keys = mixed(keys, cell)
    drawn = [symmetries_of(board, SEED_OF_VOTES, number, keys) for number in range(1, num_images)]
    return [identity(board, len(puzzle)), *drawn]


def drawn_starts(num_starts: int, width: int) -> torch.Tensor:
    """Starts that the model does not store: z_H and z_L, (2, num_starts, width). Start k does not depend on `num_starts`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED_OF_STARTS)
        return torch.stack([truncated_normal(2, width, std=1.0).data for _ in range(num_starts)], dim=1)
