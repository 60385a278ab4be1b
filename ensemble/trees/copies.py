"""Copies of a tree member on the folds of cross-validation, trained together: a few trees are added to each copy in turn.

All copies stop at the same number of trees, which has the best score over the validation rows of all copies together: with
few rows the score of one copy is too noisy. Several copies are trained at once, each on one thread, so a member has the same
bits on any number of cores. A single copy uses all threads, and with twice as many threads as copies each uses several: then
the last bits of XGBoost may depend on the number of threads. CatBoost, extremely randomised trees and linear models train
each copy to its end instead (`train_separately`).
"""

import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.errors import UserError
from ensemble.task import ABSOLUTE_ERROR
from ensemble.trees import permutation, target_encoding, unknown
from ensemble.trees.boosting import Booster, Scores, Stopped, Training, boost, copy_seed
from ensemble.trees.objective import Objective, ValidationMetrics, objective_of
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig
from ensemble.trees.stored import StoredCopy, pack, unpack
from ensemble.trees.target_encoding import NO_ENCODING, TargetEncoding

LOSS_OF = {
    "binary": "log_loss",
    "multiclass": "multiclass_log_loss",
    "regression": "root_mean_squared_error",
    ABSOLUTE_ERROR: "mean_absolute_error",
}
"""By name of the loss, the metric by which a library that trains each copy by itself stops early."""
USUAL_TREES = 20.0
"""The usual number of trees until early stopping, times the learning rate: 400 trees at 0.05."""
HIGHEST_RATE = 0.3
FASTER = 1.2
"""A training starts again with a higher learning rate only if that rate is more than `FASTER` times the first one."""
REGROWING = 1.2
"""An upper bound of the time for a second training of the copies, as a multiple of the time of the first."""
REFITTING = 1.3
"""An upper bound of the time per row of a training on all rows, as a multiple of that of the first training of copies."""
LEAF_S = 1.5e-6
"""Seconds to convert, apply and write a leaf after the training. 150,000 and 220,000 trees of 15 leaves (8 copies with 19
classes) took 3 and 5 s with XGBoost and LightGBM, whose training took 12 and 10 s."""
AHEAD_S, AHEAD_BYTES = 0.5, 32e6
"""Upper bounds of the time of the rounds that are run before the first of them is scored, and of the size of their
predictions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A booster with the scaling of its target and the encoding of its categories."""

    booster: Any
    scaling: Scaling
    encoding: TargetEncoding = NO_ENCODING


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a training: the models for new rows, the scores, and with folds the predictions of the held-out rows."""

    models: list[Model]
    """Models whose mean predicts new rows: the copies, or with `config.refit` or forward folds boosters of all rows."""
    history: list[Scores]
    """The scores after each tree, or of each candidate of linear models."""
    best_round: int
    """The number of trees of the models, or the number of the candidate of linear models."""
    learning_rate: float
    """The learning rate, which is higher than the setting if the time was short."""
    out_of_fold: dict[str, np.ndarray] | None = None
    """`row_id`, (n,), and `prediction` in the target's unit, (n,) or (n, K) for K classes; None without folds."""
    permutation: dict[str, Any] | None = None
    """Importance by permutation (permutation.py), if it was computed."""


