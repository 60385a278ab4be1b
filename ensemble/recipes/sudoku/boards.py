"""Sizes of boards: a board of side n has n rows, n columns and n boxes of box_rows × box_columns = n cells."""

import dataclasses

import numpy as np

from ensemble.errors import UserError


@dataclasses.dataclass(frozen=True)
class Board:
    """One size of board. Cells are numbered row by row, from 0 to side² − 1."""

    side: int
    box_rows: int
    box_columns: int
    least_clues: int
    """The fewest clues of any known puzzle with one solution."""

    @property
    def cells(self) -> int:
        return self.side**2

    @property
    def is_square(self) -> bool:
        """Whether boxes are as high as they are wide. Only then does a transposed board have the same boxes."""
        return self.box_rows == self.box_columns

    def units_of_cells(self) -> np.ndarray:
        """The row, column and box of each cell, (cells, 3) int64.

        Rows have the numbers 0 … n − 1, columns n … 2n − 1, boxes 2n … 3n − 1.
        """
        cell = np.arange(self.cells)
        row, column = cell // self.side, cell % self.side
        box = row // self.box_rows * (self.side // self.box_columns) + column // self.box_columns
        return np.stack([row, self.side + column, 2 * self.side + box], axis=1)

    def cells_of_units(self) -> np.ndarray:
        """The cells of each unit in ascending order, (3 · side, side) int64."""
        units = self.units_of_cells()
        return np.stack([np.flatnonzero((units == unit).any(axis=1)) for unit in range(3 * self.side)])


BOARDS = {
    4: Board(4, 2, 2, 4),
    6: Board(6, 2, 3, 8),
    9: Board(9, 3, 3, 17),
    16: Board(16, 4, 4, 55),
}
"""The boards by side. For 4, 6 and 9 it is proven that no puzzle has fewer clues (9: McGuire et al., 2012), for 16 not."""


def board_of(side: int) -> Board:
    """The board with this side; `UserError` if there is none."""
    if side not in BOARDS:
        raise UserError(f"side={side} has no board: choose one of {', '.join(map(str, BOARDS))}")
    return BOARDS[side]
