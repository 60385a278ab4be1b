"""Scores of whole boards, computed from the probabilities of their cells."""

from pathlib import Path
from typing import Any

import numpy as np

from ensemble.arrow import read_columns
from ensemble.predictions import Predictions
from ensemble.recipes.sudoku import board_scores

PREDICTED_SPLITS = ("blend", "test", "validation")


def scores_by_part(kind: str, test: Predictions, forecasts: dict[str, np.ndarray], data: str | Path) -> dict[str, Any]:
    """`boards`: for the ensemble and each member, `board_scores.scores` of the puzzles of test.

    forecasts : (num_cells, side) for the rows of `test`.
    """
    rows = read_columns(Path(data) / "rows" / test.split, ("row_id", "clues", "backtracks", "puzzle"))
    puzzles = rows["puzzle"].astype(np.int64)
    # Rows are sorted by their id, puzzle × cells + cell
    names, first = np.unique(test.cluster, return_index=True)
    assert np.array_equal(names, np.sort(rows["row_id"]))
    order = np.argsort(rows["row_id"])
    num_cells = puzzles.shape[1]
    assert np.array_equal(np.diff(np.append(first, len(test.cluster))), np.full(len(names), num_cells))
    solutions = test.target.reshape(-1, num_cells).astype(np.int64) + 1
    return {
        "boards": {
            name: board_scores.scores(
                puzzles[order],
                solutions,
                1 + prediction.argmax(axis=1).reshape(-1, num_cells),
                rows["clues"][order],
                rows["backtracks"][order],
            )
            for name, prediction in forecasts.items()
        }
    }
