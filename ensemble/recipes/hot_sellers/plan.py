"""The members that scripts/fit.py trains, as in `make demo`."""

from typing import Any

from ensemble.pipeline.plan import PlannedMember, trees


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """Tree members first, since they take a small part of the time."""
    transformer = PlannedMember(name="transformer", kind="neural", share=4.0, least_seconds=20.0)
    return [*trees("xgboost", "lightgbm", refit=True), transformer]
