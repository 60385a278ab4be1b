"""The process that `sudoku_data` starts, to measure the compilation."""

from benchmarks.sudoku.settings import SudokuCompile
from ensemble.recipes.sudoku import puzzles
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.orbits import canonical_forms


def run(settings: SudokuCompile) -> None:
    """Generate the first puzzles of a process, solve them, and compute their canonical forms."""
    board = board_of(6)
    boards, solutions = puzzles.generate(board, seed=0, first=0, count=settings.num_puzzles, clues=18, threads=1)
    puzzles.solve(board, boards, 1)
    canonical_forms(board, boards, solutions, 1)
