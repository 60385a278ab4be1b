"""LightGBM: on the panel's Arrow table, the leanest of its inputs. Numbers only: version 4.7 aborts on string columns."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.trees.boosting import Scores, Training, boost
from ensemble.trees.contributions import of_classes
from ensemble.trees.distributed import RankGroup, free_port
from ensemble.trees.memory import SAMPLED_ROWS
from ensemble.trees.objective import Goal, Judge, Lesson, goal_of, lesson_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

with imports.without("sklearn", "pandas"):
    import lightgbm
    from lightgbm.basic import _InnerPredictor

FILE = "model.txt"
OBJECTIVES = {"binary": "binary", "regression": "regression", "multiclass": "multiclass", "ranking": "lambdarank"}
MOST_RANKED = 10_000
"""Rows that LightGBM ranks against each other; a larger group is cut into equal parts."""
LEAF_ROWS, SMALL = 20, 20
"""Rows that LightGBM wants in a leaf; a part of 1 / SMALL of them in a copy with few rows."""


class Growth:
    """The booster and its data; on several ranks the data are this rank's rows, and the whole validation split."""

    def __init__(self, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training):
        self.goal = goal_of(config, rows)
        settings = parameters(config, self.goal) | _network(training.group, config.timeout_s)
        if training.is_copy and len(rows) < SMALL * LEAF_ROWS:  # else no leaf of a tiny table has enough rows
            settings["min_data_in_leaf"] = max(1, len(rows) // SMALL)
        data, held_out = training.binned(lambda: datasets(settings, lesson_of(self.goal, rows), Lesson(rows=validation)))
        self._judge, self._row_fraction = Judge(self.goal, validation), config.row_fraction
        if training.model is not None:
            self._before = lightgbm.Booster(model_str=training.model.decode())  # which the predictor does not keep alive
            data._set_predictor(_InnerPredictor.from_booster(self._before, pred_parameter={"num_threads": config.threads}))
            held_out._set_predictor(data._predictor)
        self.booster = lightgbm.Booster(settings, data)
        self.booster.add_valid(held_out, "validation")

    def seed(self, seed: int) -> None:
        # LightGBM looks at a seed only when it changes, and for rows only when their fraction does; it copies them below 0.5
        self.booster.reset_parameter({"bagging_fraction": (1 + self._row_fraction) / 2, "feature_fraction_seed": seed + 1})
        self.booster.reset_parameter(
            {"bagging_fraction": self._row_fraction, "feature_fraction_seed": seed, "bagging_seed": seed}
        )

    def grow(self) -> Scores:
        return self._judge(self.update())

    def update(self) -> np.ndarray:
        self.booster.update()
        kept: list[np.ndarray] = []

        def keep(prediction: np.ndarray, _: Any) -> list[Any]:
            kept.append(np.array(prediction))
            return []

        # What LightGBM keeps for the validation rows is taken, rather than predicted again
        self.booster.eval_valid(keep)
        return kept[0]

    def cut(self, num_rounds: int) -> Any:
        return lightgbm.Booster(model_str=to_bytes(self.booster, num_rounds).decode())

    def model(self) -> bytes:
        return to_bytes(self.booster)


def datasets(settings: dict[str, Any], lesson: Lesson, validation: Lesson) -> tuple[Any, Any]:
    sizes = lesson.group_sizes
    data = lightgbm.Dataset(
        table_of(lesson.rows),
        label=lesson.target,
        weight=lesson.weight,
        group=None if sizes is None else _cut(sizes),
        categorical_feature=list(lesson.rows.categories) or "auto",
        params=settings,
    )
    return data, data.create_valid(table_of(validation.rows), label=validation.target, params=settings)


def _cut(group_sizes: np.ndarray) -> np.ndarray:
    parts = [np.diff(np.linspace(0, size, -(-size // MOST_RANKED) + 1).astype(int)) for size in group_sizes.tolist()]
    return np.concatenate(parts)


def parameters(config: TreesConfig, goal: Goal) -> dict[str, Any]:
    """The settings in LightGBM's words."""
    return {
        "objective": OBJECTIVES[goal.objective],
        **({"num_class": goal.num_classes} if goal.num_classes > 1 else {}),
        **({"monotone_constraints": list(goal.monotone)} if any(goal.monotone) else {}),
        "metric": "None",
        "num_leaves": config.max_leaves,
        "learning_rate": config.learning_rate,
        "min_sum_hessian_in_leaf": config.min_leaf_weight,
        "bagging_fraction": config.row_fraction,
        "bagging_freq": 1,
        "feature_fraction": config.column_fraction,
        "lambda_l2": config.l2,
        "seed": config.seed,
        "num_threads": config.threads,
        "deterministic": True,
        "force_col_wise": True,
        "bin_construct_sample_cnt": SAMPLED_ROWS["low" if config.memory == "low" else "in_core"],
        "verbosity": -1,
    }


def train(
    config: TreesConfig, rows: TreeData, validation: TreeData, training: Training | None = None
) -> tuple[Any, list[Scores], int]:
    """The booster cut to its best round, the scores on validation after each round, and the number of that round."""
    training = training or Training()
    with training.group.explained():
        growth = Growth(config, rows, validation, training)
        history, best = boost(config, growth.goal.metric, growth, training)
        return growth.cut(best), history, best


def _network(group: RankGroup, timeout_s: float) -> dict[str, Any]:
    """What LightGBM must know to sum its histograms over the ranks: where each of them listens."""
    if group.num_ranks == 1:
        return {}
    port = free_port()
    machines = group.gather(f"{group.address}:{port}")
    return {
        "tree_learner": "data",
        "num_machines": group.num_ranks,
        "machines": ",".join(machines),
        "local_listen_port": port,
        "pre_partition": True,
        "time_out": math.ceil(timeout_s / 60),
    }


def to_bytes(booster: Any, num_rounds: int = -1) -> bytes:
    """The trees, without the parameters that follow them, in which the machines' addresses stand."""
    return booster.model_to_string(num_iteration=num_rounds).partition("\nparameters:")[0].encode()


def cut_model(model: bytes, num_rounds: int) -> Any:
    """The booster of the first rounds of a stored one."""
    whole = lightgbm.Booster(model_str=model.decode())
    return lightgbm.Booster(model_str=to_bytes(whole, num_rounds).decode())


def save(booster: Any, file: Path) -> None:
    file.write_bytes(to_bytes(booster))


def load(file: Path) -> Any:
    """A booster that predicts on the calling thread alone, so that several threads may ask it at once."""
    try:
        booster = lightgbm.Booster(model_file=file)
    except lightgbm.basic.LightGBMError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    booster.params["num_threads"] = 1
    return booster


def feature_names(booster: Any) -> list[str]:
    return booster.feature_name()


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, values or scores, shape (n,), of classes (n, K), for features of shape (n, F)."""
    return np.asarray(booster.predict(features, num_threads=booster.params.get("num_threads", 0)))


def contributions(booster: Any, features: np.ndarray, of_class: np.ndarray | None = None) -> np.ndarray:
    """Each feature's part of the log odds, value or score, and what is there without any of them: shape (n, F + 1).

    With several classes, of those in `of_class`: (n,), or (n, m) for a result of (n, m, F + 1); None for the likeliest one.
    """
    parts = np.asarray(booster.predict(features, pred_contrib=True, num_threads=booster.params.get("num_threads", 0)))
    num_classes = booster.num_model_per_iteration()
    if num_classes > 1:
        of_class = predict(booster, features).argmax(axis=1) if of_class is None else of_class
        parts = of_classes(parts.reshape(len(parts), num_classes, -1), of_class)
    return parts


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature, 0 for those never split on."""
    gain = booster.feature_importance(importance_type="gain")
    return dict(zip(feature_names(booster), map(float, gain), strict=True))


def table_of(rows: TreeData) -> pa.Table:
    table = rows.feature_table()
    assert all(pa.types.is_floating(kind) for kind in table.schema.types), "LightGBM aborts the process on strings"
    return table
