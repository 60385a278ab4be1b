"""The processes that `sudoku_data` and `sudoku_demo` start: one measures the compilation, the other trains the prototype."""

from benchmarks.sudoku.settings import SudokuCompile, SudokuPrototype


def run(settings: SudokuCompile | SudokuPrototype) -> None:
    """Train the prototype, or generate the first puzzles of a process, solve them, and compute their canonical forms."""
    if isinstance(settings, SudokuPrototype):
        from benchmarks.sudoku import prototype

        prototype.train(settings)
        return

    from ensemble.recipes.sudoku import puzzles
    from ensemble.recipes.sudoku.boards import board_of
    from ensemble.recipes.sudoku.orbits import canonical_forms

    board = board_of(6)
    boards, solutions = puzzles.generate(board, seed=0, first=0, count=settings.num_puzzles, clues=18, threads=1)
    puzzles.solve(board, boards, 1)
    canonical_forms(board, boards, solutions, 1)