def train(
    library: ModuleType, config: TreesConfig, rows: TreeData, folds: Sequence[Fold], training: Training, is_forward: bool
) -> TrainingResult:
    """Train the copies, and predict the rows that they hold out.

    With `config.regrow` the copies are then trained again, with their validation rows added, if the time suffices. With
    `config.refit`, or if the folds are forward in time, boosters trained on all rows predict new rows instead of the copies.

    rows : the split `train`. training : its `bins` and `page_folder` are not used. Raises `Stopped` as `boost` does.
    """
    objective, began, is_refitted = objective_of(config, rows), time.monotonic(), config.refit or is_forward
    refitting = REFITTING * config.num_refits * len(rows) / sum(len(fold.fit) for fold in folds) if is_refitted else 0.0
    later = REGROWING * config.regrow + refitting
    is_by_library = hasattr(library, "train_copies")
    limit_s = training.seconds_left() / (1 + later)
    pace = _Pace(config, training, later, LEAF_S * len(folds) * objective.num_classes * config.max_leaves)

    def seconds_left() -> float:
        """The time left for the first training, if all later ones together take at most `later` times as long. A library
        that trains whole copies asks only before it begins."""
        passed_s = time.monotonic() - began
        return limit_s - passed_s if is_by_library else training.seconds_left() - later * passed_s - pace.finishing_s()

    with ThreadPoolExecutor(max(1, config.threads)) as pool:
        train_parts = _train_by_library if is_by_library else _train_together
        fit = partial(train_parts, library, rows=rows, run=pool.map)
        parts: Parts = [(fold.fit, fold.stop) for fold in folds]
        bins: list[list[Any]] = [[] for _ in parts]
        first_training = dataclasses.replace(training, seconds_left=seconds_left, on_chunk=pace, bins=bins)
        config = in_time(library, config, rows.take(folds[0].fit), len(folds), seconds_left())
        try:
            make_models, history, best_round = fit(config=config, parts=parts, training=first_training)
        except _TooSlow as error:
            config = dataclasses.replace(config, learning_rate=error.learning_rate)
            pace.may_restart = False
            make_models, history, best_round = fit(config=config, parts=parts, training=first_training)
        bins.clear()
        learned, first_s = [fold.fit for fold in folds], time.monotonic() - began

        def refit_on(parts: Sequence[np.ndarray]) -> list[Model]:
            """Models with the best number of trees, trained on `parts`. Checkpoints contain the first training only."""
            refit = Training(group=training.group, stop_requested=training.stop_requested, is_refit=True)
            refit_config = dataclasses.replace(config, num_rounds=best_round)
            return fit(config=refit_config, parts=[(part, None) for part in parts], training=refit)[0]()

        # Less than `later` times `first_s`: a reserve
        if config.regrow and training.seconds_left() > (1 + refitting) * first_s + pace.finishing_s():
            del make_models  # with the boosters and their copies of the rows
            learned = [np.union1d(fold.fit, fold.stop) for fold in folds]
            models = refit_on(learned)
        else:
            models = make_models()
        seen = pool.map(lambda part: unknown.describe(objective, [rows.take(part)]), learned)
        predictors = [_predictor(library, rows, model, content) for model, content in zip(models, seen, strict=True)]
        blocks = pool.map(lambda predict, fold: [*map(predict, rows.take(fold.held).batches())], predictors, folds)
        held_out = np.concatenate([fold.held for fold in folds])
        out_of_fold = {"row_id": rows.column("row_id")[held_out], "prediction": np.concatenate([*itertools.chain(*blocks)])}
        importance = permutation.importance(objective, rows, folds, predictors, best_round)
        if is_refitted:
            models = refit_on([np.arange(len(rows))] * config.num_refits)
    return TrainingResult(
        models=models,
        history=history,
        best_round=best_round,
        learning_rate=config.learning_rate,
        out_of_fold=out_of_fold,
        permutation=importance,
    )


class _TooSlow(Exception):
    """The time does not suffice for the learning rate of the settings; `learning_rate` is one for which it does."""

    def __init__(self, learning_rate: float):
        self.learning_rate = learning_rate


