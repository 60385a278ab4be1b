"""The boards of a network after each segment (one call of the recurrent network), on some puzzles of the test split.

The report's page shows them one after the other:

    {"solved_after": [0.1, 0.4, …],
     "puzzles": [{"row_id": 1210, "puzzle": [0, 3, …], "solution": [5, 3, …], "backtracks": 0, "solved": true,
                  "segments": [{"digits": [5, 3, …], "confidence": [0.61, 1.0, …], "halt": 0.003}, …]}, …]}

`solved_after` is the share of the examined puzzles whose board is entirely right after each segment, and `puzzles` are some
of them. `digits` are the most probable ones, `confidence` their probabilities, and `halt` is the probability of halting. The
network computes all segments of a prediction, also those after it has halted, from one initial latent state and without
symmetric images.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np

NUM_EXAMINED = 256
"""Largest number of puzzles of the test split that the network predicts."""
NUM_SHOWN = 6
"""Largest number of solved puzzles that are shown, and of puzzles that are not solved."""


@functools.cache  # the page calls it twice
def traces_of(member: Path, data: Path) -> dict[str, Any]:
    """The boards of the network in the folder of a run, as in the docstring of the module.

    Raises `UserError` for a damaged checkpoint, for a network of another recipe, and for data that it was not trained on.
    """
    import torch

    from ensemble.neural.predict import NeuralMember
    from ensemble.recipes.sudoku import inference
    from ensemble.recipes.sudoku.losses import log_probabilities

    network = NeuralMember(member, None, data, split="test", of_recipe="sudoku")
    recipe, model = network.recipe_of(data), network.model
    rows = recipe.rows("test")
    batch = rows.gather(np.arange(min(NUM_EXAMINED, len(rows))))
    puzzle = batch["puzzle"]
    shape: Any = model.shape
    steps = []
    with torch.inference_mode():
        is_new, high, low = inference.first_states(model, shape, len(puzzle), 1, puzzle.device)
        for _ in range(recipe.options.segments):
            segment = inference.one_segment(model, puzzle, is_new, high, low)
            probability, digit = log_probabilities(segment.digits, recipe.config.loss).exp().max(dim=-1)
            halt = segment.halting[:, 0].sigmoid()
            steps.append((1 + digit.numpy(), probability.numpy(), halt.numpy()))
            high, low, is_new = segment.high[:, None], segment.low[:, None], torch.zeros_like(is_new)
    digits, confidence, halts = (np.stack(values, axis=1) for values in zip(*steps, strict=True))
    columns = {name: column.take(np.arange(len(puzzle))) for name, column in rows.columns.items()}
    solved_after = (digits == columns["solution"][:, None]).all(axis=2).mean(axis=0)
    return {"solved_after": solved_after.tolist(), "puzzles": select(columns, digits, confidence, halts)}


def select(
    columns: dict[str, np.ndarray], digits: np.ndarray, confidence: np.ndarray, halt: np.ndarray
) -> list[dict[str, Any]]:
    """The entry `puzzles`: of those solved after the last segment, the ones that took the most segments; of the others, the
    ones with the most cells right.

    columns : of the puzzles, (n, …). digits, confidence : (n, segments, cells). halt : (n, segments)
    """
    is_right = digits == columns["solution"][:, None]
    is_solved = is_right[:, -1].all(axis=1)
    num_wrong_segments = (~is_right.all(axis=2)).sum(axis=1)
    solved, failed = np.flatnonzero(is_solved), np.flatnonzero(~is_solved)
    solved = solved[np.argsort(-num_wrong_segments[solved], kind="stable")][:NUM_SHOWN]
    failed = failed[np.argsort(-is_right[failed, -1].sum(axis=1), kind="stable")][:NUM_SHOWN]
    return [
        {
            "row_id": int(columns["row_id"][row]),
            "puzzle": columns["puzzle"][row].tolist(),
            "solution": columns["solution"][row].tolist(),
            "backtracks": int(columns["backtracks"][row]),
            "solved": bool(is_solved[row]),
            "segments": [
                {
                    "digits": digits[row, segment].tolist(),
                    "confidence": np.round(confidence[row, segment].astype(np.float64), 3).tolist(),
                    "halt": round(float(halt[row, segment]), 4),
                }
                for segment in range(digits.shape[1])
            ],
        }
        for row in (*solved, *failed)
    ]
