"""Arrays of puzzles: solving with a proof that the solution is unique, and generating, on several threads.

results = solve(board, puzzles)                     # puzzles (n, cells) uint8, 0 for a blank
puzzles, solutions = generate(board, seed=0, first=0, count=100, clues=18)
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ensemble import cores
from ensemble.data.splitmix import mixed
from ensemble.recipes.sudoku import search
from ensemble.recipes.sudoku.boards import Board

MAX_GUESSES = 10_000_000
"""The largest number of guesses (digits to try) of a search, about ten seconds; after that the puzzle is undecided."""
MAX_GUESSES_TO_REMOVE = 20_000
"""The same for the search that decides whether a digit can be removed; if it is undecided, the digit is not removed."""
ROWS_PER_TASK = 64


class Solved(NamedTuple):
    """The results of n searches."""

    solutions: np.ndarray
    """The first solution of each puzzle, (n, cells) uint8; 0 if there is none."""
    results: np.ndarray
    """`search.UNSOLVABLE`, `UNIQUE`, `AMBIGUOUS` or `UNDECIDED`, (n,) int64."""
    backtracks: np.ndarray
    """Contradictions in the search and in the proof of uniqueness, (n,) int64; 0 if naked and hidden singles suffice."""


def solve(board: Board, puzzles: np.ndarray, threads: int = 0, max_guesses: int = MAX_GUESSES) -> Solved:
    """Search each puzzle, (n, cells) with 0 for a blank, for up to two solutions. threads : 0 for all granted cores."""
    puzzles = np.ascontiguousarray(puzzles, np.uint8)
    solutions = np.empty_like(puzzles)
    results, backtracks = np.empty(len(puzzles), np.int64), np.empty(len(puzzles), np.int64)
    tables = _tables(board)

    def part(rows: slice) -> None:
        search.solve(puzzles[rows], max_guesses, *tables, solutions[rows], results[rows], backtracks[rows])

    in_parts(len(puzzles), part, threads)
    return Solved(solutions, results, backtracks)


def generate(
    board: Board, *, seed: int, first: int, count: int, clues: int, threads: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Generate a puzzle by each of the attempts `first` to `first + count − 1` of a seed.

    Returns puzzles and solutions, each (count, cells) uint8.

    An attempt is a function of the seed and its number alone. A puzzle has more than `clues` clues if no other digit can be
    removed. With clues=0 all puzzles are minimal, except that on 16 × 16 a digit is not removed if the proof takes more than
    `MAX_GUESSES_TO_REMOVE` guesses. Grids come from a randomised search, and digits are removed in random order, so neither
    grids nor puzzles are uniformly distributed.
    """
    seeds = mixed(np.uint64(seed), np.arange(first, first + count, dtype=np.uint64))
    puzzles, solutions = (np.empty((count, board.cells), np.uint8) for _ in range(2))
    tables = _tables(board)

    def part(rows: slice) -> None:
        search.generate(seeds[rows], clues, MAX_GUESSES_TO_REMOVE, *tables, puzzles[rows], solutions[rows])

    in_parts(count, part, threads)
    return puzzles, solutions


def _tables(board: Board) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return board.units_of_cells(), board.cells_of_units(), np.bitwise_count(np.arange(1 << board.side)).astype(np.int8)


def in_parts(num_rows: int, work: Callable[[slice], None], threads: int) -> None:
    """Call `work` on slices of the rows, on several threads."""
    slices = [slice(row, row + ROWS_PER_TASK) for row in range(0, num_rows, ROWS_PER_TASK)]
    with ThreadPoolExecutor(threads or cores.granted()) as pool:
        list(pool.map(work, slices))
