"""Scores of whole boards, computed from the probabilities of their cells."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import read_columns
from ensemble.predictions import Predictions
from ensemble.recipes.sudoku import board_scores

PREDICTED_SPLITS = ("blend", "test", "validation")


def scores_by_part(kind: str, test: Predictions, predictions: dict[str, np.ndarray], data: str | Path) -> dict[str, Any]:
    """`boards`: for the ensemble and each member, `board_scores.scores` of the puzzles of test.

    predictions : (num_rows, side), in the order of the rows of `test`, which are sorted by their id.
    """
    rows = read_columns(Path(data) / "rows" / test.split, ("row_id", "clues", "backtracks", "puzzle"))
    order = np.argsort(rows["row_id"])
    row_id, clues, backtracks, puzzles = (column[order] for column in rows.values())
    num_cells = puzzles.shape[1]
    assert np.array_equal(test.cluster, np.repeat(row_id, num_cells)), "rows are sorted by their id, puzzle × cells + cell"
    solutions = test.target.reshape(-1, num_cells).astype(np.int64) + 1
    return {
        "boards": {
            name: board_scores.scores(
                puzzles, solutions, 1 + prediction.argmax(axis=1).reshape(-1, num_cells), clues, backtracks
            )
            for name, prediction in predictions.items()
        }
    }
