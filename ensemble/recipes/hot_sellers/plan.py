"""The members that scripts/fit.py trains, as in `make demo`."""

from typing import Any

from ensemble.pipeline.plan import PlannedMember, trees

FEW_ROWS, REFITS_OF_FEW = 30_000, 3
"""With fewer training rows, trees are refitted with several seeds. Their mean was better on blend in all ten trials on five
data sets, most with few rows, whose trees differ most and take the least time. The network is refitted too, if a trial on
blend says that it helps. With more rows it did in one of five trials on generated markets, and takes a fifth of the time."""


def plan(about: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """Tree members first, since they take a small part of the time."""
    has_few_rows = about["splits"]["train"]["rows"] < FEW_ROWS
    num_refits, settings = (REFITS_OF_FEW, {"refit_epochs": 1.0}) if has_few_rows else (1, {})
    transformer = PlannedMember(name="transformer", kind="neural", settings=settings, share=4.0, least_seconds=20.0)
    return [*trees("xgboost", "lightgbm", refit=True, num_refits=num_refits), transformer]
