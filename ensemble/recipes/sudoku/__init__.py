"""sudoku: the solution of a Sudoku, by networks that reason in several passes: HRM, TRM, and one pass as the control."""

from ensemble.recipe import Words

WORDS = Words(unit="puzzle")
