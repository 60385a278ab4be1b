"""How many boards are solved, and which: by clues, by difficulty, by segments; with bootstrap intervals over puzzles."""

import itertools
from typing import Any

import numpy as np

from ensemble.metrics.bootstrap import intervals

DIFFICULTIES = (0, 1, 3, 10, 30, 100, 1000)
"""Where the parts by the solver's backtracks begin."""
NUM_DRAWS = 500
SEED = 0


def scores(
    puzzles: np.ndarray,
    solutions: np.ndarray,
    boards: np.ndarray,
    clues: np.ndarray,
    backtracks: np.ndarray,
    segments: np.ndarray | None = None,
) -> dict[str, Any]:
    """exact: share of puzzles with every cell right; blanks: share of blank cells that are right; each with its interval.

    puzzles, solutions, boards : (n, cells) digits from 1, 0 for blanks of puzzles. clues, backtracks, segments : (n,).
    by_clues and by_backtracks have exact, its interval, the number of puzzles and, if `segments` are given, their mean.
    An interval is that of 95 % over draws of puzzles, [low, high]; null for fewer than two puzzles.
    """
    right, is_blank = boards == solutions, puzzles == 0
    solved = right.all(axis=1)
    right_blanks, num_blanks = (right & is_blank).sum(axis=1), is_blank.sum(axis=1)
    found = _with_intervals({"exact": (solved, np.ones(len(solved))), "blanks": (right_blanks, num_blanks)})
    if segments is not None:
        found |= _with_intervals({"segments": (segments, np.ones(len(solved)))})

    def of_parts(part: np.ndarray, names: dict[int, str]) -> dict[str, Any]:
        parts = {}
        for number, name in names.items():
            rows = part == number
            columns = {"exact": (solved[rows], np.ones(rows.sum()))}
            columns |= {} if segments is None else {"segments": (segments[rows], np.ones(rows.sum()))}
            parts[name] = {"puzzles": int(rows.sum()), **_with_intervals(columns)}
        return parts

    difficulty = np.searchsorted(DIFFICULTIES, backtracks, side="right") - 1
    ends = [f"–{after - 1}" if after - 1 > begin else "" for begin, after in itertools.pairwise(DIFFICULTIES)]
    by_number = [f"{begin}{end}" for begin, end in zip(DIFFICULTIES, [*ends, "+"], strict=True)]
    return {
        "puzzles": len(solved),
        **found,
        "by_clues": of_parts(clues, {int(number): str(number) for number in np.unique(clues)}),
        "by_backtracks": of_parts(difficulty, {int(number): by_number[number] for number in np.unique(difficulty)}),
    }


def _with_intervals(columns: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Of each name a ratio of two sums over puzzles, and as NAME_interval the ends of its interval."""
    names = list(columns)
    tops, bottoms = (np.stack([np.asarray(pair[place], float) for pair in columns.values()]) for place in (0, 1))

    def ratios(weight: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio: np.ndarray = (tops @ weight) / (bottoms @ weight)
        return ratio

    found = intervals(names, ratios, np.arange(tops.shape[1]), NUM_DRAWS, np.random.default_rng(SEED))
    scores: dict[str, Any] = {}
    for name, interval in found.items():
        scores[name] = interval.value if np.isfinite(interval.value) else None
        ends = [interval.low, interval.high]
        scores[f"{name}_interval"] = ends if np.isfinite(ends).all() else None
    return scores
