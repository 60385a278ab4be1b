"""The compiled search: solving puzzles with a proof of uniqueness, and generating puzzles by removing digits.

The candidates of a cell are a bit mask, the complement of the digits in its row, column and box. The search places every
forced digit: the only candidate of a cell (naked single), or the only place for a digit in a unit, which is a row, a column
or a box (hidden single). If there is no forced digit, it branches on the blank cell with the fewest candidates (minimum
remaining values). It stops at the second solution; a search that ends after one solution has proved that there is no other.

    bits      (cells,) the digit of each cell as one bit, 0 for a blank cell
    used      (3 · side,) the digits of each row, column and box as a bit mask
    trail     (cells,) the cells in the order in which the search filled them
    units_of, cells_of   the tables `Board.units_of_cells` and `Board.cells_of_units`
    num_bits  (2^side,) the number of bits of each mask

All functions are compiled by numba and release the interpreter's lock, so that threads run in parallel. Compiled code is
cached in `__pycache__` beside this file, or in the user's cache folder if `__pycache__` is read-only; if both are read-only,
it is not cached.
numba does not notice changes of functions in other files, so compiled functions that call each other are in one file.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.errors import UserError

try:
    import numba
except ModuleNotFoundError:
    raise UserError("numba, which sudoku needs, is not installed: pip install 'accelerate-ensemble[sudoku]'") from None

UNSOLVABLE, UNIQUE, AMBIGUOUS, UNDECIDED = 0, 1, 2, 3
"""Results of a search. A search is undecided if it needs more guesses than its limit."""
_ANY, _NONE, _ONE, _TWO = np.int64(-1), np.int64(0), np.int64(1), np.int64(2)
"""Arguments of type int64, since numba compiles a function again for each literal number."""


def compiled(function: Callable[..., Any]) -> Any:
    """`function`, compiled at its first call and cached if a folder for the cache can be written."""
    try:
        return numba.njit(cache=True, nogil=True, boundscheck=False)(function)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(nogil=True, boundscheck=False)(function)


@compiled
def _random(state):
    """The next 64 random bits of SplitMix64; `state` is a uint64 array of one element."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@compiled
def _below(state, limit):
    """A random integer from 0 to limit − 1; `state` as in `_random`."""
    return np.int64(_random(state) >> np.uint64(33)) % limit


@compiled
def _place(cell, bit, bits, used, trail, num_placed, units_of):
    """Place a digit, as a bit, in a blank cell, and append the cell to `trail`. Returns the number of placed digits."""
    bits[cell] = bit
    for k in range(3):
        used[units_of[cell, k]] |= bit
    trail[num_placed] = cell
    return num_placed + 1


@compiled
def _undo(bits, used, trail, num_placed, until, units_of):
    """Remove the digits that were placed last, until `until` are left. Returns the number of placed digits."""
    while num_placed > until:
        num_placed -= 1
        cell = trail[num_placed]
        for k in range(3):
            used[units_of[cell, k]] &= ~bits[cell]
        bits[cell] = 0
    return num_placed


@compiled
def _propagate(bits, used, trail, num_placed, units_of, cells_of, full, num_bits):
    """Place all forced digits. Returns the number of digits placed so far, and the cell to branch on.

    The cell is -1 for a contradiction and -2 if no cell is blank.
    """
    num_cells, side = bits.shape[0], cells_of.shape[1]
    while True:
        before = num_placed
        best, fewest = -2, 99
        for cell in range(num_cells):
            if bits[cell] == 0:
                candidates = full & ~(used[units_of[cell, 0]] | used[units_of[cell, 1]] | used[units_of[cell, 2]])
                if candidates == 0:
                    return num_placed, -1
                if candidates & (candidates - 1) == 0:
                    num_placed = _place(cell, candidates, bits, used, trail, num_placed, units_of)
                elif num_bits[candidates] < fewest:
                    best, fewest = cell, num_bits[candidates]
        if num_placed > before:
            continue
        if best == -2:
            return num_placed, -2
        for unit in range(cells_of.shape[0]):
            if used[unit] == full:
                continue
            once, twice = np.int64(0), np.int64(0)
            for k in range(side):
                cell = cells_of[unit, k]
                if bits[cell] == 0:
                    candidates = full & ~(used[units_of[cell, 0]] | used[units_of[cell, 1]] | used[units_of[cell, 2]])
                    twice |= once & candidates
                    once |= candidates
            if once | used[unit] != full:
                return num_placed, -1
            single = once & ~twice
            k = 0
            while single != 0 and k < side:
                cell = cells_of[unit, k]
                if bits[cell] == 0:
                    candidates = full & ~(used[units_of[cell, 0]] | used[units_of[cell, 1]] | used[units_of[cell, 2]])
                    bit = candidates & single
                    if bit != 0:
                        if bit & (bit - 1) != 0:
                            return num_placed, -1  # two digits have their only place here
                        num_placed = _place(cell, bit, bits, used, trail, num_placed, units_of)
                        single &= ~bit
                k += 1
        if num_placed == before:
            return num_placed, best


