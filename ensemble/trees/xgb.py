"""XGBoost: histogram trees on a QuantileDMatrix that is filled batch by batch, so the features are never in memory whole.

With memory=low their bins are not either: an ExtMemQuantileDMatrix keeps them in files, and reads them once for each split.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

from ensemble.errors import UserError
from ensemble.metrics import average_precision
from ensemble.trees.boosting import Scores, Stopped, Training, boost, log_loss
from ensemble.trees.config import TreesConfig
from ensemble.trees.distributed import Group
from ensemble.trees.rows import TreeData

FILE = "model.ubj"
_trackers: list[RabitTracker] = []
"""Those in use: one that an error on its way up would delete complains of the ranks that it still has."""


class _Batches(xgboost.DataIter):
    """Rows a batch at a time; with a prefix, XGBoost keeps each as a file of that name."""

    def __init__(self, rows: TreeData, prefix: Path | None = None):
        super().__init__(cache_prefix=str(prefix) if prefix else None)
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        self._batches = self.rows.batches()

    def next(self, input_data: Any) -> bool:
        for features, target in self._batches:
            input_data(data=features, label=target, feature_names=self.rows.features)
            return True
        return False


class _Growth:
    """The booster and its data; on several ranks `data` are this rank's rows, `held_out` the whole split."""

    def __init__(self, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training):
        self._data = matrix(config, rows, training.pages, "rows")
        self._held_out = matrix(config, validation, training.pages, "validation", self._data)
        self._target = validation.column("hot")
        trees = None if training.model is None else bytearray(training.model)
        self.booster = xgboost.Booster(parameters(config), [self._data, self._held_out], model_file=trees)

    def seed(self, seed: int) -> None:
        # A generator of features lives in the updater of the trees: another tree method, once configured, drops it
        self.booster.set_param({"tree_method": "approx", "seed": seed + 1})
        self.booster.save_config()
        self.booster.set_param({"tree_method": "hist", "seed": seed})

    def grow(self) -> Scores:
        self.booster.update(self._data, self.booster.num_boosted_rounds())
        margin = self.booster.predict(self._held_out, output_margin=True)
        # XGBoost's own aucpr interpolates: it is not the average precision that everything else here reports
        return {"log_loss": log_loss(self._target, margin), "average_precision": average_precision(self._target, margin)}

    def model(self) -> bytes:
        return to_bytes(self.booster)

    def release(self) -> None:
        """Let go of the data, which an error on its way up would hold, before their files are cleared away."""
        del self.booster, self._data, self._held_out


def parameters(config: TreesConfig) -> dict[str, Any]:
    """The settings in XGBoost's words."""
    return {
        "objective": "binary:logistic",
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


def matrix(config: TreesConfig, rows: TreeData, pages: Path | None, name: str, like: Any = None) -> Any:
    """The rows in bins, in memory or in files under `pages`; the trees are the same to the bit."""
    if config.memory != "low":
        return xgboost.QuantileDMatrix(_Batches(rows), max_bin=256, ref=like)
    assert pages is not None
    return xgboost.ExtMemQuantileDMatrix(_Batches(rows, pages / name), max_bin=256, ref=like)


def train(
    config: TreesConfig, rows: TreeData, validation: TreeData, training: Training | None = None
) -> tuple[Any, list[Scores], int]:
    """The booster cut to its best round, the scores on validation after each round, and the number of that round."""
    training = training or Training()
    with _collective(training.group, config.timeout_s), training.group.explained():
        growth = _Growth(config, rows, validation, training)
        try:
            history, best = boost(config, growth, training)
            return growth.booster[:best], history, best
        finally:
            growth.release()


@contextmanager
def _collective(group: Group, timeout_s: float) -> Iterator[None]:
    """Join the ranks of a group in XGBoost's own collective, whose tracker runs on rank 0."""
    if group.num_ranks == 1:
        yield
        return
    tracker = RabitTracker(n_workers=group.num_ranks, host_ip=group.address, sortby="task") if group.rank == 0 else None
    if tracker:
        _trackers.append(tracker)
        tracker.start()
    words = group.gather(tracker.worker_args() if tracker else None)[0]
    # The group finds out who is lost; the sums' order, and so their last bits, follow the order of the tasks' names
    collective.init(dmlc_timeout=math.ceil(timeout_s), dmlc_task_id=f"{group.rank:06d}", **words)
    stopped = None
    try:
        yield
    except Stopped as request:
        stopped = request
    # All ranks have come here: after any other error the farewell would wait for those that have not
    collective.finalize()
    group.gather(None)  # the last one needs the tracker to leave
    if tracker:
        _trackers.remove(tracker)
        tracker.free()
    if stopped:
        raise stopped


def to_bytes(booster: Any) -> bytes:
    return bytes(booster.save_raw("ubj"))


def save(booster: Any, file: Path) -> None:
    file.write_bytes(to_bytes(booster))


def load(file: Path) -> Any:
    booster = xgboost.Booster()
    try:
        booster.load_model(file)
    except xgboost.core.XGBoostError:
        raise UserError(f"{file} is missing or damaged: train the member again") from None
    return booster


def feature_names(booster: Any) -> list[str]:
    return list(booster.feature_names or [])


def predict(booster: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities, shape (n,), for features of shape (n, F)."""
    return booster.inplace_predict(features, validate_features=False)


def contributions(booster: Any, features: np.ndarray) -> np.ndarray:
    """Each feature's part of the log odds, shape (n, F)."""
    data = xgboost.DMatrix(features, feature_names=feature_names(booster))
    return booster.predict(data, pred_contribs=True)[:, :-1]


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature, 0 for those never split on."""
    gain = booster.get_score(importance_type="total_gain")
    return {name: float(gain.get(name, 0.0)) for name in feature_names(booster)}
