"""Symmetries of Sudoku, drawn and applied for a whole batch.

A symmetry permutes the digits, the bands (rows of boxes) and the rows within each band, the stacks (columns of boxes) and
the columns within each stack. If boxes are square it may also transpose the board; the boxes of a 6 × 6 board are 2 × 3 and
would become 3 × 2. The image of a valid puzzle is a valid puzzle with the same number of solutions.

    symmetries = symmetries_of(board, seed, epoch, row_ids)   # a function of (seed, epoch, row_id) alone
    puzzles, solutions = symmetries.apply(puzzles), symmetries.apply(solutions)
    scores = symmetries.undo_classes(scores_of_the_images)       # on the original board

`apply` and `undo_classes` accept numpy arrays and torch tensors on any device. torch is imported only for tensors.
"""

import dataclasses
from typing import Any

import numpy as np

from ensemble.data.splitmix import mixed
from ensemble.recipes.sudoku.boards import Board


@dataclasses.dataclass(frozen=True)
class Symmetries:
    """One symmetry for each row of a batch of B boards."""

    cells: np.ndarray
    """(B, cells) int64: for each cell of the image, the cell of the original board that it is copied from."""
    digits: np.ndarray
    """(B, side + 1) int64: the image of each digit; that of 0, a blank, is 0."""

    def apply(self, boards: Any) -> Any:
        """The images of `boards`, (B, cells) of digits and blanks, of the same type."""
        row, cells, digits = _as_type_of(boards, np.arange(len(boards))[:, None], self.cells, self.digits)
        moved = boards[row, cells]
        if isinstance(boards, np.ndarray):
            return digits[row, moved].astype(boards.dtype)
        return digits[row, moved.long()].to(boards.dtype)

    def undo_classes(self, values: Any) -> Any:
        """Scores of the digits in each cell, (B, cells, side), of the original boards from those of their images."""
        back, image = np.argsort(self.cells, axis=1)[:, :, None], self.digits[:, None, 1:] - 1
        return values[_as_type_of(values, np.arange(len(values))[:, None, None], back, image)]


def symmetries_of(board: Board, seed: int, epoch: int, row_ids: np.ndarray) -> Symmetries:
    """A symmetry for each of `row_ids`, (B,) integers: a function of (seed, epoch, row_id) alone, uniform over all
    symmetries."""
    side, num_bands, num_stacks = board.side, board.side // board.box_rows, board.side // board.box_columns
    row_ids = np.asarray(row_ids)
    # Random keys of digits, bands, rows, stacks, columns and transposition. Sorting them gives uniform permutations
    counts = (side, num_bands, side, num_stacks, side, 1)
    keys = mixed(seed, epoch, row_ids[:, None], np.arange(sum(counts)))
    digit, band, row, stack, column, transpose = np.split(keys, np.cumsum(counts)[:-1], axis=1)
    rows = _lines(band, row.reshape(-1, num_bands, board.box_rows))
    columns = _lines(stack, column.reshape(-1, num_stacks, board.box_columns))
    cells = rows[:, :, None] * side + columns[:, None, :]
    if board.is_square:
        flip = (transpose >> np.uint64(63)).astype(bool)[:, :, None]
        cells = np.where(flip, cells.transpose(0, 2, 1), cells)
    digits = np.zeros((len(row_ids), side + 1), np.int64)
    digits[:, 1:] = 1 + np.argsort(digit, axis=1)
    return Symmetries(cells.reshape(len(row_ids), board.cells), digits)


def identity(board: Board, batch: int) -> Symmetries:
    """The symmetry that changes nothing, for each row of a batch."""
    return Symmetries(np.tile(np.arange(board.cells), (batch, 1)), np.tile(np.arange(board.side + 1), (batch, 1)))


def _lines(block: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Permutations of the rows (or columns) of B boards, (B, side), by sorting random keys.

    block : the keys of the bands (or stacks), (B, blocks)
    line : the keys of the rows of each band (or columns of each stack), (B, blocks, size)
    """
    blocks, lines = np.argsort(block, axis=1), np.argsort(line, axis=2)
    size = line.shape[2]
    return (blocks[:, :, None] * size + np.take_along_axis(lines, blocks[:, :, None], 1)).reshape(len(block), -1)


def _as_type_of(like: Any, *arrays: np.ndarray) -> tuple[Any, ...]:
    """The arrays, converted to the type of `like`: numpy arrays, or tensors on the same device."""
    if isinstance(like, np.ndarray):
        return arrays
    import torch

    return tuple(torch.from_numpy(array).to(like.device) for array in arrays)