class _Pace:
    """Called as `on_chunk`: measures the first chunk, and raises `_TooSlow` if the usual number of trees takes too long.

    It does not if a new training would learn less, since the sum of the learning rates of its trees would be lower.
    """

    def __init__(self, config: TreesConfig, training: Training, later: float, finishing_s: float):
        """later : the time of all later trainings, as a multiple of the time of this one. finishing_s : the time after all
        trainings, for each round."""
        self._config, self._training, self._later, self._finishing_s = config, training, later, finishing_s
        self._began, self._num_rounds, self.may_restart = 0.0, 0, True

    def finishing_s(self) -> float:
        """The time after all trainings, with the rounds so far."""
        return self._finishing_s * self._num_rounds

    def __call__(self, history: list[Scores]) -> None:
        self._training.on_chunk(history)
        self._num_rounds = len(history)
        if not history:
            self._began = time.monotonic()
        if len(history) == self._config.chunk_rounds and self._began and self.may_restart:
            seconds_of_a_tree = (time.monotonic() - self._began) / len(history)
            seconds_of_all = seconds_of_a_tree * (1 + max(self._later, REGROWING))  # a reserve for more trees than usual
            seconds_of_all += self._finishing_s
            seconds_left, usual_rate = self._training.seconds_left(), self._config.learning_rate
            rate = rate_in_time(usual_rate, seconds_of_all, seconds_left)
            learns_more = rate * seconds_left > usual_rate * (seconds_left + len(history) * seconds_of_all)
            if rate > FASTER * usual_rate and learns_more:
                raise _TooSlow(rate)


def rate_in_time(learning_rate: float, seconds_of_a_tree: float, seconds_left: float) -> float:
    """The rate with which `USUAL_TREES` / rate trees fit into the time: up to `HIGHEST_RATE`, but at least the given one."""
    return max(learning_rate, min(HIGHEST_RATE, seconds_of_a_tree * USUAL_TREES / max(seconds_left, 1e-3)))


def in_time(library: ModuleType, config: TreesConfig, rows: TreeData, num_copies: int, seconds_left: float) -> TreesConfig:
    """The settings, with a higher learning rate if a library that cannot add one tree at a time needs it for the copies."""
    return library.in_time(config, rows, num_copies, seconds_left) if hasattr(library, "in_time") else config


Parts = Sequence[tuple[np.ndarray, np.ndarray | None]]
"""For each copy, the rows to fit, and those for early stopping or None for `config.num_rounds` trees."""


def _train_together(
    library: ModuleType, *, rows: TreeData, run: Callable[..., Any], config: TreesConfig, parts: Parts, training: Training
) -> tuple[Callable[[], list[Model]], list[Scores], int]:
    """Add trees to each copy in turn; all stop at the number of trees that is best by their pooled score.

    Returns three results: a function that makes the models; the scores after each tree; and the best number of trees.
    """
    # A booster needs validation rows, also where none are scored
    splits = [(fit, fit[:1] if stop is None else stop) for fit, stop in parts]
    objective = objective_of(config, rows)
    unscaled = dataclasses.replace(objective, scaling=Scaling())  # `_Copies.update` returns the target's unit
    stops = rows.take(np.concatenate([stop for _, stop in splits]))
    score = None if training.is_refit else ValidationMetrics(unscaled, stops)
    copies = _Copies(library, config, rows, splits, training, run)
    history, best_round = boost(config, objective.metric, copies, score, training)
    return partial(copies.first_rounds, best_round), history, best_round


def check_learnable(config: TreesConfig, objective: Objective) -> None:
    """Raise `UserError` for an objective that libraries with a function `train_copies` do not support."""
    if objective.kind not in LOSS_OF:
        raise UserError(f"library={config.library} does not support objective={objective.kind}: choose xgboost or lightgbm")
    if any(objective.monotone):
        raise UserError(f"monotone= is not supported with library={config.library}: choose xgboost or lightgbm")


def _train_by_library(
    library: ModuleType, *, rows: TreeData, run: Callable[..., Any], config: TreesConfig, parts: Parts, training: Training
) -> tuple[Callable[[], list[Model]], list[Scores], int]:
    """Train the copies by `train_copies` of the library, which calls `train_separately`; results as of `_train_together`."""
    splits = [(rows.take(fit), None if stop is None else rows.take(stop)) for fit, stop in parts]
    boosters, history, best_round = library.train_copies(config, splits, training, run)

    def make_models() -> list[Model]:
        return [
            Model(booster=library.first_rounds(booster, best_round), scaling=objective_of(config, fit).scaling)
            for booster, (fit, _) in zip(boosters, splits, strict=True)
        ]

    return make_models, history, best_round


