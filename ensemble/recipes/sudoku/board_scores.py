"""Scores of predicted boards: the share solved in all, by clues and by difficulty, with intervals."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ensemble.metrics.bootstrap import draws_of, intervals

LEVELS = {"0": 0, "1 to 3": 1, "4 to 15": 4, "16 to 63": 16, "64 and more": 64}
"""The smallest number of backtracks of the solver in each level of difficulty."""
NUM_DRAWS = 500
"""Bootstrap samples for an interval."""
SEED = 0


def scores(
    puzzles: np.ndarray,
    solutions: np.ndarray,
    boards: np.ndarray,
    clues: np.ndarray,
    backtracks: np.ndarray,
    segments: np.ndarray | None = None,
) -> dict[str, Any]:
    """Scores of the boards that a model predicted for n puzzles.

    exact is the share of puzzles with every cell right, blanks the share of blank cells that are right, and segments, if
    given, the mean number of segments; each has an interval. by_clues and by_backtracks have, for each number of clues and
    each level of difficulty, the number of puzzles, exact and segments. Intervals [low, high] are of 95 %: for exact by
    Wilson's formula, for the others by the bootstrap over puzzles, and null for fewer than two puzzles.

    puzzles, solutions, boards : (n, cells) digits from 1, 0 for blanks of puzzles
    clues, backtracks, segments : (n,)
    """
    right, is_blank = boards == solutions, puzzles == 0
    solved = right.all(axis=1)
    right_blanks, num_blanks = (right & is_blank).sum(axis=1), is_blank.sum(axis=1)

    def mean_segments(rows: np.ndarray) -> dict[str, Any]:
        return {} if segments is None else _ratio("segments", segments[rows], np.ones(rows.sum()))

    def by_part(part: np.ndarray, name_of: Callable[[int], str]) -> dict[str, Any]:
        rows_of = {name_of(number): part == number for number in np.unique(part).tolist()}
        return {
            name: {"puzzles": int(rows.sum()), **_share(solved[rows]), **mean_segments(rows)}
            for name, rows in rows_of.items()
        }

    level = np.searchsorted(list(LEVELS.values()), backtracks, side="right") - 1
    return {
        "puzzles": len(solved),
        **_share(solved),
        **_ratio("blanks", right_blanks, num_blanks),
        **mean_segments(np.ones(len(solved), bool)),
        "by_clues": by_part(clues, str),
        "by_backtracks": by_part(level, list(LEVELS).__getitem__),
    }


def _share(solved: np.ndarray) -> dict[str, Any]:
    """The share of solved puzzles with Wilson's interval, which also exists if no puzzle or every puzzle is solved."""
    from scipy.stats import binomtest  # takes a second, which a training would not need

    interval = binomtest(int(solved.sum()), len(solved)).proportion_ci(method="wilson")
    return {"exact": float(solved.mean()), "exact_interval": [float(interval.low), float(interval.high)]}


def _ratio(name: str, top: np.ndarray, bottom: np.ndarray) -> dict[str, Any]:
    """The ratio of two sums over puzzles, and its interval as NAME_interval."""

    def ratio(weight: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.array([top.astype(float) @ weight / (bottom.astype(float) @ weight)])

    interval = intervals([name], draws_of(ratio, np.arange(len(top)), NUM_DRAWS, np.random.default_rng(SEED)))[name]
    ends = [interval.low, interval.high]
    return {
        name: interval.value if np.isfinite(interval.value) else None,
        f"{name}_interval": ends if np.isfinite(ends).all() else None,
    }
