"""Random symmetries of boards: what they keep, and that they are a function of seed, epoch and row alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ensemble.recipes.sudoku import search
from ensemble.recipes.sudoku.boards import BOARDS, board_of
from ensemble.recipes.sudoku.puzzles import generate, solve
from ensemble.recipes.sudoku.symmetry import identity, symmetries_of

SIDES = st.sampled_from([4, 6, 9])
SEEDS = st.integers(0, 2**32 - 1)


@given(side=SIDES, seed=SEEDS, epoch=st.integers(0, 10**6), first=st.integers(0, 2**40))
def test_an_image_is_a_puzzle_with_one_solution(side: int, seed: int, epoch: int, first: int) -> None:
    """Training would see boards that break the rules, or puzzles with several solutions."""
    board = board_of(side)
    puzzles, solutions = generate(board, seed=seed, first=0, count=4, clues=0)
    symmetries = symmetries_of(board, seed, epoch, np.arange(first, first + 4))
    images = symmetries.apply(puzzles)
    assert images.dtype == np.uint8
    assert (np.count_nonzero(images, axis=1) == np.count_nonzero(puzzles, axis=1)).all()
    solved = solve(board, images)
    assert (solved.results == search.UNIQUE).all()
    assert (solved.solutions == symmetries.apply(solutions)).all()


@given(side=SIDES, seed=SEEDS)
def test_what_is_undone_is_what_was_before(side: int, seed: int) -> None:
    """Votes over symmetries would count digits for other cells, or other digits."""
    board = board_of(side)
    generator = np.random.default_rng(seed)
    boards = generator.integers(0, side + 1, (3, board.cells)).astype(np.uint8)
    symmetries = symmetries_of(board, seed, 1, np.arange(3))
    images = symmetries.apply(boards)
    undone = symmetries.undo_classes(np.eye(side + 1)[images][:, :, 1:])  # no class for a blank
    assert (np.where(undone.any(axis=2), 1 + undone.argmax(axis=2), 0) == boards).all()
    # A cell's largest score is at a digit of the image, and after `undo_classes` at the same digit of the original board
    scores = generator.random((3, board.cells, side))
    moved = symmetries.undo_classes(scores)
    solutions = 1 + scores.argmax(axis=2)
    assert (symmetries.apply(1 + moved.argmax(axis=2)) == solutions).all()
    assert (np.sort(moved, axis=None) == np.sort(scores, axis=None)).all()
    assert (np.take_along_axis(moved.max(axis=2), symmetries.cells, axis=1) == scores.max(axis=2)).all()


@pytest.mark.parametrize("side", BOARDS)
def test_tensors_are_taken_as_arrays_are(side: int) -> None:
    """Training, which has tensors, would see other images than those that are tested here."""
    board = board_of(side)
    generator = np.random.default_rng(0)
    boards = generator.integers(0, side + 1, (5, board.cells)).astype(np.uint8)
    scores = generator.random((5, board.cells, side)).astype(np.float32)
    symmetries = symmetries_of(board, 7, 3, np.arange(5))
    for method, values in (("apply", boards), ("undo_classes", scores)):
        expected = getattr(symmetries, method)(values)
        result = getattr(symmetries, method)(torch.from_numpy(values.copy()))
        assert result.dtype == torch.from_numpy(expected).dtype
        assert (result.numpy() == expected).all(), method


def test_a_row_has_its_own_symmetry_in_each_epoch() -> None:
    """On another number of ranks, or after a resume, a row would be seen as another image."""
    board = board_of(9)
    row_ids = np.random.default_rng(0).permutation(1000)[:64]
    whole = symmetries_of(board, 11, 2, row_ids)
    for part in (slice(0, 20), slice(20, 64)):
        some = symmetries_of(board, 11, 2, row_ids[part])
        assert (some.cells == whole.cells[part]).all()
        assert (some.digits == whole.digits[part]).all()
    for other in (symmetries_of(board, 11, 3, row_ids), symmetries_of(board, 12, 2, row_ids)):
        assert (other.cells != whole.cells).any(axis=1).all()
        assert (other.digits != whole.digits).any(axis=1).mean() > 0.9


@pytest.mark.parametrize("side", [4, 6, 9])
def test_all_symmetries_are_equally_likely(side: int) -> None:
    """Augmentation would never draw a part of the group. The bounds are five standard deviations of a uniform draw."""
    board, count = board_of(side), 20_000
    symmetries = symmetries_of(board, 0, 0, np.arange(count))
    for values, size in ((symmetries.cells[:, 0], board.cells), (symmetries.cells[:, -1], board.cells)):
        seen = np.bincount(values, minlength=size)
        assert (np.abs(seen - count / size) < 5 * np.sqrt(count / size)).all()
    assert (np.abs(np.bincount(symmetries.digits[:, 1])[1:] - count / side) < 5 * np.sqrt(count / side)).all()
    rows = symmetries.cells[:, :side] // side
    is_transposed = (rows != rows[:, :1]).any(axis=1)  # the image's first row comes from several rows
    share = 0.5 if board.is_square else 0.0
    assert abs(is_transposed.mean() - share) <= 5 * np.sqrt(share * (1 - share) / count)
    if side == 4:  # the whole group: 2 · (2! · 2!²)² images of the cells, 4! of the digits
        assert len(np.unique(symmetries.cells, axis=0)) == 128
        assert len(np.unique(symmetries.digits, axis=0)) == 24


def test_the_seed_determines_the_images() -> None:
    """The same seed would give other images, or another seed the same ones."""
    board = board_of(6)
    puzzles, solutions = generate(board, seed=0, first=0, count=8, clues=18)
    for convert in (np.asarray, torch.from_numpy):
        symmetries = [symmetries_of(board, seed, 0, np.arange(8)) for seed in (0, 0, 1)]
        one, same, other = ([drawn.apply(convert(boards)) for boards in (puzzles, solutions)] for drawn in symmetries)
        assert all((a == b).all() for a, b in zip(one, same, strict=True))
        assert (np.asarray(one[0]) != np.asarray(other[0])).any(axis=1).all()
        assert (solve(board, np.asarray(one[0])).solutions == np.asarray(one[1])).all()
    assert (identity(board, 8).apply(puzzles) == puzzles).all()
