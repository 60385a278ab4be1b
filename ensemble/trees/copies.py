"""Copies of a tree member on the folds of cross-validation, grown side by side: a tree to each of them at a time.

All copies stop at the same number of trees, the best by the score of the rows that stop them, put together: with few rows
the score of one copy alone is too noisy to stop by. Each copy grows on one thread, several copies at once, so a member has
the same bits on any number of cores; a single copy grows on all threads.

    grown = train(library, config, rows, folds, training)
    grown.out_of_fold          predictions of the rows that the copies hold out
    grown.models               what predicts new rows: the copies, or with config.refit boosters grown anew on all rows
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.trees import permutation, target_encoding, unknown
from ensemble.trees.boosting import Scores, SingleGrowth, Training, boost
from ensemble.trees.objective import Goal, Judge, goal_of
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig
from ensemble.trees.stored import StoredCopy, pack, unpack
from ensemble.trees.target_encoding import NOTHING, TargetEncoding

USUAL_TREES = 20.0
"""Trees that a training takes until it is stopped early, times the learning rate: 400 trees at 0.05."""
HIGHEST_RATE = 0.3
FASTER = 1.2
"""A training begins anew with another learning rate only if that is so many times the first."""
REGROWING = 1.2
"""Time to grow the copies anew, at most, as a multiple of the time that the first growth took."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A booster, the scale of the target that it learned, and the numbers that its categories became."""

    booster: Any
    scaling: Scaling
    encoding: TargetEncoding = NOTHING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grown:
    """The result of a training."""

    models: list[Model]
    """Their mean predicts new rows."""
    history: list[Scores]
    best_round: int
    learning_rate: float | None = None
    """If it is another than the one that was set, since the time was short."""
    out_of_fold: dict[str, np.ndarray] | None = None
    """`row_id`, (n,), and `prediction` in the target's unit, (n,) or (n, K) for K classes."""
    permutation: dict[str, Any] | None = None
    """Importance by permutation.py, if it is known."""


def train(
    library: ModuleType, config: TreesConfig, rows: TreeData, folds: Sequence[Fold], training: Training, is_forward: bool
) -> Grown:
    """Grow the copies, and predict what they hold out.

    With `config.regrow` the copies are then grown anew, also on the rows that stopped them. With `config.refit`, or if folds
    are forward in time, boosters on all rows predict new rows, not the copies.

    rows : the split `train`. training : its bins and pages are not used. Raises `Stopped` as `boost` does.
    """
    goal, began = goal_of(config, rows), time.monotonic()

    def seconds_left() -> float:
        """Until the trees must do: growing them anew takes about as long again."""
        return training.seconds_left() - (REGROWING * (time.monotonic() - began) if config.regrow or is_forward else 0)

    with ThreadPoolExecutor(max(1, config.threads)) as pool:
        grow = partial(_grow_whole if hasattr(library, "grow") else _grow_together, library, rows=rows, run=pool.map)
        limited = dataclasses.replace(training, seconds_left=seconds_left, watch=_Pace(config, training))
        folded = [(fold.fit, fold.stop) for fold in folds]
        learning_rate = None
        try:
            models, history, best_round = grow(config=config, parts=folded, training=limited)
        except _TooSlow as found:
            learning_rate = found.learning_rate
            config = dataclasses.replace(config, learning_rate=found.learning_rate)
            limited = dataclasses.replace(limited, watch=training.watch)
            models, history, best_round = grow(config=config, parts=folded, training=limited)
        learned = [fold.fit for fold in folds]

        def grown_on(parts: Sequence[np.ndarray]) -> list[Model]:
            """Boosters with as many trees on other rows."""
            # It writes no checkpoint: those are of the first growth
            again = Training(group=training.group, asked=training.asked, is_refit=True)
            anew = dataclasses.replace(config, num_rounds=best_round)
            return grow(config=anew, parts=[(part, None) for part in parts], training=again)[0]

        if config.regrow and training.seconds_left() > REGROWING * (time.monotonic() - began):
            learned = [np.union1d(fold.fit, fold.stop) for fold in folds]
            models = grown_on(learned)
        known = [unknown.learn(goal, [rows.take(part)]) for part in learned]
        parts = pool.map(lambda three: _predict(library, rows, *three), zip(models, known, folds, strict=True))
        held = np.concatenate([fold.held for fold in folds])
        out_of_fold = {"row_id": rows.column("row_id")[held], "prediction": np.concatenate(list(parts))}
        asks = [_predictor(library, rows, model, its) for model, its in zip(models, known, strict=True)]
        importance = permutation.importance(goal, rows, folds, asks, best_round)
        if config.refit or is_forward:
            models = grown_on([np.arange(len(rows))] * max(1, config.num_refits))
    return Grown(
        models=models,
        history=history,
        best_round=best_round,
        learning_rate=learning_rate,
        out_of_fold=out_of_fold,
        permutation=importance,
    )