def train_one(
    library: ModuleType, config: TreesConfig, rows: TreeData, validation: TreeData, training: Training
) -> tuple[Any, list[Scores], int]:
    """Train a booster on `rows`, stopped early on `validation` except in a refit; the results are those of `lgbm.train`."""
    if not hasattr(library, "train_copies"):
        return library.train(config, rows, validation, training)
    part = rows, None if training.is_refit else validation
    (booster,), history, best_round = library.train_copies(config, [part], training, map)
    return library.first_rounds(booster, best_round), history, best_round


def train_separately(
    config: TreesConfig,
    parts: Sequence[tuple[TreeData, TreeData | None]],
    training: Training,
    load: Callable[[bytes], Any],
    train_copy: Callable[[TreesConfig, int, TreeData, TreeData | None, Callable[[], bool]], tuple[Any, np.ndarray]],
    run: Callable[..., Any],
) -> list[tuple[Any, np.ndarray]]:
    """Train each copy by itself, with a library that cannot add one tree at a time; returns models and losses, (T,).

    parts : the rows of each copy, and those for early stopping or None. load : converts the bytes of a stored copy to a
    model. train_copy : trains the copy with a given number until its last argument, a function, returns true. run : maps a
    function over numbers, perhaps several at once. Raises `Stopped` if the training was asked to stop.
    """
    config, seconds = share_of_each(config, len(parts), training.seconds_left())

    def train_in_time(number: int) -> tuple[Any, np.ndarray]:
        if number in training.stored_copies:
            copy = training.stored_copies[number]
            return load(copy.model), copy.predictions
        began = time.monotonic()
        return train_copy(
            config, number, *parts[number], lambda: bool(training.stop_requested()) or time.monotonic() - began > seconds
        )

    results = list(run(train_in_time, range(len(parts))))
    if training.stop_requested():
        raise Stopped
    return results


