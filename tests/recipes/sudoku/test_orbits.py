"""The canonical form of a puzzle under the symmetries."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble.recipes.sudoku.boards import Board, board_of
from ensemble.recipes.sudoku.orbits import GIVEN, canonical_forms
from ensemble.recipes.sudoku.puzzles import generate
from ensemble.recipes.sudoku.symmetry import symmetries_of


def lines(side: int, size: int) -> list[list[int]]:
    """All orders of `side` rows (or columns) that keep blocks of `size` together."""
    blocks = [range(begin, begin + size) for begin in range(0, side, size)]
    within = list(itertools.permutations(range(size)))
    return [
        [block[k] for block, order in zip(chosen, orders, strict=True) for k in order]
        for chosen in itertools.permutations(blocks)
        for orders in itertools.product(within, repeat=len(blocks))
    ]


def smallest_image(board: Board, puzzle: np.ndarray, solution: np.ndarray) -> np.ndarray:
    """The canonical form by its definition: the smallest image over the whole group."""
    side = board.side
    rows, columns = (np.array(lines(side, size)) for size in (board.box_rows, board.box_columns))
    cells = (rows[:, None, :, None] * side + columns[None, :, None, :]).reshape(-1, board.cells)
    if board.is_square:
        flipped = np.arange(board.cells).reshape(side, side).T.ravel()
        cells = np.concatenate([cells, flipped[cells]])
    grids, given_cells = solution[cells], puzzle[cells] > 0
    label = np.zeros((len(cells), side + 1), np.int64)
    np.put_along_axis(label, grids[:, :side].astype(np.int64), np.arange(1, side + 1)[None], 1)
    grids = np.take_along_axis(label, grids.astype(np.int64), 1)
    best = np.lexsort(np.concatenate([grids, given_cells], axis=1).T[::-1])[0]
    return grids[best] + GIVEN * given_cells[best]


@pytest.mark.parametrize(("side", "clues", "count"), [(4, 0, 40), (4, 6, 40), (6, 0, 12), (6, 18, 12)])
def test_is_the_smallest_image(side: int, clues: int, count: int) -> None:
    """Two orbits would count as one, or one as two."""
    board = board_of(side)
    puzzles, solutions = generate(board, seed=2, first=0, count=count, clues=clues)
    forms = canonical_forms(board, puzzles, solutions)
    for form, puzzle, solution in zip(forms, puzzles, solutions, strict=True):
        assert (form == smallest_image(board, puzzle, solution)).all()


@given(side=st.sampled_from([4, 6, 9]), clues=st.sampled_from([0, 1]), seed=st.integers(0, 2**32 - 1))
def test_symmetric_puzzles_have_the_same_form(side: int, clues: int, seed: int) -> None:
    """A test puzzle could be the image of a training puzzle."""
    board = board_of(side)
    puzzles, solutions = generate(board, seed=seed, first=0, count=3, clues=clues * side**2 // 2)
    symmetries = symmetries_of(board, seed, 0, np.arange(3))
    forms = canonical_forms(board, puzzles, solutions)
    assert (canonical_forms(board, symmetries.apply(puzzles), symmetries.apply(solutions)) == forms).all()
    # A form is an image itself: as many clues, a solution, and its own form
    digits, is_given = forms % GIVEN, forms >= GIVEN
    assert (is_given.sum(axis=1) == (puzzles > 0).sum(axis=1)).all()
    assert (canonical_forms(board, digits * is_given, digits) == forms).all()


def test_large_boards_have_the_same_form_too() -> None:
    """The same for 16 × 16, whose group is far larger."""
    board = board_of(16)
    puzzles, solutions = generate(board, seed=0, first=0, count=4, clues=150)
    symmetries = symmetries_of(board, 1, 0, np.arange(4))
    forms = canonical_forms(board, puzzles, solutions)
    assert (canonical_forms(board, symmetries.apply(puzzles), symmetries.apply(solutions)) == forms).all()
    assert len(np.unique(forms, axis=0)) == 4


def test_minimal_puzzles_of_side_4_have_36_orbits() -> None:
    """Symmetric puzzles would count as different ones, or others as symmetric. 13, 22 and 1 have 4, 5 and 6 clues."""
    board = board_of(4)
    puzzles, solutions = generate(board, seed=0, first=0, count=6000, clues=0)
    forms = np.unique(canonical_forms(board, puzzles, solutions), axis=0)
    assert len(forms) == 36
    assert np.bincount((forms >= GIVEN).sum(axis=1)).tolist() == [0, 0, 0, 0, 13, 22, 1]


def test_one_moved_clue_is_another_orbit() -> None:
    """Only the solution would be compared."""
    board = board_of(9)
    puzzles, solutions = generate(board, seed=0, first=0, count=1, clues=30)
    fewer = np.repeat(puzzles, 2, 0)
    clues = np.flatnonzero(puzzles[0])
    fewer[0, clues[0]] = 0
    fewer[1, clues[1]] = 0
    forms = canonical_forms(board, np.concatenate([puzzles, fewer]), np.repeat(solutions, 3, 0))
    assert len(np.unique(forms, axis=0)) == 3
