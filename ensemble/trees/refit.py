"""Boosters that are trained again on more rows, with the number of trees that early stopping chose.

Boosters trained on train and validation predict the blend split, on which the ensemble is fitted. Boosters trained on blend
too predict the later splits and new rows.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data.inputs import BLEND, LEARNED
from ensemble.errors import UserError
from ensemble.trees import copies, rows
from ensemble.trees.boosting import Training
from ensemble.trees.settings import TreesConfig

BEFORE_BLEND = ("train", "validation")
COST_OF_REFIT, COST_OF_LINEAR_REFIT = 1.5, 0.2
"""Upper bounds of the time of a refit, as a multiple of the time of the training with early stopping. In a refit a linear
model is fitted with one penalty instead of many."""


def share_of_time(config: TreesConfig) -> float:
    """The share of a limited time that is reserved for both refits."""
    cost_of_one = COST_OF_LINEAR_REFIT if config.library == "linear" else COST_OF_REFIT
    cost = 2 * config.num_refits * cost_of_one if config.refit else 0.0
    return cost / (1 + cost)


def num_learned(config: TreesConfig, manifest: dict[str, Any]) -> int:
    """The largest number of rows that are learned at once: those of `train`, or with `config.refit` of all `LEARNED`."""
    splits = LEARNED if config.refit else ("train",)
    return sum(manifest["splits"][name]["rows"] for name in splits if name in manifest["splits"])


def refuse_common_groups(config: TreesConfig, group: str) -> None:
    """Raise `UserError` if splits that a refit joins have groups with the same number, which would become one group.

    group : the column of the group
    """
    seen: dict[int, str] = {}
    manifest = rows.tree_manifest(config.data)
    for split in (name for name in LEARNED if name in manifest["splits"]):
        numbers = np.unique(rows.TreeData(config.data, split, manifest).column(group)).tolist()
        if common := [number for number in numbers if number in seen]:
            raise UserError(
                f"refit=true joins the splits {seen[common[0]]} and {split}, which both have the {group} {common[0]}: "
                "prepare the data with other numbers in each split, or train with refit=false"
            )
        seen |= dict.fromkeys(numbers, split)


def boosters(
    library: ModuleType,
    config: TreesConfig,
    splits: Sequence[str],
    num_rounds: int,
    manifest: dict[str, Any],
    training: Training,
) -> Iterator[Any]:
    """Boosters with `num_rounds` trees, trained on the rows of several splits together, each with its own seed.

    Their number is `config.num_refits`, or smaller if the time does not suffice, but at least one.
    """
    group = training.group
    shards = (rows.TreeData(config.data, split, manifest, group.rank, group.num_ranks) for split in splits)
    joined = functools.reduce(rows.TreeData.joined, shards)
    validation = rows.TreeData(config.data, "validation", manifest)
    for number in range(config.num_refits):
        if number and any(group.gather(training.seconds_left() <= 0)):
            return
        page_folder = training.page_folder and training.page_folder / f"{splits[-1]}.{number}"
        if page_folder:
            page_folder.mkdir()
        refit = Training(group=group, page_folder=page_folder, stop_requested=training.stop_requested, is_refit=True)
        seeded = dataclasses.replace(config, num_rounds=num_rounds, seed=config.seed + number)
        yield copies.train_one(library, seeded, joined, validation, refit)[0]


def on_blend(
    library: ModuleType, config: TreesConfig, result: copies.TrainingResult, manifest: dict[str, Any], training: Training
) -> copies.TrainingResult | None:
    """The models for the splits after blend, trained on blend too; None without a split blend, or if no time is left."""
    if BLEND not in manifest["splits"] or any(training.group.gather(training.seconds_left() <= 0)):
        return None
    scaling = result.models[0].scaling
    refits = boosters(library, config, LEARNED, result.best_round, manifest, training)
    return dataclasses.replace(result, models=[copies.Model(booster=booster, scaling=scaling) for booster in refits])
