"""CatBoost: symmetric trees. Features with up to 10 categories are one-hot encoded; the categories of others are replaced by
statistics of the target, computed in a random order of the rows.

CatBoost cannot add one tree at a time. So each copy of a cross-validation is stopped early by its own rows, and all copies
then get the mean of their best numbers of trees. CatBoost is optional: pip install 'accelerate-ensemble[catboost]'.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from ensemble.errors import UserError
from ensemble.task import ABSOLUTE_ERROR
from ensemble.trees import copies, memory
from ensemble.trees.boosting import Scores, Training
from ensemble.trees.objective import Objective, dataset_of, from_raw, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

try:
    import catboost
except ModuleNotFoundError:
    raise UserError("CatBoost is not installed: pip install 'accelerate-ensemble[catboost]', or leave it out") from None

FILE = "model.cbm"
OBJECTIVES = {"binary": "Logloss", "regression": "RMSE", ABSOLUTE_ERROR: "MAE", "multiclass": "MultiClass"}
OUTPUT_BY_OBJECTIVE = {"Logloss": "probability", "RMSE": "value", "MAE": "value", "MultiClass": "probabilities"}
PROBED_TREES = 6
"""The number of trees with which the time of a tree is measured."""
MISSING_CATEGORY = -1


def parameters(config: TreesConfig, objective: Objective, num_features: int) -> dict[str, Any]:
    copies.check_learnable(config, objective)
    num_bins = memory.num_bins(num_features)
    return {
        **({"border_count": num_bins - 2} if num_bins < memory.BINS else {}),  # the default is 254
        "loss_function": OBJECTIVES[objective.loss],
        **({"classes_count": objective.num_classes} if objective.kind == "multiclass" else {}),
        "learning_rate": config.learning_rate,
        "depth": max(1, min(10, round(math.log2(config.max_leaves)))),
        "l2_leaf_reg": config.l2,
        "iterations": config.num_rounds,
        "random_seed": config.seed,
        "thread_count": config.threads,
        "max_ctr_complexity": 1,
        "one_hot_max_size": 10,
        "allow_writing_files": False,
        "logging_level": "Silent",
    }


def pool(objective: Objective, rows: TreeData) -> Any:
    dataset = dataset_of(objective, rows)
    assert dataset.target is not None
    label = dataset.target if objective.kind == "regression" else dataset.target.astype(np.int64)
    names = list(rows.categories)
    features = frame(pl.DataFrame(dataset.rows.feature_table()), names)
    return catboost.Pool(features, label=label, weight=dataset.weight, cat_features=names)


def frame(features: pl.DataFrame, categories: Sequence[str]) -> pl.DataFrame:
    """The features with the columns of `categories` as integers."""
    return features.with_columns(pl.col(categories).fill_nan(MISSING_CATEGORY).cast(pl.Int64))


def train_copies(
    config: TreesConfig, parts: Sequence[tuple[TreeData, TreeData | None]], training: Training, run: Callable[..., Any]
) -> tuple[list[Any], list[Scores], int]:
    """Train a booster on each of `parts`; `copies.train_separately` describes the arguments.

    Returns the boosters, the mean of their losses after each tree up to the best number, and this number: the rounded mean
    of their own best numbers of trees. Without rows for early stopping, there are no losses and `config.num_rounds` trees.
    """
    objectives = [objective_of(config, rows) for rows, _ in parts]
    results = copies.train_separately(
        config, parts, training, lambda model: catboost.CatBoost().load_model(blob=model), train_copy, run
    )
    boosters = [booster for booster, _ in results]
    curves = [
        curve * (objective.scaling.scale if objective.kind == "regression" else 1)
        for objective, (_, curve) in zip(objectives, results, strict=True)
    ]
    if not all(len(curve) for curve in curves):
        return boosters, [], config.num_rounds
    best = max(1, round(float(np.mean([np.argmin(curve) + 1 for curve in curves]))))
    metric = copies.LOSS_OF[objectives[0].loss]
    means = np.mean([np.pad(curve, (0, max(0, best - len(curve))), "edge")[:best] for curve in curves], axis=0)
    return boosters, [{metric: float(value)} for value in means], best


def train_copy(
    config: TreesConfig, number: int, rows: TreeData, stop: TreeData | None, is_over: Callable[[], bool]
) -> tuple[Any, np.ndarray]:
    """The booster of copy `number`, trained until `is_over` returns true, and its loss on the rows `stop` after each tree.

    The losses, (T,), are on the scale of the learned target; they are empty without `stop`.
    """
    objective = objective_of(config, rows)
    booster = catboost.CatBoost({**parameters(config, objective, len(rows.features)), "random_seed": config.seed + number})
    early = {} if stop is None else {"early_stopping_rounds": config.early_stopping_rounds}
    held_out = None if stop is None else pool(objective, stop)
    callbacks = [SimpleNamespace(after_iteration=lambda _: not is_over())]  # CatBoost stops if the result is false
    booster.fit(pool(objective, rows), eval_set=held_out, use_best_model=False, callbacks=callbacks, **early)
    evaluated = booster.get_evals_result().get("validation", {})
    return booster, np.array(evaluated.get(OBJECTIVES[objective.loss], ()))


def in_time(config: TreesConfig, rows: TreeData, num_copies: int, seconds_left: float) -> TreesConfig:
    """The settings, with a higher learning rate if the time for `num_copies` copies with rows like these is short."""
    if not math.isfinite(seconds_left):
        return config
    config_of_a_copy, seconds = copies.share_of_each(config, num_copies, seconds_left)
    seconds_of_a_tree = _seconds_of_a_tree(config_of_a_copy, objective_of(config, rows), rows)
    rate = copies.rate_in_time(config.learning_rate, seconds_of_a_tree, seconds)
    return dataclasses.replace(config, learning_rate=rate)


def _seconds_of_a_tree(config: TreesConfig, objective: Objective, rows: TreeData) -> float:
    """The mean training time of a tree, over `PROBED_TREES` trees without the first."""
    times: list[float] = []

    def after_iteration(_: Any) -> bool:
        times.append(time.monotonic())
        return True

    settings = {**parameters(config, objective, len(rows.features)), "iterations": PROBED_TREES}
    callbacks = [SimpleNamespace(after_iteration=after_iteration)]
    catboost.CatBoost(settings).fit(pool(objective, rows), callbacks=callbacks)
    return (times[-1] - times[0]) / max(1, len(times) - 1)


def first_rounds(booster: Any, num_rounds: int) -> Any:
    shorter = booster.copy()
    shorter.shrink(min(num_rounds, booster.tree_count_))
    # These fields differ between equal trainings: a random id, the time, the number of threads
    metadata = shorter.get_metadata()
    metadata["model_guid"] = metadata["train_finish_time"] = ""
    params = json.loads(metadata["params"])
    for part in ("flat_params", "system_options"):
        params[part]["thread_count"] = 1
    metadata["params"] = json.dumps(params, sort_keys=True)
    return shorter


def to_bytes(booster: Any) -> bytes:
    return bytes(booster._serialize_model())


def load(file: Path) -> Any:
    booster = catboost.CatBoost()
    try:
        booster.load_model(str(file), format="cbm")
    except catboost.CatBoostError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    return booster


def feature_names(booster: Any) -> list[str]:
    return [str(name) for name in booster.feature_names_]


def _frame_of(booster: Any, features: np.ndarray) -> pl.DataFrame:
    names = feature_names(booster)
    return frame(pl.DataFrame(features, schema=names), [names[number] for number in booster.get_cat_feature_indices()])


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities or values (n,), or probabilities of classes (n, K), for features (n, F)."""
    loss = booster.get_all_params()["loss_function"]
    raw = np.asarray(booster.predict(_frame_of(booster, features), prediction_type="RawFormulaVal", thread_count=1))
    return from_raw(OUTPUT_BY_OBJECTIVE[loss], raw)


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """The same as `xgb.contributions`; 0 for a class without a row in training."""
    data = catboost.Pool(_frame_of(booster, features), cat_features=booster.get_cat_feature_indices())
    parts = booster.get_feature_importance(data, type="ShapValues", thread_count=1)
    if parts.ndim == 2:
        return parts
    classes = json.loads(booster.get_metadata()["class_params"])
    of_all_classes = np.zeros((len(parts), classes["classes_count"], parts.shape[2]))
    of_all_classes[:, classes["class_to_label"]] = parts  # CatBoost leaves out the others
    return of_all_classes


def importance(booster: Any) -> dict[str, float]:
    """The mean change of the predictions when the value of a feature changes, by feature, in percent of the sum."""
    changes = booster.get_feature_importance(type="PredictionValuesChange")
    return dict(zip(feature_names(booster), map(float, changes), strict=True))
