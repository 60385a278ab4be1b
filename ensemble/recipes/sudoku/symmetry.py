"""Symmetries of Sudoku, drawn and applied for a whole batch.

A symmetry permutes the digits, the bands and the rows within each band, the stacks and the columns within each stack; if
boxes are square it may also transpose the board. (The boxes of a 6 × 6 board are 2 × 3; transposed they would be 3 × 2.) The
image of a valid puzzle is a valid puzzle with the same number of solutions.

    symmetries = symmetries_of(board, seed, epoch, row_ids)   # a function of (seed, epoch, row_id) alone
    puzzles, solutions = symmetries.apply(puzzles), symmetries.apply(solutions)
    digits = symmetries.undo(predicted_digits)                   # on the original board

`apply`, `undo` and `undo_classes` accept numpy arrays and torch tensors on any device. This module does not import torch.
"""

import dataclasses
from typing import Any

import numpy as np

from ensemble.data.splitmix import GOLDEN, finalised
from ensemble.recipes.sudoku.boards import Board


def mixed(*keys: Any) -> np.ndarray:
    """64 random bits for each combination of integer keys, which are broadcast: SplitMix64's finaliser, key by key."""
    bits: Any = np.zeros(np.broadcast_shapes(*(np.shape(key) for key in keys)), np.uint64)
    for key in keys:
        bits = finalised(bits + np.asarray(key).astype(np.uint64) + GOLDEN)  # arrays wrap around without a warning
    return bits


@dataclasses.dataclass(frozen=True)
class Symmetries:
    """One symmetry for each row of a batch of B boards."""

    cells: np.ndarray
    """(B, cells) int64: for each cell of the image, the cell of the original board that it is copied from."""
    digits: np.ndarray
    """(B, side + 1) int64: the image of each digit; that of 0, a blank, is 0."""

    def apply(self, boards: Any) -> Any:
        """The images of `boards`, (B, cells) of digits and blanks, of the same type."""
        return _relabelled(self.digits, _take(boards, _index(self.cells, boards)))

    def undo(self, boards: Any) -> Any:
        """The boards whose images are `boards`."""
        return _relabelled(np.argsort(self.digits, axis=1), _take(boards, _index(self._back(), boards)))

    def undo_cells(self, values: Any) -> Any:
        """Values of each cell of the images, (B, cells), in the order of the original cells."""
        return _take(values, _index(self._back(), values))

    def undo_classes(self, values: Any) -> Any:
        """Scores of the digits 1 … side in each cell of the images, (B, cells, side), for the original cells and digits."""
        back, image = _index(self._back(), values)[:, :, None], _index(self.digits[:, 1:] - 1, values)[:, None, :]
        if isinstance(values, np.ndarray):
            return np.take_along_axis(np.take_along_axis(values, back, 1), image, 2)
        moved = values.gather(1, back.expand(values.shape))
        return moved.gather(2, image.expand(values.shape))

    def _back(self) -> np.ndarray:
        return np.argsort(self.cells, axis=1)


def symmetries_of(board: Board, seed: int, epoch: int, row_ids: np.ndarray) -> Symmetries:
    """The symmetry of each row, (B,) int64: a function of (seed, epoch, row_id) alone, uniform over the group."""
    side, num_bands, num_stacks = board.side, board.side // board.box_rows, board.side // board.box_columns
    row_ids = np.asarray(row_ids)
    # Random keys of digits, bands, rows, stacks, columns, transposition. Sorting keys gives a uniform permutation
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
    """Permuted rows or columns, (B, side), from keys of blocks, (B, blocks), and of lines within each, (B, blocks, size)."""
    blocks, lines = np.argsort(block, axis=1), np.argsort(line, axis=2)
    size = line.shape[2]
    return (blocks[:, :, None] * size + np.take_along_axis(lines, blocks[:, :, None], 1)).reshape(len(block), -1)


def _take(values: Any, index: Any) -> Any:
    """values[b, index[b, k]] for each b and k."""
    return np.take_along_axis(values, index, 1) if isinstance(values, np.ndarray) else values.gather(1, index)


def _relabelled(digits: np.ndarray, boards: Any) -> Any:
    """The image under `digits`, (B, side + 1), of each digit of `boards`, as the type of `boards`."""
    if isinstance(boards, np.ndarray):
        return np.take_along_axis(digits, boards.astype(np.int64), 1).astype(boards.dtype)
    return _index(digits, boards).gather(1, boards.long()).to(boards.dtype)


def _index(array: np.ndarray, like: Any) -> Any:
    """`array` as the type of `like`: a numpy array, or a tensor on the same device."""
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)
