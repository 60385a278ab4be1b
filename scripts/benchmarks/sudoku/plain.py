"""A generator and solver in plain Python, to compare with: bit masks, minimum remaining values, removal in random order."""

import random

from ensemble.recipes.sudoku.boards import Board


class Solver:
    """Counts solutions of puzzles of one board."""

    def __init__(self, board: Board):
        self.units = board.units_of_cells().tolist()
        self.full, self.num_units = (1 << board.side) - 1, 3 * board.side

    def num_solutions(self, puzzle: list[int], limit: int, generator: random.Random | None = None) -> int:
        """Up to `limit`. puzzle : one bit for each digit, 0 for a blank; at the limit it is left as the last solution.

        generator : draws the order of digits; None for ascending.
        """
        used = [0] * self.num_units
        for cell, bit in enumerate(puzzle):
            for unit in self.units[cell]:
                used[unit] |= bit
        blank = {cell for cell, bit in enumerate(puzzle) if not bit}

        def search(found: int) -> int:
            if not blank:
                return found + 1
            fewest, best, options = 99, -1, 0
            for cell in blank:
                row, column, box = self.units[cell]
                candidates = self.full & ~(used[row] | used[column] | used[box])
                count = candidates.bit_count()
                if count < fewest:
                    fewest, best, options = count, cell, candidates
                    if count < 2:
                        break
            bits = [1 << digit for digit in range(options.bit_length()) if options >> digit & 1]
            if generator:
                generator.shuffle(bits)
            blank.discard(best)
            for bit in bits:
                puzzle[best] = bit
                for unit in self.units[best]:
                    used[unit] |= bit
                found = search(found)
                if found >= limit:
                    return found
                for unit in self.units[best]:
                    used[unit] &= ~bit
            puzzle[best] = 0
            blank.add(best)
            return found

        return search(0)

    def has_another(self, puzzle: list[int], cell: int) -> bool:
        """Whether there is a solution with another digit in a cell, which is given; the puzzle without it had one."""
        used = [0] * self.num_units
        for other, bit in enumerate(puzzle):
            if other != cell:
                for unit in self.units[other]:
                    used[unit] |= bit
        row, column, box = self.units[cell]
        options = self.full & ~(used[row] | used[column] | used[box] | puzzle[cell])
        bits = [1 << digit for digit in range(options.bit_length()) if options >> digit & 1]
        return any(self.num_solutions([*puzzle[:cell], bit, *puzzle[cell + 1 :]], 1) for bit in bits)


def generate(board: Board, count: int, clues: int, seed: int) -> list[list[int]]:
    """Puzzles with `clues` clues, or minimal ones for 0."""
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
