"""LightGBM, trained from an Arrow table of float32, which takes the least memory."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.task import ABSOLUTE_ERROR
from ensemble.trees import memory
from ensemble.trees.boosting import Scores, Training, boost
from ensemble.trees.distributed import RankGroup, free_port
from ensemble.trees.objective import Dataset, Objective, ValidationMetrics, dataset_of, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

with imports.without("sklearn", "pandas"):
    import lightgbm
    from lightgbm.basic import _InnerPredictor

FILE = "model.txt"
OBJECTIVES = {
    "binary": "binary",
    "regression": "regression",
    ABSOLUTE_ERROR: "regression_l1",
    "multiclass": "multiclass",
    "ranking": "lambdarank",
}
MAX_GROUP_ROWS = 10_000
"""Rows of a group that LightGBM's lambdarank accepts; a larger group is divided at random into equal parts."""
LARGEST_LEAF_VALUE = 4.0
"""The largest absolute value of a leaf for several classes, before it is multiplied by the learning rate. Without this limit
the predictions of rare classes diverge: on KDD Cup 1999 (324,000 rows, 23 classes, learning rate 0.3) the log loss is 0.233
instead of 0.001."""
MOST_DRAWS = 16
"""The largest number of tries of a round in which LightGBM adds no tree, with other rows and features each time."""
LEAF_ROWS, MIN_LEAVES = 20, 20
"""LightGBM's default `min_data_in_leaf`; a copy with fewer than LEAF_ROWS × MIN_LEAVES rows gets rows / MIN_LEAVES."""
GROUP_ROWS, MIN_GROUPS = (10, 100), 40
"""The range of `min_data_per_group`, the least number of rows of a category in a split; for a copy it is rows / MIN_GROUPS.
LightGBM's default is 100. Loss of five folds: 1.1 % lower on ames (2,198 rows, 40 columns of categories), 1.5 % on 600 of
these rows, 0.3 % on 600 rows of adult. With 3,000 and 4,000 rows, 10 and 30 changed it by −0.4 to +0.3 % on six tables."""


