"""The canonical form of a puzzle, which two puzzles share if and only if a symmetry maps one to the other.

The form is the smallest of the images of the puzzle and its solution under all symmetries (symmetry.py). Images are compared
by the digits of the solution, row by row, and if these are equal by the positions of the clues. An orbit is the set of all
images of a puzzle. Below, a band is a row of boxes, and a stack is a column of boxes.

There are 3,359,232 · 9! symmetries of 9 × 9 boards, but few can give the smallest image. Digits are renamed so that the
first row is 1 … n. The second row is then given by a permutation p of the columns: in column p(c) the first row has the
digit that the second row has in column c. Columns are placed from left to right. If p(c) has no place yet, it gets the
smallest free place that its stack allows, since this gives the smallest second row. So columns are tried in all orders only
at places that are still free when they are reached, such as those of the first stack. The first two rows and the order of
the columns determine the order of all other rows: the remaining rows of each band, and the bands, are sorted by their first
digit.
"""

import numpy as np

from ensemble.recipes.sudoku.boards import Board
from ensemble.recipes.sudoku.puzzles import in_parts
from ensemble.recipes.sudoku.search import compiled

GIVEN = 32
"""Added to the digits of a canonical form that are clues."""


def canonical_forms(board: Board, puzzles: np.ndarray, solutions: np.ndarray, threads: int = 0) -> np.ndarray:
    """The canonical forms of puzzles with one solution each: (n, cells) uint8, digits of the solution, clues plus `GIVEN`.

    puzzles, solutions : (n, cells) uint8. threads : 0 for all granted cores
    """
    given = np.ascontiguousarray(puzzles > 0, np.int64)
    forms = np.empty((len(puzzles), board.cells), np.uint8)
    solutions = np.ascontiguousarray(solutions, np.int64) - 1

    def part(rows: slice) -> None:
        _canonical(solutions[rows], given[rows], board.box_rows, board.box_columns, forms[rows])

    in_parts(len(puzzles), part, threads)
    return forms