@compiled
def _search(bits, used, trail, first_cell, first_bits, limit, max_guesses, state, solution, units_of, cells_of, num_bits):
    """Find up to `limit` solutions of the position in `bits` and `used`, which is restored at the end.

    first_cell, first_bits : the cell to branch on first, and the candidates to try there; -1 and 0 to start by propagation.
    max_guesses : digits to try at most
    state : of the random generator for the order of digits; length 0 for ascending order
    solution : receives the first solution, as bits
    Returns the number of solutions, or `UNDECIDED`, and the number of contradictions.
    """
    side = cells_of.shape[1]
    full = (np.int64(1) << side) - 1
    num_placed = np.int64(0)
    # By depth of the search: the cell, its candidates that were not tried yet, and the digits placed before
    cell_of = np.empty(bits.shape[0] + 1, np.int64)
    left_of = np.empty(bits.shape[0] + 1, np.int64)
    placed_of = np.empty(bits.shape[0] + 1, np.int64)
    depth, num_solutions, contradictions, guesses = 0, 0, 0, 0
    forced = first_cell >= 0
    while True:
        if forced:
            cell, choices, forced = first_cell, first_bits, False
        else:
            num_placed, cell = _propagate(bits, used, trail, num_placed, units_of, cells_of, full, num_bits)
            if cell >= 0:
                choices = full & ~(used[units_of[cell, 0]] | used[units_of[cell, 1]] | used[units_of[cell, 2]])
            else:
                choices = np.int64(0)
                if cell == -2:
                    if num_solutions == 0:
                        for other in range(bits.shape[0]):  # numba needs 4 s to compile a copy by slices
                            solution[other] = bits[other]
                    num_solutions += 1
                    if num_solutions == limit:
                        break
                else:
                    contradictions += 1
        if choices != 0:
            cell_of[depth], left_of[depth], placed_of[depth] = cell, choices, num_placed
            depth += 1
        while depth > 0 and left_of[depth - 1] == 0:
            depth -= 1
        if depth == 0:
            break
        if guesses == max_guesses:
            num_solutions = UNDECIDED
            break
        guesses += 1
        num_placed = _undo(bits, used, trail, num_placed, placed_of[depth - 1], units_of)
        left = left_of[depth - 1]
        bit = left & -left
        if state.shape[0] > 0:
            for _ in range(_below(state, np.int64(num_bits[left]))):
                left &= left - 1
            bit = left & -left
        left_of[depth - 1] &= ~bit
        num_placed = _place(cell_of[depth - 1], bit, bits, used, trail, num_placed, units_of)
    _undo(bits, used, trail, num_placed, _NONE, units_of)
    return num_solutions, contradictions


@compiled
def _load(digits, bits, used, units_of):
    """Fill `bits` and `used` from digits; False if a unit has a digit twice."""
    bits[:] = 0
    used[:] = 0
    for cell in range(digits.shape[0]):
        if digits[cell] > 0:
            bit = np.int64(1) << (np.int64(digits[cell]) - 1)
            for k in range(3):
                if used[units_of[cell, k]] & bit:
                    return False
                used[units_of[cell, k]] |= bit
            bits[cell] = bit
    return True


@compiled
def _digits(bits, digits, side):
    """Fill `digits` from `bits`; 0 for a blank cell."""
    for cell in range(bits.shape[0]):
        digits[cell] = 0
        for digit in range(side):
            if bits[cell] == np.int64(1) << digit:
                digits[cell] = digit + 1