class Booster:
    """A `boosting.Booster`. On several ranks, it has this rank's training rows, and all validation rows."""

    def __init__(self, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training):
        self.objective = objective_of(config, rows)
        settings = parameters(config, self.objective) | _network(training.group, config.timeout_s)
        settings["max_bin"] = memory.num_bins(len(rows.features)) - 1  # without that of missing values
        if training.group.num_ranks == 1:  # several ranks must keep the same histograms
            settings["histogram_pool_size"] = memory.histogram_bytes(len(rows), len(rows.features)) / (1 << 20)
        if training.copy is not None:
            settings["min_data_per_group"] = int(np.clip(len(rows) // MIN_GROUPS, *GROUP_ROWS))
            if len(rows) < MIN_LEAVES * LEAF_ROWS:
                settings["min_data_in_leaf"] = max(1, len(rows) // MIN_LEAVES)
        data, held_out = training.binned(
            lambda: datasets(settings, dataset_of(self.objective, rows), Dataset(rows=validation))
        )
        self._row_fraction = config.row_fraction
        if training.model is not None:
            self._resumed = lightgbm.Booster(model_str=training.model.decode())  # the predictor does not keep it alive
            predictor = _InnerPredictor.from_booster(self._resumed, pred_parameter={"num_threads": config.threads})
            data._set_predictor(predictor)
            held_out._set_predictor(predictor)
        self.booster = lightgbm.Booster(settings, data)
        self.booster.add_valid(held_out, "validation")

    def seed(self, seed: int) -> None:
        # LightGBM reads a seed only when it changes, and that of the rows only when their fraction changes. The temporary
        # fraction is above 0.5, since below it LightGBM copies the drawn rows.
        self.booster.reset_parameter({"bagging_fraction": (1 + self._row_fraction) / 2, "feature_fraction_seed": seed + 1})
        self.booster.reset_parameter(
            {"bagging_fraction": self._row_fraction, "feature_fraction_seed": seed, "bagging_seed": seed}
        )

    def update(self) -> np.ndarray:
        num_trees = self.booster.current_iteration()
        for _ in range(MOST_DRAWS):  # no tree is added if the drawn rows and features allow no split
            self.booster.update()
            if self.booster.current_iteration() > num_trees:
                break
        predictions: list[np.ndarray] = []

        def copy(prediction: np.ndarray, _: Any) -> list[Any]:
            predictions.append(np.array(prediction))
            return []

        # LightGBM has computed the predictions of the validation rows already
        self.booster.eval_valid(copy)
        return predictions[0]

    def first_rounds(self, num_rounds: int) -> Any:
        return lightgbm.Booster(model_str=to_bytes(self.booster, num_rounds).decode())

    def to_bytes(self) -> bytes:
        return to_bytes(self.booster)


def datasets(settings: dict[str, Any], dataset: Dataset, validation: Dataset) -> tuple[Any, Any]:
    sizes = dataset.group_sizes
    if sizes is not None and sizes.max(initial=0) > MAX_GROUP_ROWS:
        dataset = _shuffled(dataset, sizes)
    data = lightgbm.Dataset(
        dataset.rows.feature_table(),
        label=dataset.target,
        weight=dataset.weight,
        group=None if sizes is None else divided(sizes),
        categorical_feature=list(dataset.rows.categories) or "auto",
        params=settings,
    )
    return data, data.create_valid(validation.rows.feature_table(), label=validation.target, params=settings)


def _shuffled(dataset: Dataset, group_sizes: np.ndarray) -> Dataset:
    """The rows of each group in a random order: in that of a file, which may be sorted by target, parts would differ."""
    key = np.random.default_rng(0).random(len(dataset.rows))
    order = np.lexsort((key, np.repeat(np.arange(len(group_sizes)), group_sizes)))
    target, weight = (None if values is None else values[order] for values in (dataset.target, dataset.weight))
    return dataclasses.replace(dataset, rows=dataset.rows.take(order), target=target, weight=weight)


def divided(group_sizes: np.ndarray) -> np.ndarray:
    """The sizes of groups of at most `MAX_GROUP_ROWS` rows, larger ones divided into almost equal parts."""
    parts = [np.diff(np.linspace(0, size, -(-size // MAX_GROUP_ROWS) + 1).astype(int)) for size in group_sizes.tolist()]
    return np.concatenate(parts)


def parameters(config: TreesConfig, objective: Objective) -> dict[str, Any]:
    return {
        "objective": OBJECTIVES[objective.loss],
        **({"num_class": objective.num_classes} if objective.num_classes > 1 else {}),
        **({"monotone_constraints": list(objective.monotone)} if any(objective.monotone) else {}),
        "metric": "None",
        "num_leaves": config.max_leaves,
        "learning_rate": config.learning_rate,
        "min_sum_hessian_in_leaf": config.min_leaf_weight,
        "bagging_fraction": config.row_fraction,
        "bagging_freq": 1,
        "feature_fraction": config.column_fraction,
        "lambda_l2": config.l2,
        **({"max_delta_step": LARGEST_LEAF_VALUE} if objective.kind == "multiclass" else {}),
        "seed": config.seed,
        "num_threads": config.threads,
        "deterministic": True,
        "force_col_wise": True,
        "bin_construct_sample_cnt": memory.SAMPLED_ROWS["low" if config.memory == "low" else "in_core"],
        "verbosity": -1,
    }


def train(config: TreesConfig, rows: TreeData, validation: TreeData, training: Training) -> tuple[Any, list[Scores], int]:
    """The booster up to its best round, the validation scores after each round, and the number of the best round."""
    with training.group.wait_for_lost_rank():
        booster = Booster(config, rows, validation, training)
        score = None if training.is_refit else ValidationMetrics(booster.objective, validation)
        history, best = boost(config, booster.objective.metric, booster, score, training)
        return booster.first_rounds(best), history, best


def _network(group: RankGroup, timeout_s: float) -> dict[str, Any]:
    """The parameters with which LightGBM sums its histograms over the ranks."""
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
    """The trees, without the parameters after them, which contain addresses of machines."""
    return booster.model_to_string(num_iteration=num_rounds).partition("\nparameters:")[0].encode()


def load_first_rounds(model: bytes, num_rounds: int) -> Any:
    """A booster with the first rounds of the trees that `to_bytes` returned."""
    booster = lightgbm.Booster(model_str=model.decode())
    return lightgbm.Booster(model_str=to_bytes(booster, num_rounds).decode())


def load(file: Path) -> Any:
    """A booster that predicts on the calling thread alone, so that several threads may call it at once."""
    try:
        booster = lightgbm.Booster(model_file=file)
    except lightgbm.basic.LightGBMError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    booster.params["num_threads"] = 1
    return booster


def feature_names(booster: Any) -> list[str]:
    return booster.feature_name()


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, values or scores (n,), or probabilities of classes (n, K), for features (n, F)."""
    return np.asarray(booster.predict(features, num_threads=booster.params.get("num_threads", 0)))


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """The same as `xgb.contributions`."""
    parts = np.asarray(booster.predict(features, pred_contrib=True, num_threads=booster.params.get("num_threads", 0)))
    num_classes = booster.num_model_per_iteration()
    return parts.reshape(len(parts), num_classes, -1) if num_classes > 1 else parts


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature; 0 for features without a split."""
    gain = booster.feature_importance(importance_type="gain")
    return dict(zip(feature_names(booster), map(float, gain), strict=True))
