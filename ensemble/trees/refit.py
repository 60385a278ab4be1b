"""Boosters that are trained again on more rows, with the number of trees that early stopping chose.

Those of train and validation predict the blend split, on which the ensemble is fitted; those that also learned blend predict
the later splits and new rows.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from ensemble.data.inputs import BLEND, LEARNED
from ensemble.trees import copies, rows
from ensemble.trees.boosting import Training
from ensemble.trees.settings import TreesConfig

BEFORE_BLEND = ("train", "validation")
COST_OF_REFIT = 1.5
"""The most time of a refit, relative to the training with early stopping."""


def share_of_time(config: TreesConfig) -> float:
    """The share of a limited time that is reserved for both refits."""
    cost = 2 * config.num_refits * COST_OF_REFIT if config.refit else 0.0
    return cost / (1 + cost)


def boosters(
    library: ModuleType,
    config: TreesConfig,
    splits: Sequence[str],
    num_rounds: int,
    about: dict[str, Any],
    training: Training,
) -> Iterator[Any]:
    """Boosters with `num_rounds` trees, trained on the rows of several splits together, each with its own seed.

    There are `config.num_refits`, or as many as the time suffices for, but at least one.
    """
    group = training.group
    first, *others = (rows.TreeData(config.data, split, about, group.rank, group.num_ranks) for split in splits)
    for other in others:
        first = first.joined(other)
    validation = rows.TreeData(config.data, "validation", about)
    for number in range(config.num_refits):
        if number and any(group.gather(training.seconds_left() <= 0)):
            return
        page_folder = training.page_folder and training.page_folder / f"{splits[-1]}.{number}"
        if page_folder:
            page_folder.mkdir()
        refit = Training(group=group, page_folder=page_folder, stop_requested=training.stop_requested, is_refit=True)
        seeded = dataclasses.replace(config, num_rounds=num_rounds, seed=config.seed + number)
        yield library.train(seeded, first, validation, refit)[0]


def on_blend(
    library: ModuleType, config: TreesConfig, result: copies.TrainingResult, about: dict[str, Any], training: Training
) -> copies.TrainingResult | None:
    """The member for the splits after blend, trained on blend too; None for data without that split, and without time."""
    if BLEND not in about["splits"] or any(training.group.gather(training.seconds_left() <= 0)):
        return None
    refitted = boosters(library, config, LEARNED, result.best_round, about, training)
    models = [copies.Model(booster=booster, scaling=result.models[0].scaling) for booster in refitted]
    return dataclasses.replace(result, models=models)
