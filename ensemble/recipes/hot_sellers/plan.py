"""The members that scripts/fit.py trains, as in `make demo`."""

from typing import Any

from ensemble.pipeline.plan import PlannedMember, trees

FEW_ROWS, REFITS_OF_FEW = 30_000, 3
"""With fewer training rows, trees are refitted with several seeds. Their mean was better on blend in all ten trials on five
data sets, most with few rows, whose trees differ most and take the least time."""


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """Tree members first, since they take a small part of the time."""
    num_refits = REFITS_OF_FEW if about["splits"]["train"]["rows"] < FEW_ROWS else 1
    settings = {"refit_epochs": 1.0}
    transformer = PlannedMember(name="transformer", kind="neural", settings=settings, share=4.0, least_seconds=20.0)
    return [*trees("xgboost", "lightgbm", refit=True, num_refits=num_refits), transformer]
