"""XGBoost: histogram trees on a QuantileDMatrix that is filled batch by batch, so the features are never in memory whole.

With memory=low their bins are not either: an ExtMemQuantileDMatrix keeps them in files, and reads them once for each split.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ensemble.commands import imports
from ensemble.errors import UserError
from ensemble.trees.boosting import Scores, Stopped, Training, boost
from ensemble.trees.contributions import of_classes
from ensemble.trees.distributed import RankGroup
from ensemble.trees.objective import Goal, Judge, Lesson, goal_of, lesson_of
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
    "multiclass": "multi:softprob",
    "ranking": "rank:ndcg",
}
_trackers: list[RabitTracker] = []
"""Those in use: one that an error on its way up would delete complains of the ranks that it still has."""


class _Batches(xgboost.DataIter):
    """A lesson a batch of rows at a time; with a prefix, XGBoost keeps each as a file of that name."""

    def __init__(self, lesson: Lesson, prefix: Path | None = None):
        super().__init__(cache_prefix=str(prefix) if prefix else None)
        self._rows = lesson.rows
        self._columns = {"label": lesson.target}
        if lesson.group_sizes is None:  # else there is one weight for each group
            self._columns["weight"] = lesson.weight
        self.reset()

    def reset(self) -> None:
        self._batches, self._num_passed = self._rows.batches(), 0

    def next(self, input_data: Any) -> bool:
        for features in self._batches:
            now = slice(self._num_passed, self._num_passed + len(features))
            self._num_passed = now.stop
            columns = {name: values[now] for name, values in self._columns.items() if values is not None}
            types = feature_types(self._rows)
            input_data(data=features, feature_names=self._rows.features, feature_types=types, **columns)
            return True
        return False


class Growth:
    """The booster and its data; on several ranks `data` are this rank's rows, `held_out` the whole split."""

    def __init__(self, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training):
        self.goal = goal_of(config, rows)
        self._data, self._held_out = training.binned(
            lambda: matrices(config, lesson_of(self.goal, rows), Lesson(rows=validation), training.pages)
        )
        self._judge = Judge(self.goal, validation)
        trees = None if training.model is None else bytearray(training.model)
        # XGBoost has one generator for each thread, which copies would share: so each tree of a copy begins with its own
        settings = {**parameters(config, self.goal), "seed_per_iteration": training.is_copy}
        self.booster = xgboost.Booster(settings, [self._data, self._held_out], model_file=trees)

    def seed(self, seed: int) -> None:
        # A generator of features lives in the updater of the trees: another tree method, once configured, drops it
        self.booster.set_param({"tree_method": "approx", "seed": seed + 1})
        self.booster.save_config()
        self.booster.set_param({"tree_method": "hist", "seed": seed})

    def grow(self) -> Scores:
        # XGBoost's own aucpr interpolates: it is not the average precision that everything else here reports
        return self._judge(self.update())

    def update(self) -> np.ndarray:
        self.booster.update(self._data, self.booster.num_boosted_rounds())
        return _as_said(self.goal, self.booster.predict(self._held_out, output_margin=True))

    def cut(self, num_rounds: int) -> Any:
        return self.booster[:num_rounds]

    def model(self) -> bytes:
        return to_bytes(self.booster)

    def release(self) -> None:
        """Let go of the data, which an error on its way up would hold, before their files are cleared away."""
        del self.booster, self._data, self._held_out


def _as_said(goal: Goal, margin: np.ndarray) -> np.ndarray:
    """Predictions from margins, in float64: in float32 the likeliest would tie."""
    margin = margin.astype(np.float64)
    if goal.output == "probability":
        return 1 / (1 + np.exp(-margin))
    if goal.output == "probabilities":
        odds = np.exp(margin - margin.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)
    return margin


def parameters(config: TreesConfig, goal: Goal) -> dict[str, Any]:
    """The settings in XGBoost's words."""
    return {
        "objective": OBJECTIVES[goal.objective],
        **({"num_class": goal.num_classes} if goal.num_classes > 1 else {}),
        **({"monotone_constraints": str(goal.monotone)} if any(goal.monotone) else {}),
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


def matrices(config: TreesConfig, lesson: Lesson, validation: Lesson, pages: Path | None) -> tuple[Any, Any]:
    data = matrix(config, lesson, pages, "rows")
    return data, matrix(config, validation, pages, "validation", data)


def matrix(config: TreesConfig, lesson: Lesson, pages: Path | None, name: str, like: Any = None) -> Any:
    """The rows in bins, in memory or in files under `pages`; the trees are the same to the bit."""
    options: dict[str, Any] = {"max_bin": 256, "ref": like, "enable_categorical": bool(lesson.rows.categories)}
    if config.memory == "low":
        assert pages is not None
        data: Any = xgboost.ExtMemQuantileDMatrix(_Batches(lesson, pages / name), **options)
    else:
        data = xgboost.QuantileDMatrix(_Batches(lesson), **options)
    if lesson.group_sizes is not None:
        data.set_info(group=lesson.group_sizes)
        if lesson.weight is not None:
            data.set_info(weight=lesson.weight[np.cumsum(lesson.group_sizes) - 1])
    return data


def feature_types(rows: TreeData) -> list[str] | None:
    """c for categories, q for quantities, as XGBoost wants it; None where there are no categories."""
    return ["c" if name in rows.categories else "q" for name in rows.features] if rows.categories else None


def train(
    config: TreesConfig, rows: TreeData, validation: TreeData, training: Training | None = None
) -> tuple[Any, list[Scores], int]:
    """The booster cut to its best round, the scores on validation after each round, and the number of that round."""
    training = training or Training()
    with _collective(training.group, config.timeout_s), training.group.explained():
        growth = Growth(config, rows, validation, training)
        try:
            history, best = boost(config, growth.goal.metric, growth, training)
            return growth.cut(best), history, best
        finally:
            growth.release()


@contextmanager
def _collective(group: RankGroup, timeout_s: float) -> Iterator[None]:
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


def cut_model(model: bytes, num_rounds: int) -> Any:
    """The booster of the first rounds of a stored one."""
    return xgboost.Booster({"nthread": 1}, model_file=bytearray(model))[:num_rounds]


def save(booster: Any, file: Path) -> None:
    file.write_bytes(to_bytes(booster))


def load(file: Path) -> Any:
    """A booster that predicts on the calling thread alone, so that several threads may ask it at once."""
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
    """Probabilities, values or scores, shape (n,), of classes (n, K), for features of shape (n, F)."""
    return booster.inplace_predict(features, validate_features=False)


def contributions(booster: Any, features: np.ndarray, of_class: np.ndarray | None = None) -> np.ndarray:
    """Each feature's part of the log odds, value or score, and what is there without any of them: shape (n, F + 1).

    With several classes, of those in `of_class`: (n,), or (n, m) for a result of (n, m, F + 1); None for the likeliest one.
    """
    names, types = feature_names(booster), booster.feature_types
    data = xgboost.DMatrix(features, feature_names=names, feature_types=types, enable_categorical=types is not None)
    parts = booster.predict(data, pred_contribs=True)
    if parts.ndim == 3:
        of_class = predict(booster, features).argmax(axis=1) if of_class is None else of_class
        parts = of_classes(parts, of_class)
    return parts


def importance(booster: Any) -> dict[str, float]:
    """Total gain by feature, 0 for those never split on."""
    gain = booster.get_score(importance_type="total_gain")
    return {name: float(gain.get(name, 0.0)) for name in feature_names(booster)}