def share_of_each(config: TreesConfig, num_copies: int, seconds_left: float) -> tuple[TreesConfig, float]:
    """The settings with the threads of each copy, and the seconds for each, if as many as possible are trained at once."""
    num_at_once = max(1, min(config.threads, num_copies))
    config = dataclasses.replace(config, threads=max(1, config.threads // num_at_once))
    return config, seconds_left / math.ceil(num_copies / num_at_once)


def _predictor(library: ModuleType, rows: TreeData, model: Model, content: dict[str, Any]) -> unknown.Predict:
    """A function from features to a copy's predictions in the target's unit, neutral for unknown values (unknown.py)."""
    seen = unknown.SeenValues.from_dict(content, rows.features)

    def predict(features: np.ndarray) -> np.ndarray:
        return library.predict(model.booster, model.encoding(features))

    return lambda features: model.scaling.value(seen.predict(predict, features)[0])


class _Copies:
    """A `boosting.Booster` that consists of several boosters."""

    def __init__(
        self,
        library: ModuleType,
        config: TreesConfig,
        rows: TreeData,
        parts: Sequence[tuple[np.ndarray, np.ndarray]],
        training: Training,
        run: Callable[..., Any],
    ):
        self._run, self._config, self._num_rounds = run, config, len(training.history)
        self._num_ahead, self._ahead = 1, deque[np.ndarray]()
        objective = objective_of(config, rows)
        config = dataclasses.replace(config, threads=max(1, config.threads // len(parts)))
        models = [None] * len(parts) if training.model is None else unpack(training.model)

        def make(number: int) -> tuple[TargetEncoding, Any]:
            encoding, encoded = target_encoding.fit(objective, rows, parts[number][0])
            fit, stop = (encoded.take(part) for part in parts[number])

            def make_booster(model: bytes | None) -> Any:
                bins = training.bins[number] if training.bins else None
                return library.Booster(config, fit, stop, Training(model=model, copy=number, bins=bins))

            if number not in training.stored_copies:
                return encoding, make_booster(models[number])
            copy, num_trees = training.stored_copies[number], len(training.history)
            fit_objective = objective_of(config, fit)
            return encoding, _StoredBooster(copy, fit_objective, library, num_trees, models[number], make_booster)

        self._encodings, self._boosters = zip(*run(make, range(len(parts))), strict=True)

    def seed(self, seed: int) -> None:
        for number, booster in enumerate(self._boosters):
            booster.seed(copy_seed(seed, number))

    def update(self) -> np.ndarray:
        """Run one round of each copy; return the predictions of the validation rows of all copies, in the target's unit."""
        if not self._ahead:
            self._ahead.extend(self._run_ahead())
        self._num_rounds += 1
        return self._ahead.popleft()

    def _run_ahead(self) -> Iterator[np.ndarray]:
        """Run some rounds of the chunk, and return the predictions of all validation rows after each round.

        Each copy runs all of these rounds before its thread waits for the others. `first_rounds` removes rounds after the
        best one.
        """
        left_in_chunk = self._config.chunk_rounds - self._num_rounds % self._config.chunk_rounds
        left = min(left_in_chunk, self._config.num_rounds - self._num_rounds)
        num_rounds, began = min(self._num_ahead, left), time.monotonic()

        def update(booster: Any) -> list[np.ndarray]:
            return [booster.objective.scaling.value(booster.update()) for _ in range(num_rounds)]

        by_round = list(zip(*self._run(update, self._boosters), strict=True))
        seconds = (time.monotonic() - began) / num_rounds
        size = sum(predictions.nbytes for predictions in by_round[0])
        self._num_ahead = max(1, int(min(AHEAD_S / max(seconds, 1e-9), AHEAD_BYTES / max(size, 1))))
        return map(np.concatenate, by_round)

    def to_bytes(self) -> bytes:
        return pack([booster.to_bytes() for booster in self._boosters])

    def first_rounds(self, num_rounds: int) -> list[Model]:
        first = self._run(lambda booster: booster.first_rounds(num_rounds), self._boosters)
        return [
            Model(booster=model, scaling=booster.objective.scaling, encoding=encoding)
            for model, encoding, booster in zip(first, self._encodings, self._boosters, strict=True)
        ]


class _StoredBooster:
    """A `boosting.Booster` whose first trees are those of a stored copy.

    Further trees are trained when they are needed. The bits are those of one training, since a stored copy ends where a
    chunk of trees ends.
    """

    def __init__(
        self,
        copy: StoredCopy,
        objective: Objective,
        library: ModuleType,
        num_trees: int,
        model: bytes | None,
        make_booster: Callable[[bytes], Booster],
    ):
        """num_trees, model : the state to resume from. make_booster : makes a booster that adds trees to a model."""
        self.objective = objective
        self._copy, self._library, self._num_trees, self._make_booster = copy, library, num_trees, make_booster
        self._seed = 0
        self._booster = make_booster(model) if model is not None and num_trees > len(copy.predictions) else None

    def seed(self, seed: int) -> None:
        self._seed = seed
        if self._booster:
            self._booster.seed(seed)

    def update(self) -> np.ndarray:
        self._num_trees += 1
        if not self._booster and self._num_trees <= len(self._copy.predictions):
            return self._copy.predictions[self._num_trees - 1]
        if not self._booster:
            self._booster = self._make_booster(self._copy.model)
            self._booster.seed(self._seed)
        return self._booster.update()

    def first_rounds(self, num_rounds: int) -> Any:
        if self._booster:
            return self._booster.first_rounds(num_rounds)
        return self._library.load_first_rounds(self._copy.model, num_rounds)

    def to_bytes(self) -> bytes:
        return self._booster.to_bytes() if self._booster else self._library.to_bytes(self.first_rounds(self._num_trees))