class _TooSlow(Exception):
    """The time is too short for trees that learn so slowly."""

    def __init__(self, learning_rate: float):
        self.learning_rate = learning_rate


class _Pace:
    """Watches the first trees of a training with a time limit, and raises `_TooSlow` if the usual number takes too long."""

    def __init__(self, config: TreesConfig, training: Training):
        self._config, self._training, self._began = config, training, 0.0

    def __call__(self, history: list[Scores]) -> None:
        self._training.watch(history)
        if not history:
            self._began = time.monotonic()
        if len(history) == self._config.chunk_rounds and self._began:
            of_a_tree = (time.monotonic() - self._began) / len(history)
            rate = rate_in_time(self._config.learning_rate, of_a_tree * (1 + REGROWING), self._training.seconds_left())
            if rate > FASTER * self._config.learning_rate:
                raise _TooSlow(rate)


def rate_in_time(learning_rate: float, seconds_of_a_tree: float, seconds_left: float) -> float:
    """The learning rate with which `USUAL_TREES` / rate trees fit into the time; at least the one that was set."""
    needed = seconds_of_a_tree * USUAL_TREES / learning_rate
    return max(learning_rate, min(HIGHEST_RATE, learning_rate * needed / max(seconds_left, 1e-3)))


Parts = Sequence[tuple[np.ndarray, np.ndarray | None]]
"""Of each copy the rows that it learns and those that stop it; None for as many trees as `config.num_rounds`."""


def _grow_together(
    library: ModuleType, *, rows: TreeData, run: Callable[..., Any], config: TreesConfig, parts: Parts, training: Training
) -> tuple[list[Model], list[Scores], int]:
    """A tree to each copy at a time; all stop at the best number of trees by their pooled score."""
    counts = rows.column(rows.task.weight) > 0 if rows.task.weight else np.ones(len(rows), bool)
    stops = [fit[counts[fit]][:1] if stop is None else stop for fit, stop in parts]
    copies = _Copies(
        library, config, rows, [(fit, stop) for (fit, _), stop in zip(parts, stops, strict=True)], training, run
    )
    goal = goal_of(config, rows)
    if not training.is_refit:
        copies.judged_by(Judge(dataclasses.replace(goal, scaling=Scaling()), rows.take(np.concatenate(stops))))
    history, best_round = boost(config, goal.metric, copies, training)
    return copies.models(best_round), history, best_round


def _grow_whole(
    library: ModuleType, *, rows: TreeData, run: Callable[..., Any], config: TreesConfig, parts: Parts, training: Training
) -> tuple[list[Model], list[Scores], int]:
    """Each copy as a whole, of a library that adds no tree at a time."""
    taken = [(rows.take(fit), None if stop is None else rows.take(stop)) for fit, stop in parts]
    boosters, history, best_round = library.grow(config, taken, training, run)
    scalings = [goal_of(config, part).scaling for part, _ in taken]
    pairs = zip(boosters, scalings, strict=True)
    return (
        [Model(booster=library.cut(booster, best_round), scaling=scaling) for booster, scaling in pairs],
        history,
        best_round,
    )


def _predict(library: ModuleType, rows: TreeData, model: Model, content: dict[str, Any], fold: Fold) -> np.ndarray:
    """The rows that a copy holds out."""
    predict = _predictor(library, rows, model, content)
    return np.concatenate([predict(block) for block in rows.take(fold.held).batches()])


