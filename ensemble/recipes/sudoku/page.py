"""What only the report of sudoku has: how many puzzles are solved, which ones are hard, and boards that can be played.

A member that is a network is run once more on some puzzles of the test split, and its board after each segment is kept
(`played.py`), for the player of boards.html.j2.
"""

import itertools
from typing import Any

import numpy as np

from ensemble.arrow import Column, open_table
from ensemble.recipes.sudoku import played
from ensemble.report.commands import settings_words
from ensemble.report.run import Run
from ensemble.report.svg import Picture, format_percent

NEEDED = ("sudoku",)
"""Entries of the manifest that the page shows."""
LEAST_PUZZLES = 10
"""Of a level of difficulty, to be shown."""
CONFIDENCE = 1.96
"""Standard errors on each side of a 95 % interval."""
BACKTRACKS = (0, 1, 4, 16, 64)
"""The first number of backtracks of each level."""


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    puzzles = _Puzzles(run)
    rows, shares = [], []
    for name, candidate in run.candidates.items():
        is_solved, blanks = puzzles.scores(candidate)
        rows.append({"name": name, **_share(is_solved), "blanks": blanks})
        shares.append(is_solved.mean())
    board = run.manifest["sudoku"]
    return {
        "exact": {"rows": rows, "best": max(shares), "puzzles": puzzles.num_puzzles},
        "levels": _levels(run, puzzles),
        "boards": {"members": _networks(run), **{name: board[name] for name in ("side", "box_rows", "box_columns")}},
    }


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """The share of solved puzzles after each segment; and by the number of clues, if puzzles differ in it."""
    puzzles, networks = _Puzzles(run), _networks(run)
    clues = _groups(puzzles.columns["clues"])

    def by_segment(axes: Any) -> None:
        for name, of in networks.items():
            share = of["solved_after"]
            axes.plot(range(1, 1 + len(share)), share, marker="o", markersize=3, **series[name])
        axes.set(ylim=(-0.02, 1.02), xlabel="segment", ylabel="puzzles solved")
        format_percent(axes.yaxis)

    def by_clues(axes: Any) -> None:
        for name, candidate in run.candidates.items():
            exact, _ = puzzles.scores(candidate)
            axes.plot(list(clues), [exact[rows].mean() for rows in clues.values()], marker="o", markersize=3, **series[name])
        axes.set(ylim=(-0.02, 1.02), xlabel="clues", ylabel="puzzles solved")
        format_percent(axes.yaxis)

    found: list[Picture] = []
    if networks:
        caption = f"Of the first {played.NUM_LOOKED_AT} test puzzles or fewer, from one latent start, without votes."
        found.append(
            ("Puzzles solved after each segment", caption, "Share of puzzles solved after each segment.", by_segment)
        )
    if len(clues) > 1:
        caption = f"Numbers of clues that at least {LEAST_PUZZLES} test puzzles have."
        found.append(("Puzzles solved by clues", caption, "Share of puzzles solved, by the number of clues.", by_clues))
    return found


def prepare_words(about: dict[str, Any]) -> list[str]:
    """The words of scripts/prepare_data.py that prepared the data, run beside the raw files."""
    settings = dict(about["config"])
    test_files = settings.pop("test_source", [])
    files = [file["name"] for file in about["sources"] if file["name"] not in test_files]
    words = [f"{name}=[{','.join(of)}]" for name, of in (("source", files), ("test_source", test_files)) if of]
    return [*words, *settings_words(settings)]


def _networks(run: Run) -> dict[str, Any]:
    """What played.py gives of each member that is one network, by name."""
    folder_of = {member.name: member.folder for member in run.members if member.summary.get("kind") == "neural"}
    found = {name: played.of_member(of, run.folder_of["data"]) for name, of in folder_of.items() if of is not None}
    return {name: of for name, of in found.items() if of}


class _Puzzles:
    """The test puzzles, and which cells of which puzzle the rows of the prediction files are."""

    def __init__(self, run: Run):
        table = open_table(run.folder_of["data"] / "rows" / run.test.split)
        self.columns = {name: Column(table, name).all() for name in table.column_names}
        cells = run.manifest["sudoku"]["cells"]
        row_of = {row_id: row for row, row_id in enumerate(self.columns["row_id"].tolist())}
        self._puzzle = np.array([row_of[puzzle] for puzzle in (run.test.row_id // cells).tolist()])
        self._is_blank = self.columns["puzzle"][self._puzzle, run.test.row_id % cells] == 0
        self._target = run.test.target
        self.num_puzzles = len(row_of)

    def scores(self, probabilities: np.ndarray) -> tuple[np.ndarray, float]:
        """Whether each puzzle is solved, (num_puzzles,) bool, and the share of the blank cells that are right."""
        is_right = probabilities.argmax(axis=1) == self._target
        wrong = np.bincount(self._puzzle, ~is_right, self.num_puzzles)
        return wrong == 0, float(is_right[self._is_blank].mean())


def _share(is_solved: np.ndarray) -> dict[str, float]:
    """A share with Wilson's 95 % interval: puzzles are independent."""
    n, share = len(is_solved), float(is_solved.mean())
    squared = CONFIDENCE**2 / n
    middle = (share + squared / 2) / (1 + squared)
    half = CONFIDENCE * float(np.sqrt(share * (1 - share) / n + squared / (4 * n))) / (1 + squared)
    return {"share": share, "low": max(0.0, middle - half), "high": min(1.0, middle + half)}


def _groups(values: np.ndarray) -> dict[int, np.ndarray]:
    """The rows of each value that enough puzzles have."""
    found = {int(value): np.flatnonzero(values == value) for value in np.unique(values)}
    return {value: rows for value, rows in found.items() if len(rows) >= LEAST_PUZZLES}


def _levels(run: Run, puzzles: _Puzzles) -> list[dict[str, Any]]:
    """For each level of difficulty, the share of puzzles that each candidate solves; [] if all puzzles are of one level."""
    level = np.searchsorted(BACKTRACKS, puzzles.columns["backtracks"], side="right") - 1
    groups = _groups(level)
    if len(groups) < 2:
        return []
    exact = {name: puzzles.scores(candidate)[0] for name, candidate in run.candidates.items()}
    words = [
        str(first) if following == first + 1 else f"{first} to {following - 1}"
        for first, following in itertools.pairwise(BACKTRACKS)
    ]
    words.append(f"{BACKTRACKS[-1]} and more")
    return [
        {
            "words": words[number],
            "puzzles": len(rows),
            "solved": {name: _share(of[rows]) for name, of in exact.items()},
        }
        for number, rows in groups.items()
    ]