@compiled
def _place_columns(image, columns, tried, num_choices, box, best, has_best, column_at, place_of, slot_of, filled):
    """Place all columns.

    image : p of the module's docstring, by column
    columns, box : the number of columns of the board, and of a box
    tried : for each choice, which of the possible columns is taken, from 0; 0 for choices not yet made
    best, has_best : the smallest image so far, digits from 0 by cell, and whether there is one
    column_at, place_of : receive the column at each place, and its inverse
    num_choices : receives the number of possible columns of each choice
    slot_of, filled : working memory: the slot (place among the stacks of the image) of each stack, and the number of columns
        placed in each slot
    Returns the number of choices made, and whether the second row is smaller than that of `best` (-1), equal (0) or larger
    (1). As soon as it is larger, the function returns, before all columns are placed.
    """
    for stack in range(columns // box):
        slot_of[stack] = -1
        filled[stack] = 0
    for column in range(columns):
        column_at[column] = -1
        place_of[column] = -1
    num_slots, depth, order = 0, 0, 0 if has_best else -1
    for place in range(columns):
        if column_at[place] < 0:
            slot, count = place // box, 0
            for column in range(columns):  # a free column of this slot's stack, or of any free stack
                stack = column // box
                if place_of[column] < 0 and (slot_of[stack] == slot or (slot == num_slots and slot_of[stack] < 0)):
                    if count == tried[depth]:
                        column_at[place] = column
                    count += 1
            num_choices[depth] = count
            depth += 1
            column = column_at[place]
            place_of[column] = place
            if slot_of[column // box] < 0:
                slot_of[column // box] = slot
                num_slots += 1
            filled[slot] += 1
        target = image[column_at[place]]
        if place_of[target] < 0:
            stack = target // box
            if slot_of[stack] < 0:
                slot_of[stack] = num_slots
                num_slots += 1
            slot = slot_of[stack]
            place_of[target] = slot * box + filled[slot]
            column_at[place_of[target]] = target
            filled[slot] += 1
        if order == 0:
            if place_of[target] > best[columns + place]:
                return depth, 1
            if place_of[target] < best[columns + place]:
                order = -1
    return depth, order


@compiled
def _sort_rows(grid, side, box_rows, first, second, first_column, label, rows, keys, smallest):
    """Fill `rows`: first and second, the other rows of their band, then the other bands; rows and bands are sorted by their
    first digits."""
    num_bands = side // box_rows
    for row in range(side):
        keys[row] = label[grid[row * side + first_column]]
    keys[first], keys[second] = -2, -1
    for band in range(num_bands):
        smallest[band] = side
        for row in range(band * box_rows, (band + 1) * box_rows):
            smallest[band] = min(smallest[band], keys[row])
    for row in range(side):
        place = 0
        own_band = row // box_rows
        for other in range(side):
            band = other // box_rows
            if smallest[band] < smallest[own_band] or (band == own_band and keys[other] < keys[row]):
                place += 1
        rows[place] = row


@compiled
def _compared(grid, mask, rows, column_at, label, best, best_mask):
    """Whether the image is smaller than `best` (-1), equal (0) or larger (1), by the digits of the rows after the second,
    then by the clues."""
    cells, side = grid.shape[0], rows.shape[0]
    for cell in range(2 * side, cells):
        digit = label[grid[rows[cell // side] * side + column_at[cell % side]]]
        if digit != best[cell]:
            return 1 if digit > best[cell] else -1
    for cell in range(cells):
        clue = mask[rows[cell // side] * side + column_at[cell % side]]
        if clue != best_mask[cell]:
            return 1 if clue > best_mask[cell] else -1
    return 0


@compiled
def _to_next_choices(tried, num_choices, depth):
    """Change `tried` to the next combination of `depth` choices, or return False if there is none."""
    while depth > 0:
        depth -= 1
        tried[depth] += 1
        if tried[depth] < num_choices[depth]:
            return True
        tried[depth] = 0
    return False


@compiled
def _canonical(grids, given, box_rows, box_columns, forms):
    """Fill `forms`. grids : solutions with digits from 0. given : 1 for clues, else 0"""
    cells = grids.shape[1]
    side = box_rows * box_columns
    grid, mask = np.empty(cells, np.int64), np.empty(cells, np.int64)
    best, best_mask = np.empty(cells, np.int64), np.empty(cells, np.int64)
    image, label, where = np.empty(side, np.int64), np.empty(side, np.int64), np.empty(side, np.int64)
    column_at, place_of, rows = np.empty(side, np.int64), np.empty(side, np.int64), np.empty(side, np.int64)
    tried, num_choices = np.empty(side + 1, np.int64), np.empty(side + 1, np.int64)
    slot_of, filled = np.empty(side, np.int64), np.empty(side, np.int64)
    keys, smallest = np.empty(side, np.int64), np.empty(side, np.int64)
    for number in range(grids.shape[0]):
        has_best = False
        for transposed in range(2 if box_rows == box_columns else 1):
            for cell in range(cells):
                source = cell if transposed == 0 else cell % side * side + cell // side
                grid[cell], mask[cell] = grids[number, source], given[number, source]
            for first in range(side):
                band = first // box_rows
                for column in range(side):
                    where[grid[first * side + column]] = column
                for second in range(band * box_rows, (band + 1) * box_rows):
                    if second == first:
                        continue
                    for column in range(side):
                        image[column] = where[grid[second * side + column]]
                    for depth in range(side + 1):
                        tried[depth] = 0
                    while True:
                        depth, order = _place_columns(
                            image, side, tried, num_choices, box_columns, best, has_best, column_at, place_of,
                            slot_of, filled
                        )  # fmt: skip
                        if order <= 0:
                            for place in range(side):
                                label[grid[first * side + column_at[place]]] = place
                            _sort_rows(grid, side, box_rows, first, second, column_at[0], label, rows, keys, smallest)
                        if order == 0:
                            order = _compared(grid, mask, rows, column_at, label, best, best_mask)
                        if order < 0:
                            has_best = True
                            for cell in range(cells):
                                source = rows[cell // side] * side + column_at[cell % side]
                                best[cell], best_mask[cell] = label[grid[source]], mask[source]
                        if not _to_next_choices(tried, num_choices, depth):
                            break
        for cell in range(cells):
            forms[number, cell] = best[cell] + 1 + GIVEN * best_mask[cell]