def _predictor(
    library: ModuleType, rows: TreeData, model: Model, content: dict[str, Any]
) -> Callable[[np.ndarray], np.ndarray]:
    """Of a copy, from features to predictions; what its rows never had is predicted as `unknown.py` describes."""
    known = unknown.Known.of(content, rows.features)

    def predict(features: np.ndarray) -> np.ndarray:
        return library.predict(model.booster, model.encoding(features))

    return lambda features: model.scaling.value(known.predict(predict, features)[0])


class _Copies:
    """A `boosting.Growth` of several boosters."""

    def __init__(
        self,
        library: ModuleType,
        config: TreesConfig,
        rows: TreeData,
        parts: Sequence[tuple[np.ndarray, np.ndarray]],
        training: Training,
        run: Callable[..., Any],
    ):
        self._library, self._run = library, run
        goal = goal_of(config, rows)
        config = dataclasses.replace(config, threads=max(1, config.threads // len(parts)))
        before = [None] * len(parts) if training.model is None else unpack(training.model)

        def make(number: int) -> tuple[TargetEncoding, Any]:
            encoding, encoded = target_encoding.learn(goal, rows, parts[number][0])
            fit, stop = (encoded.take(part) for part in parts[number])

            def grow_on(model: bytes | None) -> Any:
                return library.Growth(config, fit, stop, Training(model=model, is_copy=True))

            if number not in training.stored:
                return encoding, grow_on(before[number])
            copy, num_trees = training.stored[number], len(training.history)
            return encoding, _Replayed(copy, goal_of(config, fit), library, num_trees, before[number], grow_on)

        made = list(run(make, range(len(parts))))
        self._encodings, self._grown = [encoding for encoding, _ in made], [growth for _, growth in made]
        self._judge: Callable[[np.ndarray], Scores] = lambda prediction: {}

    def judged_by(self, judge: Callable[[np.ndarray], Scores]) -> None:
        """Score the predictions of the rows that stop the copies after each tree."""
        self._judge = judge

    def seed(self, seed: int) -> None:
        for number, growth in enumerate(self._grown):
            growth.seed(seed_of(seed, number))

    def grow(self) -> Scores:
        predictions = self._run(lambda growth: growth.goal.scaling.value(growth.update()), self._grown)
        return self._judge(np.concatenate(list(predictions)))

    def model(self) -> bytes:
        return pack([growth.model() for growth in self._grown])

    def models(self, num_rounds: int) -> list[Model]:
        """Those of the first rounds."""
        return [
            Model(booster=growth.cut(num_rounds), scaling=growth.goal.scaling, encoding=encoding)
            for encoding, growth in zip(self._encodings, self._grown, strict=True)
        ]


class _Replayed:
    """A `SingleGrowth` whose first trees are those of a stored copy.

    Further trees are grown when they are needed. That is exact, since a stored copy ends where a chunk of trees ends.
    """

    def __init__(
        self,
        copy: StoredCopy,
        goal: Goal,
        library: ModuleType,
        num_trees: int,
        model: bytes | None,
        grow_on: Callable[[bytes], SingleGrowth],
    ):
        """num_trees, model : where the training goes on. grow_on : makes the growth that adds trees to a model."""
        self.goal = goal
        self._copy, self._library, self._num_trees, self._grow_on = copy, library, num_trees, grow_on
        self._seed = 0
        self._growth: SingleGrowth | None = None
        if model is not None and num_trees > len(copy.predictions):
            self._growth = grow_on(model)

    def seed(self, seed: int) -> None:
        self._seed = seed
        if self._growth:
            self._growth.seed(seed)

    def update(self) -> np.ndarray:
        self._num_trees += 1
        if not self._growth and self._num_trees <= len(self._copy.predictions):
            return self._copy.predictions[self._num_trees - 1]
        if not self._growth:
            self._growth = self._grow_on(self._copy.model)
            self._growth.seed(self._seed)
        return self._growth.update()

    def cut(self, num_rounds: int) -> Any:
        return self._growth.cut(num_rounds) if self._growth else self._library.cut_model(self._copy.model, num_rounds)

    def model(self) -> bytes:
        if self._growth:
            return self._growth.model()
        return bytes(self._library.to_bytes(self._library.cut_model(self._copy.model, self._num_trees)))


def seed_of(seed: int, number: int) -> int:
    """Of the draws of copy `number`."""
    return (seed + 7919 * number) & 0x3FFFFFFF
