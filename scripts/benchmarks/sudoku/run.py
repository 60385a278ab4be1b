"""The first puzzles of a process, for `sudoku_data`."""

from benchmarks.sudoku.settings import SudokuCompile
from ensemble.recipes.sudoku import puzzles
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.orbits import canonical_forms


def run(settings: SudokuCompile) -> None:
    board = board_of(6)
    made = puzzles.generate(board, seed=0, first=0, count=settings.num_puzzles, clues=18, threads=1)
    puzzles.solve(board, made[0], 1)
    canonical_forms(board, *made, 1)