@compiled
def solve(puzzles, max_guesses, units_of, cells_of, num_bits, solutions, results, backtracks):
    """Solve each row of `puzzles`, (n, cells) uint8.

    solutions, results, backtracks : receive the first solutions, the results such as `UNIQUE`, and the numbers of
    contradictions
    """
    num_cells, side = units_of.shape[0], cells_of.shape[1]
    bits, used = np.empty(num_cells, np.int64), np.empty(3 * side, np.int64)
    trail, solution, ascending = np.empty(num_cells, np.int64), np.zeros(num_cells, np.int64), np.empty(0, np.uint64)
    for row in range(puzzles.shape[0]):
        solution[:] = 0
        if _load(puzzles[row], bits, used, units_of):
            num_solutions, contradictions = _search(
                bits, used, trail, _ANY, _NONE, _TWO, max_guesses, ascending, solution, units_of, cells_of, num_bits
            )
        else:
            num_solutions, contradictions = 0, 0
        results[row], backtracks[row] = num_solutions, contradictions
        _digits(solution, solutions[row], side)


@compiled
def _removable(cell, bits, used, trail, max_guesses, solution, units_of, cells_of, num_bits):
    """Whether a position with one solution still has only this one after the digit solution[cell] was removed.

    False if the search is undecided after `max_guesses`.
    bits, used : the position without the digit
    """
    side = cells_of.shape[1]
    full, bit = (np.int64(1) << side) - 1, solution[cell]
    others = full & ~(used[units_of[cell, 0]] | used[units_of[cell, 1]] | used[units_of[cell, 2]]) & ~bit
    if others == 0:
        return True
    for k in range(3):  # the only place for the digit in a unit
        alone = True
        for j in range(side):
            other = cells_of[units_of[cell, k], j]
            taken = used[units_of[other, 0]] | used[units_of[other, 1]] | used[units_of[other, 2]]
            if other != cell and bits[other] == 0 and taken & bit == 0:
                alone = False
                break
        if alone:
            return True
    unused = np.empty(bits.shape[0], np.int64)
    ascending = np.empty(0, np.uint64)
    num_solutions, _ = _search(
        bits, used, trail, cell, others, _ONE, max_guesses, ascending, unused, units_of, cells_of, num_bits
    )
    return num_solutions == 0


@compiled
def generate(seeds, clues, max_guesses, units_of, cells_of, num_bits, puzzles, solutions):
    """One attempt for each seed: a random full grid from which digits are removed, in random order, while the solution stays
    unique and more than `clues` digits are left.

    seeds : (n,) uint64. The number of clues of a puzzle is larger than `clues` if no other digit can be removed.
    """
    num_cells, side = units_of.shape[0], cells_of.shape[1]
    bits, used = np.empty(num_cells, np.int64), np.empty(3 * side, np.int64)
    trail, solution, order = np.empty(num_cells, np.int64), np.empty(num_cells, np.int64), np.empty(num_cells, np.int64)
    state = np.empty(1, np.uint64)
    for row in range(seeds.shape[0]):
        state[0] = seeds[row]
        num_solutions = UNDECIDED
        while num_solutions != 1:  # a long search for a full grid is started again with other random numbers
            bits[:] = 0
            used[:] = 0
            num_solutions, _ = _search(
                bits, used, trail, _ANY, _NONE, _ONE, 10 * num_cells, state, solution, units_of, cells_of, num_bits
            )
        for cell in range(num_cells):
            order[cell] = cell
            _place(cell, solution[cell], bits, used, trail, _NONE, units_of)
        left = num_cells
        for position in range(num_cells):
            if left <= clues:
                break
            other = position + _below(state, num_cells - position)
            cell, order[other] = order[other], order[position]
            bits[cell] = 0
            for k in range(3):
                used[units_of[cell, k]] &= ~solution[cell]
            if _removable(cell, bits, used, trail, max_guesses, solution, units_of, cells_of, num_bits):
                left -= 1
            else:
                _place(cell, solution[cell], bits, used, trail, _NONE, units_of)
        _digits(solution, solutions[row], side)
        _digits(bits, puzzles[row], side)
