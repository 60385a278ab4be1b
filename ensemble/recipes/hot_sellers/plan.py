"""The members that scripts/fit.py trains, as in `make demo`."""

from typing import Any

from ensemble.pipeline.plan import PlannedMember


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """Tree members first, since they take a small part of the time."""
    trees = [
        PlannedMember(name=library, kind="trees", settings={"library": library, "refit": True})
        for library in ("xgboost", "lightgbm")
    ]
    return [*trees, PlannedMember(name="transformer", kind="neural", share=4.0, least_seconds=20.0)]
