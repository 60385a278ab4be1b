"""The members that scripts/fit.py trains: SASRec, and trees on the candidates of all ranking files; see README.md."""

from pathlib import Path
from typing import Any

from ensemble.errors import UserError
from ensemble.pipeline.plan import FollowUp, PlannedMember, preset, trees

CANDIDATES = "candidates"
TREES: dict[str, Any] = {"refit": True}
"""Settings of the trees that differ from the defaults."""
NUM_CANDIDATES, NUM_CANDIDATES_OF_FEW = 50, 200
FEW_SEQUENCES = 500
"""With fewer validation sequences, `NUM_CANDIDATES_OF_FEW` candidates are used, so that the next item is among them in
enough sequences."""
LEAST_SEQUENCES = 67
"""Minimum number of validation sequences, which are split again for the trees. Each part needs 10 sequences whose next item
is among the candidates."""
VERY_FEW_SEQUENCES, SHARES_OF_VERY_FEW = 250, (0.4, 0.3, 0.3)
"""With fewer validation sequences, the shares of train, validation and blend. By default validation has 15 %, which may be
fewer than 10 such sequences."""
FEW_USERS, MANY_EVENTS_PER_USER = 5_000, 40
"""With fewer users, or at least this mean number of events per user, a preset of MovieLens is used."""
MANY_EVENTS = 500_000
"""With at least this number of events, the preset is that of MovieLens 1M instead of 100K."""
FOLLOW_S, FOLLOW_PER_SEQUENCE_S, FOLLOW_PER_SCORE_S = 10.0, 4e-4, 4e-8
"""Upper bounds of the seconds to predict and to prepare candidates: a constant, for each predicted sequence, and for each
item of each sequence. With 67,089 sequences and 12,101 items it took 55 seconds on two cores."""
FINISH_S, FINISH_PER_SEQUENCE_S = 5.0, 6e-4
"""The same for the predictions of all members, their combination and comparison, and the report: 28 seconds with the same
data."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """SASRec with the preset of the most similar dataset, then the trees."""
    sequences = manifest["splits"]["validation"]["rows"]
    if sequences < LEAST_SEQUENCES:
        raise UserError(
            f"the validation split has {sequences} sequences, and trees need at least {LEAST_SEQUENCES} for training: "
            "give data of more users, or, with split=time, other values of validation_from and test_from"
        )
    sasrec = PlannedMember(name="sasrec", kind="neural", settings=_preset(manifest), share=10.0, least_seconds=25.0)
    return [sasrec, *trees("lightgbm", "xgboost", data=CANDIDATES, **TREES)]


def follow_up(manifest: dict[str, Any], data: Path, rankings: Path) -> FollowUp:
    """The preparation of candidates, the best items of all ranking files, on which trees are trained."""
    num_sequences = manifest["splits"]["validation"]["rows"]
    num_candidates = NUM_CANDIDATES_OF_FEW if num_sequences < FEW_SEQUENCES else NUM_CANDIDATES
    settings: dict[str, Any] = {"data": str(data), "rankings": (str(rankings),), "num_candidates": num_candidates}
    if num_sequences < VERY_FEW_SEQUENCES:
        settings["shares"] = SHARES_OF_VERY_FEW
    num_predicted = sum(manifest["splits"][split]["rows"] for split in manifest["splits"] if split != "train")
    seconds = FOLLOW_S + num_predicted * (FOLLOW_PER_SEQUENCE_S + FOLLOW_PER_SCORE_S * manifest["items"])
    finish_seconds = FINISH_S + FINISH_PER_SEQUENCE_S * num_predicted
    return FollowUp(recipe=CANDIDATES, settings=settings, seconds=seconds, finish_seconds=finish_seconds)


def _preset(manifest: dict[str, Any]) -> dict[str, Any]:
    """The preset of MovieLens for few users or long histories, else that of Amazon Beauty."""
    if manifest["events"] >= MANY_EVENTS_PER_USER * manifest["users"] or manifest["users"] < FEW_USERS:
        name = "ml-1m" if manifest["events"] >= MANY_EVENTS else "ml-100k"
    else:
        name = "beauty"
    return preset(Path(__file__).parent, name)
