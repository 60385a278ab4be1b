"""The search and the generator of Sudoku puzzles."""

import numpy as np
import pytest

from ensemble.recipes.sudoku import search
from ensemble.recipes.sudoku.boards import BOARDS, Board, board_of
from ensemble.recipes.sudoku.puzzles import generate, solve

# The first of Gordon Royle's list of puzzles with 17 clues, and its solution
PUZZLE = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"
SOLUTION = "693784512487512936125963874932651487568247391741398625319475268856129743274836159"
# It needs guesses (AI Escargot, A. Inkala)
HARD = "100007090030020008009600500005300900010080002600004000300000010040000007007000300"


def digits(text: str) -> np.ndarray:
    return np.array([[int(digit) for digit in text]], np.uint8)


def num_solutions(board: Board, puzzle: list[int]) -> int:
    """The number of solutions, up to 2, by plain backtracking that shares no code with the search."""
    blank = [cell for cell, digit in enumerate(puzzle) if digit == 0]
    if not blank:
        return 1
    side, options = board.side, {}
    for cell in blank:
        row, column = divmod(cell, side)
        top, left = row - row % board.box_rows, column - column % board.box_columns
        taken = {puzzle[row * side + k] for k in range(side)} | {puzzle[k * side + column] for k in range(side)}
        taken |= {puzzle[(top + k // board.box_columns) * side + left + k % board.box_columns] for k in range(side)}
        options[cell] = set(range(1, side + 1)) - taken
    cell = min(blank, key=lambda one: len(options[one]))
    total = 0
    for digit in options[cell]:
        total += num_solutions(board, [*puzzle[:cell], digit, *puzzle[cell + 1 :]])
        if total > 1:
            return 2
    return total


@pytest.mark.parametrize(
    ("side", "clues", "count"), [(4, 0, 60), (4, 6, 60), (6, 18, 40), (6, 0, 20), (9, 32, 6), (9, 0, 3)]
)
def test_a_generated_puzzle_has_one_solution_and_it_is_the_stored_one(side: int, clues: int, count: int) -> None:
    """A network would be scored by one of several solutions."""
    board = board_of(side)
    puzzles, solutions = generate(board, seed=3, first=0, count=count, clues=clues)
    given = puzzles > 0
    assert (given.sum(axis=1) >= clues).all()
    assert clues == 0 or (given.sum(axis=1) == clues).any()
    assert (puzzles[given] == solutions[given]).all()
    in_units = np.sort(solutions[:, board.cells_of_units()], axis=2)
    assert (in_units == np.arange(1, side + 1)).all()
    assert [num_solutions(board, puzzle.tolist()) for puzzle in puzzles] == [1] * count


@pytest.mark.parametrize("side", [4, 6, 9])
def test_a_minimal_puzzle_needs_every_clue(side: int) -> None:
    """clues=0 would give easier puzzles than it promises."""
    board = board_of(side)
    puzzles, _ = generate(board, seed=1, first=0, count=10, clues=0)
    for puzzle in puzzles:
        given = np.flatnonzero(puzzle)
        fewer = np.repeat(puzzle[None], len(given), 0)
        fewer[np.arange(len(given)), given] = 0
        assert (solve(board, fewer).results == search.AMBIGUOUS).all()


def test_large_boards() -> None:
    """Masks of 16 digits would overflow, or a full grid would never be found."""
    board = board_of(16)
    puzzles, solutions = generate(board, seed=0, first=0, count=3, clues=140)
    assert (np.count_nonzero(puzzles, axis=1) == 140).all()
    solved = solve(board, puzzles)
    assert (solved.results == search.UNIQUE).all()
    assert (solved.solutions == solutions).all()
    assert (np.sort(solutions[:, board.cells_of_units()], axis=2) == np.arange(1, 17)).all()


def test_an_attempt_depends_on_the_seed_and_its_number_alone() -> None:
    """Puzzles would change with the number of threads, or of puzzles."""
    board = board_of(6)
    puzzles, solutions = generate(board, seed=5, first=0, count=300, clues=14, threads=3)
    again = generate(board, seed=5, first=130, count=20, clues=14, threads=1)
    assert (again[0] == puzzles[130:150]).all()
    assert (again[1] == solutions[130:150]).all()
    other = generate(board, seed=6, first=130, count=20, clues=14)
    assert (other[1] != again[1]).any(axis=1).all()
    assert len(np.unique(puzzles, axis=0)) == 300


def test_known_puzzles() -> None:
    """The search would find another solution than the published one, or miss that guesses are needed."""
    board = board_of(9)
    solved = solve(board, np.concatenate([digits(PUZZLE), digits(HARD)]))
    assert solved.results.tolist() == [search.UNIQUE] * 2
    assert (solved.solutions[0] == digits(SOLUTION)[0]).all()
    assert solved.backtracks[1] > 0
    assert solve(board, digits(SOLUTION)).backtracks.tolist() == [0]
    assert solve(board, digits(SOLUTION)).results.tolist() == [search.UNIQUE]


def test_puzzles_without_one_solution() -> None:
    """A puzzle with two solutions, or none, would be used for training."""
    board = board_of(9)
    without_a_clue, twice, blocked = digits(PUZZLE), digits(PUZZLE), digits(PUZZLE)
    without_a_clue[0, 7] = 0
    twice[0, :2] = 5  # a digit twice in a row
    blocked[0, 0] = 7  # breaks no rule, but is not the solution's
    solved = solve(board, np.concatenate([without_a_clue, twice, blocked, np.zeros((1, 81), np.uint8)]))
    expected = [search.AMBIGUOUS, search.UNSOLVABLE, search.UNSOLVABLE, search.AMBIGUOUS]
    assert solved.results.tolist() == expected
    assert (solved.solutions[1] == 0).all()


def test_a_search_that_is_too_long_is_undecided() -> None:
    """prepare_data.py would never finish a file with one very hard puzzle, or count this puzzle as solved."""
    board = board_of(9)
    assert solve(board, digits(HARD), max_guesses=2).results.tolist() == [search.UNDECIDED]
    assert solve(board, digits(HARD), max_guesses=100_000).results.tolist() == [search.UNIQUE]


def test_without_a_folder_for_compiled_code() -> None:
    """A read-only installation without a home folder could not prepare data."""
    namespace: dict[str, object] = {}
    exec(compile("def add(x):\n    return x + 1", "/nowhere/add.py", "exec"), namespace)  # numba has no place to cache it
    with pytest.raises(RuntimeError, match="cannot cache"):
        search.numba.njit(cache=True)(namespace["add"])
    assert search.compiled(namespace["add"])(1) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("side", BOARDS)
def test_units(side: int) -> None:
    """A row, column or box would have other cells than the board's."""
    board = board_of(side)
    cells, units = board.cells_of_units(), board.units_of_cells()
    assert cells.shape == (3 * side, side)
    assert board.box_rows * board.box_columns == side
    assert all(unit in units[cell] for unit in range(3 * side) for cell in cells[unit])
    box = cells[2 * side]
    assert set(box // side) == set(range(board.box_rows))
    assert set(box % side) == set(range(board.box_columns))
