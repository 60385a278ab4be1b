"""sudoku: solving Sudoku with networks that process the board in several passes: HRM, TRM, and one pass as a control."""

from ensemble.recipe import Words

WORDS = Words(unit="puzzle")
