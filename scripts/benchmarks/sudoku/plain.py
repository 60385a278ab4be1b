"""A solver and a generator in plain Python, for comparison.

The solver has bit masks of digits, and always fills the cell with the fewest candidates. The generator removes clues in
random order.
"""

import random

from ensemble.recipes.sudoku.boards import Board


class Solver:
    """Counts the solutions of puzzles of one board. A puzzle lists the bit of the digit in each cell, 0 for a blank cell."""

    def __init__(self, board: Board):
        self.units = board.units_of_cells().tolist()
        self.full, self.num_units = (1 << board.side) - 1, 3 * board.side

    def num_solutions(self, puzzle: list[int], limit: int, generator: random.Random | None = None) -> int:
        """The number of solutions, at most `limit`; when the limit is reached, `puzzle` contains the last solution.

        generator : draws the order in which digits are tried; None for the ascending order
        """
        used = self._used(puzzle)
        blank = {cell for cell, bit in enumerate(puzzle) if not bit}

        def search(num_solutions: int) -> int:
            if not blank:
                return num_solutions + 1
            fewest, best, options = 99, -1, 0
            for cell in blank:
                row, column, box = self.units[cell]
                candidates = self.full & ~(used[row] | used[column] | used[box])
                count = candidates.bit_count()
                if count < fewest:
                    fewest, best, options = count, cell, candidates
                    if count < 2:
                        break
            bits = self._bits(options)
            if generator:
                generator.shuffle(bits)
            blank.discard(best)
            for bit in bits:
                puzzle[best] = bit
                for unit in self.units[best]:
                    used[unit] |= bit
                num_solutions = search(num_solutions)
                if num_solutions >= limit:
                    return num_solutions
                for unit in self.units[best]:
                    used[unit] &= ~bit
            puzzle[best] = 0
            blank.add(best)
            return num_solutions

        return search(0)

    def has_another(self, puzzle: list[int], cell: int) -> bool:
        """Whether a puzzle with one solution has another if the digit of a cell is removed."""
        used = self._used([*puzzle[:cell], 0, *puzzle[cell + 1 :]])
        row, column, box = self.units[cell]
        bits = self._bits(self.full & ~(used[row] | used[column] | used[box] | puzzle[cell]))
        return any(self.num_solutions([*puzzle[:cell], bit, *puzzle[cell + 1 :]], 1) for bit in bits)

    def _used(self, puzzle: list[int]) -> list[int]:
        """The bits of the digits in each unit: row, column or box."""
        used = [0] * self.num_units
        for cell, bit in enumerate(puzzle):
            for unit in self.units[cell]:
                used[unit] |= bit
        return used

    def _bits(self, options: int) -> list[int]:
        """The bits that are set in a mask, each as a mask of its own."""
        return [1 << digit for digit in range(options.bit_length()) if options >> digit & 1]


def generate(board: Board, count: int, clues: int, seed: int) -> list[list[int]]:
    """Puzzles with `clues` clues, or for 0 minimal ones, from which no clue can be removed."""
    solver, generator = Solver(board), random.Random(seed)
    puzzles: list[list[int]] = []
    while len(puzzles) < count:
        puzzle = [0] * board.cells
        solver.num_solutions(puzzle, 1, generator)
        left = board.cells
        for cell in generator.sample(range(board.cells), board.cells):
            if left == clues:
                break
            if not solver.has_another(puzzle, cell):
                puzzle[cell] = 0
                left -= 1
        if left == clues or not clues:
            puzzles.append(puzzle)
    return puzzles


def first_puzzles() -> None:
    """Generate a few puzzles with this project, solve them, and compute their canonical forms."""
    from ensemble.recipes.sudoku import puzzles
    from ensemble.recipes.sudoku.boards import board_of
    from ensemble.recipes.sudoku.orbits import canonical_forms

    board = board_of(6)
    boards, solutions = puzzles.generate(board, seed=0, first=0, count=10, clues=18, threads=1)
    puzzles.solve(board, boards, 1)
    canonical_forms(board, boards, solutions, 1)
