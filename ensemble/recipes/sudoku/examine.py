"""Scores of a trained network on the puzzles of one split, with 95 % intervals, as JSON.

    python -m ensemble.recipes.sudoku.examine member=runs/sudoku/members/trm data=runs/sudoku/prepared out=runs/sudoku/trm

OUT/scores.json contains the scores of `board_scores.scores`, and the mean of `calls`. The calls of a puzzle are the
segments (passes of the network) of all its candidates together. They measure the cost of its prediction. A candidate is the
prediction from one latent start for one symmetric image of the puzzle, see inference.py.
"""

import dataclasses
from typing import Literal

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamineConfig:
    """The network, the puzzles, and the options of a prediction."""

    member: str = "???"
    """The folder of a run of scripts/train.py."""
    data: str = "???"
    """The prepared data that the member was trained on, or other data without puzzles that it learned."""
    out: str = "???"
    """The folder to write scores.json to."""
    split: Literal["test", "blend", "validation"] = "test"
    """The split to predict."""
    starts: int = 0
    """Number of latent starts, the initial states of the network for a puzzle; 0 for one."""
    votes: int = 0
    """Number of symmetric images of each puzzle to predict, including the puzzle itself; 0 for one."""
    select: Literal["", "mean", "vote", "surest", "first"] = ""
    """How the candidates are combined, as inference.py describes; empty for mean."""
    batch_size: int = 512
    """Number of puzzles in a batch."""
    overwrite: bool = False
    """Replace `out` if it exists."""


def main() -> None:
    settings = configuration.from_command_line(ExamineConfig, __doc__)
    configuration.check(settings, at_least_1="batch_size", at_least_0="starts votes")

    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble import folders
    from ensemble.neural import evaluation
    from ensemble.neural.predict import NeuralMember
    from ensemble.recipes.sudoku import board_scores

    options = {name: getattr(settings, name) for name in ("starts", "votes", "select")}
    with folders.new_folder(settings.out, settings.overwrite, "scores of boards") as folder:
        member = NeuralMember(settings.member, accelerator, settings.data, options, of_recipe="sudoku")
        recipe = member.recipe_of(settings.data)
        predicted = evaluation.predict(
            recipe, member.model_of(settings.split), settings.split, settings.batch_size, accelerator
        )
        columns = {name: column.all() for name, column in recipe.rows(settings.split).columns.items()}
        boards = 1 + predicted["prediction"].argmax(axis=2)
        scores = board_scores.scores(
            columns["puzzle"], columns["solution"], boards, columns["clues"], columns["backtracks"], predicted["segments"]
        )
        scores |= {"calls": float(predicted["calls"].mean()), "split": settings.split, "member": settings.member, **options}
        folders.write_json(folder / "scores.json", scores)
        folders.write_manifest(folder, {"kind": "scores of boards"})
    print(f"{settings.out}: exact {scores['exact']:.4f} {scores['exact_interval']} of {scores['puzzles']} puzzles")


if __name__ == "__main__":
    errors.run(main)
