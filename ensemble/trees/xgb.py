"""XGBoost: trees from histograms of binned features.

A QuantileDMatrix is filled in batches, so the features before binning are never in memory as a whole. With memory=low, the
binned rows are not in memory as a whole either: an ExtMemQuantileDMatrix keeps them in files, and reads the files again for
each split of a tree node.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.task import ABSOLUTE_ERROR
from ensemble.trees import memory
from ensemble.trees.boosting import Scores, Stopped, Training, boost
from ensemble.trees.distributed import RankGroup
from ensemble.trees.objective import Dataset, Objective, ValidationMetrics, dataset_of, from_raw, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.settings import TreesConfig

with imports.without("sklearn", "pandas"):
    import xgboost
    from xgboost import collective
    from xgboost.tracker import RabitTracker

FILE = "model.ubj"
OBJECTIVES = {
    "binary": "binary:logistic",
    "regression": "reg:squarederror",
    ABSOLUTE_ERROR: "reg:absoluteerror",
    "multiclass": "multi:softprob",
    "ranking": "rank:ndcg",
}
_trackers: list[RabitTracker] = []
"""Trackers in use. This list keeps them alive: a tracker that is deleted after an exception warns of ranks that remain."""


class _Batches(xgboost.DataIter):
    """The rows of a dataset in batches; with a prefix, XGBoost stores each batch in a file whose name begins with it."""

    def __init__(self, dataset: Dataset, prefix: Path | None = None):
        super().__init__(cache_prefix=str(prefix) if prefix else None)
        self._rows = rows = dataset.rows
        # c for categories, q for numbers
        self._types = ["c" if name in rows.categories else "q" for name in rows.features] if rows.categories else None
        self._columns = {"label": dataset.target}
        if dataset.group_sizes is None:  # with groups, XGBoost takes one weight per group: see `matrix`
            self._columns["weight"] = dataset.weight
        self.reset()

    def reset(self) -> None:
        self._batches, self._num_passed = self._rows.batches(), 0

    def next(self, input_data: Any) -> bool:
        features = next(self._batches, None)
        if features is None:
            return False
        batch = slice(self._num_passed, self._num_passed + len(features))
        self._num_passed = batch.stop
        columns = {name: values[batch] for name, values in self._columns.items() if values is not None}
        input_data(data=features, feature_names=self._rows.features, feature_types=self._types, **columns)
        return True


class Booster:
    """A `boosting.Booster`. On several ranks, it has this rank's training rows, and all validation rows."""

    def __init__(self, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training):
        self.objective = objective_of(config, rows)
        self._data, self._held_out = training.binned(
            lambda: matrices(config, dataset_of(self.objective, rows), Dataset(rows=validation), training.page_folder)
        )
        trees = None if training.model is None else bytearray(training.model)
        # Copies on a thread share XGBoost's random generator of this thread, so for copies it is seeded before each tree
        settings = {**parameters(config, self.objective), "seed_per_iteration": training.copy is not None}
        num_features = len(rows.features)
        settings["max_bin"] = num_bins = memory.num_bins(num_features)
        if training.group.num_ranks == 1:  # several ranks must keep the same histograms
            bytes_of_node = memory.BYTES_OF_A_BIN * num_bins * num_features
            settings["max_cached_hist_node"] = max(2, memory.histogram_bytes(len(rows), num_features) // bytes_of_node)
        self.booster = xgboost.Booster(settings, [self._data, self._held_out], model_file=trees)

    def seed(self, seed: int) -> None:
        # The updater that grows trees contains the generator that draws features. Another tree method deletes the updater
        self.booster.set_param({"tree_method": "approx", "seed": seed + 1})
        self.booster.save_config()
        self.booster.set_param({"tree_method": "hist", "seed": seed})

    def update(self) -> np.ndarray:
        self.booster.update(self._data, self.booster.num_boosted_rounds())
        # The conversion is in float64: in float32, the largest probabilities would be equal
        margin = self.booster.predict(self._held_out, output_margin=True, validate_features=False).astype(np.float64)
        return from_raw(self.objective.output, margin)

    def first_rounds(self, num_rounds: int) -> Any:
        return self.booster[:num_rounds]

    def to_bytes(self) -> bytes:
        return to_bytes(self.booster)

    def release(self) -> None:
        """Delete the booster and its data before the files of the data are deleted. A traceback would keep them alive."""
        del self.booster, self._data, self._held_out


def parameters(config: TreesConfig, objective: Objective) -> dict[str, Any]:
    return {
        "objective": OBJECTIVES[objective.loss],
        **({"num_class": objective.num_classes} if objective.num_classes > 1 else {}),
        **({"monotone_constraints": str(objective.monotone)} if any(objective.monotone) else {}),
        "tree_method": "hist",
        "grow_policy": "lossguide",
        "max_depth": 0,
        "max_leaves": config.max_leaves,
        "learning_rate": config.learning_rate,
        "min_child_weight": config.min_leaf_weight,
        "subsample": config.row_fraction,
        "colsample_bytree": config.column_fraction,
        "reg_lambda": config.l2,
        "nthread": config.threads,
    }


def matrices(config: TreesConfig, dataset: Dataset, validation: Dataset, page_folder: Path | None) -> tuple[Any, Any]:
    data = matrix(config, dataset, page_folder, "rows")
    return data, matrix(config, validation, page_folder, "validation", data)


def matrix(config: TreesConfig, dataset: Dataset, page_folder: Path | None, name: str, reference: Any = None) -> Any:
    """The binned rows, in memory or in files in `page_folder`. The trees have the same bits either way, except
    with the absolute error.

    name : the beginning of the names of the files
    reference : the matrix whose bins are used again; None to compute them from these rows
    """
    rows = dataset.rows
    num_bins = memory.num_bins(len(rows.features))
    options: dict[str, Any] = {"max_bin": num_bins, "ref": reference, "enable_categorical": bool(rows.categories)}
    try:
        if config.memory == "low":
            assert page_folder is not None
            data: Any = xgboost.ExtMemQuantileDMatrix(_Batches(dataset, page_folder / name), **options)
        else:
            data = xgboost.QuantileDMatrix(_Batches(dataset), **options)
    except xgboost.core.XGBoostError as error:
        if "contains `inf`" not in str(error):
            raise
        raise UserError(
            "a feature has infinite values, with which XGBoost cannot be trained: correct the prepared data"
        ) from None
    if dataset.group_sizes is not None:
        data.set_info(group=dataset.group_sizes)
        if dataset.weight is not None:
            data.set_info(weight=dataset.weight[np.cumsum(dataset.group_sizes) - 1])
    return data


def train(config: TreesConfig, rows: TreeData, validation: TreeData, training: Training) -> tuple[Any, list[Scores], int]:
    """The booster up to its best round, the validation scores after each round, and the number of the best round."""
    with _collective(training.group, config.timeout_s), training.group.wait_for_lost_rank():
        booster = Booster(config, rows, validation, training)
        try:
            # XGBoost's own metrics are not used: its aucpr interpolates, so it is not the average precision of metrics/
            score = None if training.is_refit else ValidationMetrics(booster.objective, validation)
            history, best = boost(config, booster.objective.metric, booster, score, training)
            return booster.first_rounds(best), history, best
        finally:
            booster.release()


@contextmanager
def _collective(group: RankGroup, timeout_s: float) -> Iterator[None]:
    """Connect the ranks of a group in XGBoost's own collective, whose tracker runs on rank 0."""
    if group.num_ranks == 1:
        yield
        return
    tracker = RabitTracker(n_workers=group.num_ranks, host_ip=group.address, sortby="task") if group.rank == 0 else None
    if tracker:
        _trackers.append(tracker)
        tracker.start()
    worker_arguments = group.gather(tracker.worker_args() if tracker else None)[0]
    # The task ids determine the order in which values of the ranks are summed, and so the last bits of the sum
    collective.init(dmlc_timeout=math.ceil(timeout_s), dmlc_task_id=f"{group.rank:06d}", **worker_arguments)
    stopped: Stopped | None = None
    try:
        yield
    except Stopped as request:
        stopped = request
    # Any other exception leaves before this line, since `finalize` would wait for ranks that do not call it
    collective.finalize()
    group.gather(None)  # wait for all ranks, which need the tracker until they are disconnected
    if tracker:
        _trackers.remove(tracker)
        tracker.free()
    if stopped:
        raise stopped


def to_bytes(booster: Any) -> bytes:
    return bytes(booster.save_raw("ubj"))


def load_first_rounds(model: bytes, num_rounds: int) -> Any:
    """A booster with the first rounds of `model`, which `to_bytes` returned."""
    return xgboost.Booster({"nthread": 1}, model_file=bytearray(model))[:num_rounds]


def load(file: Path) -> Any:
    """A booster that predicts on the calling thread alone, so that several threads may call it at once."""
    booster = xgboost.Booster()
    try:
        booster.load_model(file)
    except xgboost.core.XGBoostError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    booster.set_param({"nthread": 1})
    return booster


def feature_names(booster: Any) -> list[str]:
    return list(booster.feature_names or [])


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, values or scores (n,), or probabilities of classes (n, K), for features (n, F)."""
    return booster.inplace_predict(features, validate_features=False)


def finite(features: np.ndarray) -> np.ndarray:
    """The features, with the largest number for infinity, which a DMatrix refuses, but not a prediction."""
    most = np.finfo(np.float32).max
    return np.clip(features, -most, most)


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """The contribution of each feature to the log odds, value or score, and last the base value, (n, F + 1); with several
    classes to the value of each class before the softmax, (n, K, F + 1)."""
    names, types = feature_names(booster), booster.feature_types
    data = xgboost.DMatrix(finite(features), feature_names=names, feature_types=types, enable_categorical=types is not None)
    return booster.predict(data, pred_contribs=True)


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature; 0 for features without a split."""
    gain = booster.get_score(importance_type="total_gain")
    return {name: float(gain.get(name, 0.0)) for name in feature_names(booster)}
