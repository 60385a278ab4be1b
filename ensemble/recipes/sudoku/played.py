"""The boards of a member after each segment, on some puzzles of the test split, for the player of the report's page.

They are those of `traces.py`: the network goes on for all segments of a prediction, also after it would have halted, from
its first latent start and without votes.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ensemble import configuration, folders
from ensemble.errors import UserError

NUM_LOOKED_AT = 256
"""Puzzles of the test split among which some are chosen."""
NUM_SHOWN = 6
"""Solved puzzles, and as many that are not."""


@functools.cache  # the page asks twice
def of_member(member: Path, data: Path) -> dict[str, Any]:
    """Of a network in the folder of its run: `solved_after`, the share of the puzzles looked at that are right after each
    segment, and `puzzles`, entries of `traces.of` for some of them. {} for a bag of copies, which has no network of its own.

    Raises `UserError` for a damaged checkpoint, and for one of other data.
    """
    best = member / "best"
    if not best.is_dir():
        return {}

    from ensemble.neural import checkpoint
    from ensemble.neural.settings import config_class
    from ensemble.recipes.sudoku import traces, training

    folders.verify(best)
    state = folders.read_json(best / "state.json")
    settings: Any = configuration.from_dict(config_class(state["recipe"]), state["config"])
    about = folders.read_manifest(data)
    if state["fingerprint"] != about["fingerprint"]:
        raise UserError(
            f"{member} was trained on data {state['fingerprint']}, but {data} is {about['fingerprint']}: name the data that "
            "it was trained on"
        )
    recipe = training.make(settings.recipe, str(data))
    model = recipe.model()
    checkpoint.load_weights(best, model)
    looked_at = np.arange(min(NUM_LOOKED_AT, len(recipe.rows("test"))))
    puzzles = traces.of(recipe, model.eval(), "test", looked_at)["puzzles"]
    is_right = [[segment["digits"] == of["solution"] for segment in of["segments"]] for of in puzzles]
    return {"solved_after": np.mean(is_right, axis=0).tolist(), "puzzles": chosen(puzzles)}


def chosen(puzzles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Solved puzzles that took most segments, then puzzles that are not solved with most cells right, of `traces.of`."""

    def num_open(of: dict[str, Any]) -> int:
        """Segments after which the board was not yet right."""
        return sum(segment["digits"] != of["solution"] for segment in of["segments"])

    def num_wrong(of: dict[str, Any]) -> int:
        """Wrong cells at the end."""
        return sum(digit != right for digit, right in zip(of["segments"][-1]["digits"], of["solution"], strict=True))

    solved = sorted((of for of in puzzles if of["solved"]), key=num_open, reverse=True)
    failed = sorted((of for of in puzzles if not of["solved"]), key=num_wrong)
    return solved[:NUM_SHOWN] + failed[:NUM_SHOWN]
