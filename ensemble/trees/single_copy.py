"""One copy of a tree member, trained by a task of its own, so that a cluster trains all copies of all members at once.

All copies of a member stop at one number of trees, chosen by their pooled score (copies.py), which needs all copies. So
the task stops by the score of its own copy, after `PATIENCE` × `early_stopping_rounds` trees without a better score. It
stores the trees (stored.py), and the training of the member reads them. If that training needs more trees, it adds them to
the copy.
"""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import numpy as np

from ensemble.data.cross_validation import CrossValidation, Fold
from ensemble.trees import rows, stored, target_encoding, train
from ensemble.trees.boosting import Scores, Stopped, Training, boost, is_past_best
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.objective import ValidationMetrics, objective_of
from ensemble.trees.predict import library_module
from ensemble.trees.rows import TreeData
from ensemble.trees.scaling import Scaling
from ensemble.trees.settings import TreesConfig

PATIENCE = 2
"""A copy stops after this number times `config.early_stopping_rounds` without a better score."""


class _EarlyStop(Exception):
    """The score has not improved for long enough."""


def train_copy(config: TreesConfig, number: int, stop_requested: Callable[[], int] = lambda: 0) -> None:
    """Train copy `number` of the member for `config.out`, and store it, unless it is stored already.

    The copy is trained on one thread, as in `copies.train`. A killed task resumes from its last checkpoint; libraries that
    train a copy to its end start again. Raises `Stopped` if `stop_requested` returns a number other than 0, `CannotLearn` if
    the library refuses the rows, and `UserError` if another task trains the copy.
    """
    train.check(config)
    checkpoints = stored.checkpoints_of(config.out, number)
    with checkpoints.locked():
        _train_locked(config, number, checkpoints, stop_requested)


def _train_locked(config: TreesConfig, number: int, checkpoints: Checkpoints, stop_requested: Callable[[], int]) -> None:
    """As `train_copy`, with the checkpoints of the copy, which are locked."""
    manifest = rows.tree_manifest(config.data)
    cv = CrossValidation.from_manifest(manifest)
    assert cv is not None
    train_rows = rows.TreeData(config.data, "train", manifest)
    config = dataclasses.replace(config, threads=1, memory="in_core")
    config, objective, settings = train.resolve(config, train_rows, train.stopping_rows(cv, config.data, train_rows))
    state = {"fingerprint": manifest["fingerprint"], "config": settings}
    checkpoints.sweep()
    checkpoint = checkpoints.newest_valid()
    if checkpoint and not stored.has_state(checkpoint[1], state):
        checkpoints.clear()
        checkpoint = None
    if checkpoint and checkpoint[1]["is_whole"]:
        print(f"copy {number} of {config.out} is trained already", file=sys.stderr)
        return
    fold = cv.folds(config.data, objective.task.cluster)[number]

    def save(copy: stored.StoredCopy, history: list[Scores], is_whole: bool) -> None:
        checkpoints.write(copy.to_bytes(), {**state, "history": history, "is_whole": is_whole})

    library = library_module(config.library)
    with train.refusals_explained(config):
        if hasattr(library, "train_copy"):
            parts = train_rows.take(fold.fit), train_rows.take(fold.stop)
            booster, losses = library.train_copy(config, number, *parts, lambda: bool(stop_requested()))
            if stop_requested():
                raise Stopped
            save(stored.StoredCopy(library.to_bytes(booster), losses), [], True)
        else:
            resumed = checkpoint and (stored.StoredCopy.from_bytes(checkpoint[0]), checkpoint[1]["history"])
            copy, history = _train(library, config, train_rows, fold, number, resumed, save, stop_requested)
            save(copy, history, True)
    print(f"trained: copy {number} of {config.out}", file=sys.stderr)


def _train(
    library: ModuleType,
    config: TreesConfig,
    train_rows: TreeData,
    fold: Fold,
    number: int,
    resumed: tuple[stored.StoredCopy, list[Scores]] | None,
    save: Callable[[stored.StoredCopy, list[Scores], bool], None],
    stop_requested: Callable[[], int],
) -> tuple[stored.StoredCopy, list[Scores]]:
    """The trained copy and its scores after each tree, with a library that adds one tree at a time."""
    objective = objective_of(config, train_rows)
    model, history, predictions = (resumed[0].model, resumed[1], [*resumed[0].predictions]) if resumed else (None, [], [])
    unscaled = dataclasses.replace(objective, scaling=Scaling())  # `score` converts predictions to the target's unit
    metrics = ValidationMetrics(unscaled, train_rows.take(fold.stop))

    def score(prediction: np.ndarray) -> Scores:
        predictions.append(prediction)
        return metrics(booster.objective.scaling.value(prediction))

    def on_chunk(scores: list[Scores]) -> None:
        history[:] = scores
        if is_past_best(scores, objective.metric, PATIENCE * config.early_stopping_rounds):
            raise _EarlyStop

    training = Training(
        model=model,
        history=tuple(history),
        copy=number,
        stop_requested=stop_requested,
        save_checkpoint=lambda trees, scores, _: save(stored.StoredCopy(trees, np.stack(predictions)), scores, False),
        on_chunk=on_chunk,
    )
    _, encoded = target_encoding.fit(objective, train_rows, fold.fit)
    booster = library.Booster(config, encoded.take(fold.fit), encoded.take(fold.stop), training)
    no_early_stopping = dataclasses.replace(config, early_stopping_rounds=config.num_rounds)  # `on_chunk` stops instead
    with suppress(_EarlyStop):
        history, _ = boost(no_early_stopping, objective.metric, booster, score, training)
    return stored.StoredCopy(booster.to_bytes(), np.stack(predictions)), history
