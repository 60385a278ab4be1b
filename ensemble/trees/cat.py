"""CatBoost: symmetric trees; categories become statistics of the target, computed in a random order of the rows.

It cannot add one tree at a time. So each copy of a cross-validation is stopped by its own rows, and all copies then get the
mean of the numbers of trees that were found. It is optional: pip install 'accelerate-ensemble[catboost]'.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ensemble.errors import UserError
from ensemble.trees.boosting import Scores, Stopped, Training
from ensemble.trees.contributions import of_classes
from ensemble.trees.copies import rate_in_time
from ensemble.trees.objective import Goal, goal_of, lesson_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

try:
    import catboost
except ModuleNotFoundError:
    raise UserError("CatBoost is not installed: pip install 'accelerate-ensemble[catboost]', or leave it out") from None

FILE = "model.cbm"
OBJECTIVES = {"binary": "Logloss", "regression": "RMSE", "multiclass": "MultiClass"}
METRICS = {"Logloss": "log_loss", "RMSE": "root_mean_squared_error", "MultiClass": "multiclass_log_loss"}
PROBED_TREES = 6
UNKNOWN = -1
"""The category of a missing value."""


class _Watch:
    """Ends a training that was asked to stop, or whose time is up."""

    def __init__(self, is_over: Callable[[], bool]):
        self._is_over = is_over

    def after_iteration(self, info: Any) -> bool:
        return not self._is_over()


def parameters(config: TreesConfig, goal: Goal) -> dict[str, Any]:
    """The settings in CatBoost's words."""
    if goal.objective not in OBJECTIVES:
        raise UserError(f"library=catboost does not learn objective={goal.objective} here: take xgboost or lightgbm")
    if any(goal.monotone):
        raise UserError("monotone= is not passed on to CatBoost: take xgboost or lightgbm")
    return {
        "loss_function": OBJECTIVES[goal.objective],
        **({"classes_count": goal.num_classes} if goal.objective == "multiclass" else {}),
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


def pool(goal: Goal, rows: TreeData) -> Any:
    """Rows with their targets as CatBoost reads them."""
    learned = lesson_of(goal, rows)
    features = np.concatenate(list(learned.rows.batches()))
    assert learned.target is not None
    label = learned.target if goal.objective == "regression" else learned.target.astype(np.int64)
    names = list(rows.categories)
    return catboost.Pool(frame(features, rows.features, names), label=label, weight=learned.weight, cat_features=names)


def frame(features: np.ndarray, names: Sequence[str], categories: Sequence[str]) -> pd.DataFrame:
    """Features (n, F) with the columns of `categories` as whole numbers."""
    columns: dict[str, np.ndarray] = {}
    for name, column in zip(names, features.T, strict=True):
        columns[name] = np.where(np.isnan(column), UNKNOWN, column).astype(np.int64) if name in categories else column
    return pd.DataFrame(columns, copy=False)


def grow(
    config: TreesConfig,
    parts: Sequence[tuple[TreeData, TreeData | None]],
    training: Training,
    run: Callable[..., Any],
) -> tuple[list[Any], list[Scores], int]:
    """A booster for each of `parts`, its rows and those that stop it; the mean scores, and the mean of the best rounds.

    Without rows that stop them the boosters get `config.num_rounds` trees. run : maps a function, several parts at once.
    """
    goals = [goal_of(config, rows) for rows, _ in parts]
    num_at_once = max(1, min(config.threads, len(parts)))
    config = dataclasses.replace(config, threads=max(1, config.threads // num_at_once))
    seconds = training.seconds_left() / math.ceil(len(parts) / num_at_once)
    if math.isfinite(seconds) and parts[0][1] is not None:
        rate = rate_in_time(config.learning_rate, _seconds_of_a_tree(config, goals[0], parts[0][0]), seconds)
        config = dataclasses.replace(config, learning_rate=rate)

    def one(number: int) -> tuple[Any, np.ndarray]:
        if number in training.stored:
            copy = training.stored[number]
            return catboost.CatBoost().load_model(blob=copy.model), copy.predictions
        began = time.monotonic()

        def is_over() -> bool:
            return bool(training.asked()) or time.monotonic() - began > seconds

        return grow_one(config, number, *parts[number], is_over)

    results = list(run(one, range(len(parts))))
    if training.asked():
        raise Stopped
    boosters = [booster for booster, _ in results]
    curves = [
        curve * (goal.scaling.scale if goal.objective == "regression" else 1)
        for goal, (_, curve) in zip(goals, results, strict=True)
    ]
    if not all(len(curve) for curve in curves):
        return boosters, [], config.num_rounds
    best = max(1, round(float(np.mean([np.argmin(curve) + 1 for curve in curves]))))
    metric = METRICS[OBJECTIVES[goals[0].objective]]
    means = np.mean([np.pad(curve, (0, max(0, best - len(curve))), "edge")[:best] for curve in curves], axis=0)
    return boosters, [{metric: float(value)} for value in means], best


def grow_one(
    config: TreesConfig, number: int, rows: TreeData, stop: TreeData | None, is_over: Callable[[], bool]
) -> tuple[Any, np.ndarray]:
    """The booster of copy `number`, and after each tree its loss on the rows `stop`, if there are any, (T,)."""
    goal = goal_of(config, rows)
    booster = catboost.CatBoost({**parameters(config, goal), "random_seed": config.seed + number})
    early = {} if stop is None else {"early_stopping_rounds": config.early_stopping_rounds}
    held_out = None if stop is None else pool(goal, stop)
    booster.fit(pool(goal, rows), eval_set=held_out, use_best_model=False, callbacks=[_Watch(is_over)], **early)
    evaluated = booster.get_evals_result().get("validation", {}) if stop is not None else {}
    return booster, np.array(evaluated.get(OBJECTIVES[goal.objective], ()))


def _seconds_of_a_tree(config: TreesConfig, goal: Goal, rows: TreeData) -> float:
    """Measured on a few trees, after the first."""
    times: list[float] = []

    class Clock:
        def after_iteration(self, info: Any) -> bool:
            times.append(time.monotonic())
            return True

    few = {**parameters(config, goal), "iterations": PROBED_TREES}
    catboost.CatBoost(few).fit(pool(goal, rows), callbacks=[Clock()])
    return (times[-1] - times[0]) / max(1, len(times) - 1)


def cut(booster: Any, num_rounds: int) -> Any:
    """The booster of the first rounds."""
    shorter = booster.copy()
    shorter.shrink(min(num_rounds, booster.tree_count_))
    about = shorter.get_metadata()  # by which equal models differ: a random name, the time, the number of threads
    about["model_guid"] = about["train_finish_time"] = ""
    params = json.loads(about["params"])
    for part in ("flat_params", "system_options"):
        params[part]["thread_count"] = 1
    about["params"] = json.dumps(params, sort_keys=True)
    return shorter


def to_bytes(booster: Any) -> bytes:
    return bytes(booster._serialize_model())


def save(booster: Any, file: Path) -> None:
    booster.save_model(str(file), format="cbm")


def load(file: Path) -> Any:
    booster = catboost.CatBoost()
    try:
        booster.load_model(str(file), format="cbm")
    except catboost.CatBoostError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    return booster


def feature_names(booster: Any) -> list[str]:
    return [str(name) for name in booster.feature_names_]


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities or values, shape (n,), of classes (n, K), for features of shape (n, F)."""
    names, loss = feature_names(booster), booster.get_all_params()["loss_function"]
    categories = [names[number] for number in booster.get_cat_feature_indices()]
    raw = np.asarray(booster.predict(frame(features, names, categories), prediction_type="RawFormulaVal", thread_count=1))
    if loss == "Logloss":
        return 1 / (1 + np.exp(-raw))
    if loss == "MultiClass":
        odds = np.exp(raw - raw.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)
    return raw


def contributions(booster: Any, features: np.ndarray, of_class: np.ndarray | None = None) -> np.ndarray:
    """Each feature's part of the log odds or value, and what is there without any of them: shape (n, F + 1).

    With several classes, of those in `of_class`: (n,), or (n, m) for a result of (n, m, F + 1); None for the likeliest one.
    """
    names = feature_names(booster)
    categories = [names[number] for number in booster.get_cat_feature_indices()]
    data = catboost.Pool(frame(features, names, categories), cat_features=categories)
    parts = booster.get_feature_importance(data, type="ShapValues", thread_count=1)
    if parts.ndim == 3:
        of_class = predict(booster, features).argmax(axis=1) if of_class is None else of_class
        parts = of_classes(parts, of_class)
    return parts


def importance(booster: Any) -> dict[str, float]:
    """Share of the changes of predictions by feature."""
    gain = booster.get_feature_importance(type="PredictionValuesChange")
    return dict(zip(feature_names(booster), map(float, gain), strict=True))
