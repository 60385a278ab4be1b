"""What only the report of sudoku has: how many puzzles are solved, which ones are hard, and boards that can be played.

A member that is a network is run once more on some puzzles of the test split, and its board after each segment is kept
(`played.py`), for the player of boards.html.j2.
"""

from typing import Any

from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipes.sudoku import played
from ensemble.report.commands import settings_words
from ensemble.report.run import Run
from ensemble.report.svg import Picture, format_percent

NEEDED = ("sudoku",)
"""Entries of the manifest that the page shows."""
LEAST_PUZZLES = 10
"""Of a level of difficulty, to be shown."""


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    scores = _scores(run)
    rows = [{"name": name, "blanks": of["blanks"], **_share(of)} for name, of in scores.items()]
    board = run.manifest["sudoku"]
    return {
        "exact": {"rows": rows, "best": max(row["share"] for row in rows), "puzzles": scores[ENSEMBLE]["puzzles"]},
        "levels": _levels(scores),
        "boards": {"members": _networks(run), **{name: board[name] for name in ("side", "box_rows", "box_columns")}},
    }


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """The share of solved puzzles after each segment; and by the number of clues, if puzzles differ in it."""
    scores, networks = _scores(run), _networks(run)
    clues = _large_parts(scores[ENSEMBLE]["by_clues"])

    def by_segment(axes: Any) -> None:
        for name, of in networks.items():
            share = of["solved_after"]
            axes.plot(range(1, 1 + len(share)), share, marker="o", markersize=3, **series[name])
        axes.set(ylim=(-0.02, 1.02), xlabel="segment", ylabel="puzzles solved")
        format_percent(axes.yaxis)

    def by_clues(axes: Any) -> None:
        for name, of in scores.items():
            shares = [of["by_clues"][number]["exact"] for number in clues]
            axes.plot([int(number) for number in clues], shares, marker="o", markersize=3, **series[name])
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


def _scores(run: Run) -> dict[str, dict[str, Any]]:
    """`board_scores.scores` of each candidate, the ensemble's first."""
    return {name: run.diversity["boards"][name] for name in run.candidates}


def _share(of: dict[str, Any]) -> dict[str, float]:
    low, high = of["exact_interval"]
    return {"share": of["exact"], "low": low, "high": high}


def _large_parts(parts: dict[str, dict[str, Any]]) -> list[str]:
    """The names of those that have enough puzzles."""
    return [name for name, part in parts.items() if part["puzzles"] >= LEAST_PUZZLES]


def _levels(scores: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """For each level of difficulty, the share of puzzles that each candidate solves; [] if all puzzles are of one level."""
    levels = _large_parts(scores[ENSEMBLE]["by_backtracks"])
    if len(levels) < 2:
        return []
    return [
        {
            "words": level,
            "puzzles": scores[ENSEMBLE]["by_backtracks"][level]["puzzles"],
            "solved": {name: _share(of["by_backtracks"][level]) for name, of in scores.items()},
        }
        for level in levels
    ]
