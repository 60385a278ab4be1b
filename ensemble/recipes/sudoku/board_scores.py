"""How many boards are solved, and which: by clues, by difficulty, by segments; with intervals over puzzles."""

import itertools
from typing import Any

import numpy as np

from ensemble.metrics.bootstrap import intervals

BACKTRACKS = (0, 1, 4, 16, 64)
"""The first number of the solver's backtracks of each level of difficulty."""
STANDARD_ERRORS = 1.96
"""On each side of a 95 % interval."""
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
    Intervals are of 95 %, [low, high]: of exact by Wilson's formula, of the others over draws of puzzles, or null for fewer
    than two puzzles.
    """
    right, is_blank = boards == solutions, puzzles == 0
    solved = right.all(axis=1)
    right_blanks, num_blanks = (right & is_blank).sum(axis=1), is_blank.sum(axis=1)
    found = {**_share(solved), **_with_intervals({"blanks": (right_blanks, num_blanks)})}
    if segments is not None:
        found |= _with_intervals({"segments": (segments, np.ones(len(solved)))})

    def of_parts(part: np.ndarray, names: dict[int, str]) -> dict[str, Any]:
        parts = {}
        for number, name in names.items():
            rows = part == number
            parts[name] = {"puzzles": int(rows.sum()), **_share(solved[rows])}
            if segments is not None:
                parts[name] |= _with_intervals({"segments": (segments[rows], np.ones(rows.sum()))})
        return parts

    level = np.searchsorted(BACKTRACKS, backtracks, side="right") - 1
    names = [
        f"{begin} to {after - 1}" if after - 1 > begin else str(begin) for begin, after in itertools.pairwise(BACKTRACKS)
    ]
    names.append(f"{BACKTRACKS[-1]} and more")
    return {
        "puzzles": len(solved),
        **found,
        "by_clues": of_parts(clues, {int(number): str(number) for number in np.unique(clues)}),
        "by_backtracks": of_parts(level, {int(number): names[number] for number in np.unique(level)}),
    }


def _share(solved: np.ndarray) -> dict[str, Any]:
    """Also of no puzzle or of all solved, where draws of puzzles would have no spread."""
    n, share = len(solved), float(solved.mean())
    squared = STANDARD_ERRORS**2 / n
    middle = (share + squared / 2) / (1 + squared)
    half = STANDARD_ERRORS * float(np.sqrt(share * (1 - share) / n + squared / (4 * n))) / (1 + squared)
    return {"exact": share, "exact_interval": [max(0.0, middle - half), min(1.0, middle + half)]}


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
