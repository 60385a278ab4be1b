"""The members of a table, chosen by measurement on the public tables; see README.md."""

from typing import Any

from ensemble.pipeline.plan import Planned

FEW_ROWS = 10_000
COMMON: dict[str, Any] = {"min_leaf_weight": 1.0, "row_fraction": 0.8, "column_fraction": 0.5, "early_stopping_rounds": 50}


def plan(about: dict[str, Any], num_threads: int) -> list[Planned]:
    """The members, the most valuable for their time first."""
    task = about["task"]
    is_small = about["splits"]["train"]["rows"] < FEW_ROWS
    leaves = 15 if is_small else 31
    trees: dict[str, dict[str, Any]] = {
        "lightgbm": {"library": "lightgbm", "max_leaves": leaves, "l2": 5.0},
        "catboost": {"library": "catboost", "max_leaves": 64, "learning_rate": 0.1, "l2": 3.0, "num_rounds": 2000},
        "xgboost": {"library": "xgboost", "max_leaves": leaves, "l2": 5.0},
    }
    if task["kind"] == "ranking":
        del trees["catboost"]
    planned = [Planned(name=name, kind="trees", settings={**COMMON, **of}) for name, of in trees.items()]
    if task["kind"] != "ranking":
        planned.append(Planned(name="tabm", kind="neural", share=2.0, least_seconds=20.0))
    return planned
