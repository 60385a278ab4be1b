"""The members that one command trains: SASRec, and trees on the candidates of all rankings; see README.md."""

from pathlib import Path
from typing import Any

from ensemble import configuration
from ensemble.errors import UserError
from ensemble.pipeline.plan import FollowUp, PlannedMember

CANDIDATES = "candidates"
TREES = {"refit": True}
NUM_CANDIDATES, NUM_CANDIDATES_OF_FEW = 50, 200
FEW_SEQUENCES = 500
"""Of validation: below, candidates are more, so that enough of the next items are among them."""
LEAST_SEQUENCES = 67
"""Of validation: 15 % of them stop the trees early, and the candidates need 10."""
LONG = 40
"""Mean number of events of a user from which histories are as long as those of MovieLens."""
MANY_EVENTS = 500_000
FEW_USERS = 5_000
FOLLOW_S, FOLLOW_PER_SEQUENCE_S = 12.0, 3e-3
"""Seconds to predict, to prepare the candidates and to compare; MovieLens 100K takes 8 on one core for 1,886 sequences."""


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """SASRec with the preset of the data that are most alike, then the trees."""
    sequences = about["splits"]["validation"]["rows"]
    if sequences < LEAST_SEQUENCES:
        raise UserError(
            f"the validation split has {sequences} sequences, and trees need at least {LEAST_SEQUENCES} to learn from: "
            "give more users, or with split=time other moments"
        )
    sasrec = PlannedMember(name="sasrec", kind="neural", settings=_preset(about), share=6.0, least_seconds=25.0)
    trees = [
        PlannedMember(name=library, kind="trees", settings={"library": library, **TREES}, data=CANDIDATES)
        for library in ("lightgbm", "xgboost")
    ]
    return [sasrec, *trees]


def follow_up(about: dict[str, Any], data: Path, rankings: Path) -> FollowUp:
    """The best items of all rankings become candidates."""
    is_few = about["splits"]["validation"]["rows"] < FEW_SEQUENCES
    num_candidates = NUM_CANDIDATES_OF_FEW if is_few else NUM_CANDIDATES
    settings = {"data": str(data), "rankings": (str(rankings),), "num_candidates": num_candidates}
    sequences = sum(about["splits"][split]["rows"] for split in ("validation", "test"))
    return FollowUp(recipe=CANDIDATES, settings=settings, seconds=FOLLOW_S + FOLLOW_PER_SEQUENCE_S * sequences)


def _preset(about: dict[str, Any]) -> dict[str, Any]:
    """Few users or long histories: as MovieLens; else as Amazon Beauty."""
    if about["events"] >= LONG * about["users"] or about["users"] < FEW_USERS:
        name = "ml-1m" if about["events"] >= MANY_EVENTS else "ml-100k"
    else:
        name = "beauty"
    preset = configuration.read_yaml(Path(__file__).parent / "presets" / f"{name}.yaml")
    of_recipe = preset.pop("recipe")
    return {**preset, **{f"recipe.{setting}": value for setting, value in of_recipe.items()}}
