"""What a network thinks of a puzzle after each segment, as JSON for the page."""

from typing import Any

import numpy as np
import torch

from ensemble.recipes.sudoku import inference
from ensemble.recipes.sudoku.losses import log_probabilities
from ensemble.recipes.sudoku.training import Sudoku


@torch.no_grad()
def of(recipe: Sudoku, model: torch.nn.Module, split: str, rows: np.ndarray) -> dict[str, Any]:
    """The boards of some rows of a split after each segment of the first latent start; see examine.py for the format."""
    split_rows, board = recipe.rows(split), recipe.board
    device = next(model.parameters()).device
    puzzle = torch.from_numpy(split_rows.columns["puzzle"].take(rows).astype(np.int64)).to(device)
    is_new, high, low = inference.first_states(model, recipe.shape_of(model), len(rows), 1, device)
    boards, confidences, halts = [], [], []
    for _ in range(recipe.how.segments):
        found = inference.one_segment(model, puzzle, torch.zeros_like(puzzle[:, 0]), is_new, high, low)
        is_new, high, low = torch.zeros_like(is_new), found.high[:, None], found.low[:, None]
        confidence, digit = log_probabilities(found.digits, recipe.config.loss).exp().max(dim=-1)
        boards.append((digit + 1).cpu().numpy())
        confidences.append(confidence.cpu().numpy())
        halts.append(found.halting[:, 0].double().sigmoid().cpu().numpy())
    columns = {name: split_rows.columns[name].take(rows) for name in ("row_id", "puzzle", "solution", "clues", "backtracks")}
    return {
        "side": board.side,
        "box_rows": board.box_rows,
        "box_columns": board.box_columns,
        "puzzles": [
            {
                **{name: column[number].tolist() for name, column in columns.items()},
                "solved": bool((boards[-1][number] == columns["solution"][number]).all()),
                "segments": [
                    {
                        "digits": digits[number].tolist(),
                        "confidence": [round(value, 4) for value in confidence[number].tolist()],
                        "halt": round(float(halt[number]), 4),
                    }
                    for digits, confidence, halt in zip(boards, confidences, halts, strict=True)
                ],
            }
            for number in range(len(rows))
        ],
    }
