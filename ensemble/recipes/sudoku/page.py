"""The parts of the report that only sudoku has: puzzles solved, by difficulty, and boards that can be played.

Each member that is a network predicts some puzzles of the test split again. Its boards after each segment (`played.py`) are
shown by the player of boards.html.j2.
"""

from typing import Any

from ensemble.predictor.fit import ENSEMBLE
from ensemble.recipes.sudoku import played
from ensemble.report.commands import settings_words
from ensemble.report.run import Run
from ensemble.report.svg import Picture, format_percent

NEEDED = ("sudoku",)
"""Entries of the manifest that the page requires."""
LEAST_PUZZLES = 10
"""Levels of difficulty and numbers of clues are shown if they have at least this number of puzzles."""


def parts(run: Run) -> dict[str, Any]:
    """The variables of this folder's page.html.j2."""
    scores = _scores(run)
    rows = [{"name": name, "blanks": score["blanks"], **_share(score)} for name, score in scores.items()]
    board = run.manifest["sudoku"]
    return {
        "exact": {"rows": rows, "best": max(row["share"] for row in rows), "puzzles": scores[ENSEMBLE]["puzzles"]},
        "levels": _levels(scores),
        "boards": {"members": _networks(run), **{name: board[name] for name in ("side", "box_rows", "box_columns")}},
    }


def pictures(run: Run, series: dict[str, Any]) -> list[Picture]:
    """The share of solved puzzles after each segment, and by the number of clues if it varies."""
    scores, networks = _scores(run), _networks(run)
    clues = _large_parts(scores[ENSEMBLE]["by_clues"])

    def by_segment(axes: Any) -> None:
        for name, traces in networks.items():
            share = traces["solved_after"]
            axes.plot(range(1, 1 + len(share)), share, marker="o", markersize=3, **series[name])
        axes.set(ylim=(-0.02, 1.02), xlabel="segment", ylabel="puzzles solved")
        format_percent(axes.yaxis)

    def by_clues(axes: Any) -> None:
        for name, score in scores.items():
            shares = [score["by_clues"][number]["exact"] for number in clues]
            axes.plot([int(number) for number in clues], shares, marker="o", markersize=3, **series[name])
        axes.set(ylim=(-0.02, 1.02), xlabel="clues", ylabel="puzzles solved")
        format_percent(axes.yaxis)

    drawn: list[Picture] = []
    if networks:
        caption = f"Of the first {played.NUM_EXAMINED} test puzzles or fewer, from one latent start, without votes."
        label = "Share of puzzles solved after each segment."
        drawn.append(("Puzzles solved after each segment", caption, label, by_segment))
    if len(clues) > 1:
        caption = f"Numbers of clues that at least {LEAST_PUZZLES} test puzzles have."
        drawn.append(("Puzzles solved by clues", caption, "Share of puzzles solved, by the number of clues.", by_clues))
    return drawn


def prepare_words(manifest: dict[str, Any]) -> list[str]:
    """The arguments of scripts/prepare_data.py that prepared the data; raw files are named without their folders."""
    settings = dict(manifest["config"])
    test_files = settings.pop("test_source", [])
    sources = manifest["sources"]  # those of the test split are the last
    files = [file["name"] for file in sources[: len(sources) - len(test_files)]]
    named = {"source": files, "test_source": test_files}
    return settings_words({**{name: names for name, names in named.items() if names}, **settings})


def _networks(run: Run) -> dict[str, Any]:
    """The traces of each member that is a single network, by name."""
    return {name: played.traces_of(folder, run.folder_of["data"]) for name, folder in run.networks.items()}


def _scores(run: Run) -> dict[str, dict[str, Any]]:
    """`board_scores.scores` of the ensemble and the members, in this order. The recipe has no baselines."""
    return {name: run.diversity["boards"][name] for name in run.candidates}


def _share(score: dict[str, Any]) -> dict[str, float]:
    low, high = score["exact_interval"]
    return {"share": score["exact"], "low": low, "high": high}


def _large_parts(parts: dict[str, dict[str, Any]]) -> list[str]:
    """The names of the parts with at least `LEAST_PUZZLES` puzzles."""
    return [name for name, part in parts.items() if part["puzzles"] >= LEAST_PUZZLES]


def _levels(scores: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """For each level of difficulty the share of puzzles solved by each of `scores`; [] if there is only one level."""
    levels = _large_parts(scores[ENSEMBLE]["by_backtracks"])
    if len(levels) < 2:
        return []
    return [
        {
            "words": level,
            "puzzles": scores[ENSEMBLE]["by_backtracks"][level]["puzzles"],
            "solved": {name: _share(score["by_backtracks"][level]) for name, score in scores.items()},
        }
        for level in levels
    ]
