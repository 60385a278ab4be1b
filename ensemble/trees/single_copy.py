"""One copy of a tree member, grown by a task of its own, so that a cluster grows all copies of all members at once.

All copies of a member stop at one number of trees by their pooled score (copies.py), which a task alone cannot know. So it
stops by the copy's own score, but only after `PATIENCE` times as many trees without a better one. It stores what it has
grown (stored.py), and the member's training reads that. If a copy needs more trees then, the training grows them.
"""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from ensemble.data.cross_validation import CrossValidation, Fold
from ensemble.trees import copies, rows, stored, target_encoding, train
from ensemble.trees.boosting import Scores, SingleGrowth, Stopped, Training, best_round, boost
from ensemble.trees.objective import Judge, goal_of
from ensemble.trees.predict import module_of
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

PATIENCE = 2


class _Enough(Exception):
    """No better score is to be expected."""


def grow(config: TreesConfig, number: int, asked: Callable[[], int] = lambda: 0) -> None:
    """Grow copy `number` of the member that is to be written to `config.out`, and store it; one that is stored stays.

    It grows on one thread, as in `copies.train`. A task that was killed goes on from its last checkpoint; CatBoost begins
    the copy anew. Raises `Stopped` when `asked` is not 0, `CannotLearn` if the library refuses the rows.
    """
    train.check(config)
    about = rows.description(config.data)
    cv = CrossValidation.from_manifest(about)
    assert cv is not None
    train_rows = rows.TreeData(config.data, "train", about)
    config, goal, settings = train.settled(dataclasses.replace(config, threads=1, memory="in_core"), train_rows)
    state = {"fingerprint": about["fingerprint"], "config": settings}
    checkpoints = stored.checkpoints_of(config.out, number)
    checkpoints.sweep()
    found = checkpoints.newest_sound()
    if found and not stored.is_of(found[1], state):
        checkpoints.clear()
        found = None
    if found and found[1]["is_whole"]:
        print(f"copy {number} of {config.out} is grown already", file=sys.stderr)
        return
    fold = cv.folds(config.data, goal.task.cluster)[number]

    def keep(copy: stored.StoredCopy, history: list[Scores], is_whole: bool) -> None:
        checkpoints.write(copy.to_bytes(), {**state, "history": history, "is_whole": is_whole})

    library = module_of(config.library)
    with train.refusals_explained(config):
        if hasattr(library, "grow_one"):
            parts = train_rows.take(fold.fit), train_rows.take(fold.stop)
            booster, curve = library.grow_one(config, number, *parts, lambda: bool(asked()))
            if asked():
                raise Stopped
            keep(stored.StoredCopy(library.to_bytes(booster), curve), [], True)
        else:
            before = found and (stored.StoredCopy.from_bytes(found[0]), found[1]["history"])
            copy, history = _grow(library, config, train_rows, fold, number, before, keep, asked)
            keep(copy, history, True)
    print(f"grown: copy {number} of {config.out}", file=sys.stderr)


def _grow(
    library: ModuleType,
    config: TreesConfig,
    train_rows: TreeData,
    fold: Fold,
    number: int,
    before: tuple[stored.StoredCopy, list[Scores]] | None,
    keep: Callable[[stored.StoredCopy, list[Scores], bool], None],
    asked: Callable[[], int],
) -> tuple[stored.StoredCopy, list[Scores]]:
    """A tree at a time."""
    goal, stop = goal_of(config, train_rows), train_rows.take(fold.stop)
    its = before[0] if before else None
    one = Training(model=its.model if its else None, is_copy=True)
    _, encoded = target_encoding.learn(goal, train_rows, fold.fit)
    growth = library.Growth(config, encoded.take(fold.fit), encoded.take(fold.stop), one)
    judge = Judge(dataclasses.replace(goal, scaling=Scaling()), stop)
    recorded = _Recorded(growth, number, judge, [] if its is None else list(its.predictions))
    history: list[Scores] = before[1] if before else []

    def watch(now: list[Scores]) -> None:
        history[:] = now
        if now and len(now) - best_round(now, goal.metric) >= PATIENCE * config.early_stopping_rounds:
            raise _Enough

    training = Training(
        model=one.model,
        history=tuple(history),
        asked=asked,
        keep=lambda _, now: keep(recorded.copy(), now, False),
        watch=watch,
    )
    patient = dataclasses.replace(config, early_stopping_rounds=config.num_rounds)  # `watch` stops it, where a chunk ends
    with suppress(_Enough):
        history, _ = boost(patient, goal.metric, recorded, training)
    return recorded.copy(), history


class _Recorded:
    """A `boosting.Growth` of one copy, with what it predicted after each tree."""

    def __init__(self, growth: SingleGrowth, number: int, judge: Callable[[np.ndarray], Scores], before: list[np.ndarray]):
        self._growth: Any = growth
        self._number, self._judge, self._predictions = number, judge, before

    def seed(self, seed: int) -> None:
        self._growth.seed(copies.seed_of(seed, self._number))

    def grow(self) -> Scores:
        self._predictions.append(self._growth.update())
        return self._judge(self._growth.goal.scaling.value(self._predictions[-1]))

    def model(self) -> bytes:
        return b""  # `copy` has it

    def copy(self) -> stored.StoredCopy:
        return stored.StoredCopy(self._growth.model(), np.stack(self._predictions))
