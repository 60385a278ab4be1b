"""Copies of a tree member on the folds of cross-validation, grown side by side: a tree to each of them at a time.

All copies stop at the same number of trees, the best by the score of the rows that stop them, put together: with few rows
the score of one copy alone is too noisy to stop by. Each copy grows on one thread, several copies at once, so a member has
the same bits on any number of cores; a single copy grows on all threads.

    grown = train(library, config, rows, folds, training)
    grown.out_of_fold          predictions of the rows that the copies hold out
    grown.models               what predicts new rows: the copies, or with config.refit boosters grown anew on all rows
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data.cross_validation import Fold
from ensemble.trees import unknown
from ensemble.trees.boosting import Scores, Training, boost
from ensemble.trees.objective import Goal, Judge, goal_of
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A booster, and the scale of the target that it learned."""

    booster: Any
    scaling: Scaling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grown:
    """The result of a training."""

    models: list[Model]
    """Their mean predicts new rows."""
    history: list[Scores]
    best_round: int
    out_of_fold: dict[str, np.ndarray] | None = None
    """`row_id`, (n,), and `prediction` in the target's unit, (n,) or (n, K) for K classes."""


def train(
    library: ModuleType, config: TreesConfig, rows: TreeData, folds: Sequence[Fold], training: Training, is_forward: bool
) -> Grown:
    """Grow the copies, predict what they hold out, and with `config.refit`, or if folds are forward in time, grow anew.

    rows : the split `train`. training : its bins and pages are not used. Raises `Stopped` as `boost` does.
    """
    goal = goal_of(config, rows)
    with ThreadPoolExecutor(max(1, config.threads)) as pool:
        copies = _Copies(library, config, rows, [(fold.fit, fold.stop) for fold in folds], training.model, pool.map)
        copies.judged_by(Judge(dataclasses.replace(goal, scaling=Scaling()), rows.take(copies.stopped_on)))
        history, best_round = boost(config, goal.metric, copies, training)
        models = copies.models(best_round)
        parts = pool.map(lambda pair: _predict(library, goal, rows, *pair), zip(models, folds, strict=True))
        held = np.concatenate([fold.held for fold in folds])
        out_of_fold = {"row_id": rows.column("row_id")[held], "prediction": np.concatenate(list(parts))}
        if config.refit or is_forward:
            every = np.arange(len(rows))
            anew = dataclasses.replace(config, num_rounds=best_round)
            refits = _Copies(library, anew, rows, [(every, every[:1])] * max(1, config.num_refits), None, pool.map)
            boost(anew, goal.metric, refits, dataclasses.replace(training, model=None, history=(), is_refit=True))
            models = refits.models(best_round)
    return Grown(models=models, history=history, best_round=best_round, out_of_fold=out_of_fold)


def _predict(library: ModuleType, goal: Goal, rows: TreeData, model: Model, fold: Fold) -> np.ndarray:
    """The rows that a copy holds out; what its rows never had is predicted as `unknown.py` describes."""
    known = unknown.Known.of(unknown.learn(goal, [rows.take(fold.fit)]), rows.features)

    def predict(features: np.ndarray) -> np.ndarray:
        return library.predict(model.booster, features)

    found = [known.predict(predict, block)[0] for block in rows.take(fold.held).batches()]
    return model.scaling.value(np.concatenate(found))


class _Copies:
    """A `boosting.Growth` of several boosters."""

    def __init__(
        self,
        library: ModuleType,
        config: TreesConfig,
        rows: TreeData,
        parts: Sequence[tuple[np.ndarray, np.ndarray]],
        model: bytes | None,
        run: Callable[..., Any],
    ):
        self._library, self._run = library, run
        config = dataclasses.replace(config, threads=max(1, config.threads // len(parts)))
        before = [None] * len(parts) if model is None else unpack(model)

        def make(part: tuple[tuple[np.ndarray, np.ndarray], bytes | None]) -> Any:
            (fit, stop), its = part
            return library.Growth(config, rows.take(fit), rows.take(stop), Training(model=its))

        self._grown = list(run(make, zip(parts, before, strict=True)))
        self.stopped_on = np.concatenate([stop for _, stop in parts])
        self._judge: Callable[[np.ndarray], Scores] = lambda prediction: {}

    def judged_by(self, judge: Callable[[np.ndarray], Scores]) -> None:
        """Score the predictions of `stopped_on` after each tree."""
        self._judge = judge

    def seed(self, seed: int) -> None:
        for number, growth in enumerate(self._grown):
            growth.seed((seed + 7919 * number) & 0x3FFFFFFF)

    def grow(self) -> Scores:
        predictions = self._run(lambda growth: growth.goal.scaling.value(growth.update()), self._grown)
        return self._judge(np.concatenate(list(predictions)))

    def model(self) -> bytes:
        return pack([growth.model() for growth in self._grown])

    def models(self, num_rounds: int) -> list[Model]:
        """Those of the first rounds."""
        return [Model(booster=growth.cut(num_rounds), scaling=growth.goal.scaling) for growth in self._grown]


def pack(models: Sequence[bytes]) -> bytes:
    """Several models as one file: a line of JSON with their lengths, then the models."""
    return json.dumps([len(model) for model in models]).encode() + b"\n" + b"".join(models)


def unpack(content: bytes) -> list[bytes]:
    header, _, rest = content.partition(b"\n")
    ends = np.cumsum(json.loads(header)).tolist()
    return [rest[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
