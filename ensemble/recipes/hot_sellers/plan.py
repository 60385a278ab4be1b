"""The members that scripts/fit.py trains, also in `make demo`."""

from typing import Any

from ensemble.pipeline.plan import PlannedMember, trees

FEW_ROWS, REFITS_OF_FEW = 30_000, 3
"""With fewer than `FEW_ROWS` training rows, trees are refitted with `REFITS_OF_FEW` seeds. The mean of the refitted trees
had a better score on blend in all ten trials on five datasets. Most of these have few rows, where trees of different seeds
differ most and training takes the least time. The network is refitted too, if a trial improves its score on blend. With more
rows, a refit of the network helped in one of five trials on generated markets, and took a fifth of the time."""


def plan(manifest: dict[str, Any], num_threads: int) -> list[PlannedMember]:
    """The tree members, then the network: trees come first, since they take a small part of the time."""
    has_few_rows = manifest["splits"]["train"]["rows"] < FEW_ROWS
    num_refits, settings = (REFITS_OF_FEW, {"refit_epochs": 1.0}) if has_few_rows else (1, {})
    transformer = PlannedMember(name="transformer", kind="neural", settings=settings, share=4.0, least_seconds=20.0)
    return [*trees("xgboost", "lightgbm", refit=True, num_refits=num_refits), transformer]
