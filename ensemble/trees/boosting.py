"""The boosting loop of XGBoost and LightGBM. It grows trees in chunks, so that a resumed training ends with the same bits.

The libraries draw rows and features from random generators whose state no model file contains. So the generators are seeded
again every `chunk_rounds` trees, from the seed of the training and the number of the chunk. At the start of a chunk, an
uninterrupted training and one that was loaded from a checkpoint are in the same state. A checkpoint also contains the scores
for early stopping, so a resumed training stops at the same tree.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics import METRIC_FUNCTIONS
from ensemble.trees.distributed import RankGroup
from ensemble.trees.progress import Progress
from ensemble.trees.settings import TreesConfig
from ensemble.trees.stored import StoredCopy

Scores = dict[str, float]
"""Scores on validation by metric: that of early stopping, and the log loss if the output is a probability."""


class Booster(Protocol):
    """A booster with its training and validation rows: `Booster` of xgb.py and lgbm.py, or several of them (copies.py)."""

    def seed(self, seed: int) -> None:
        """Set the seed of all further trees. The effect is the same on a booster that was just loaded from a file."""

    def update(self) -> np.ndarray:
        """Run one round; return predictions of the validation rows, (n,) or (n, K), for the function `score` of `boost`."""

    def first_rounds(self, num_rounds: int) -> Any:
        """The trees of the first rounds only: the library's own booster, or a `Model` for each of several (copies.py)."""

    def to_bytes(self) -> bytes:
        """All trees in the library's own format."""


class CannotLearn(UserError):
    """A library refuses the rows, such as those of a fold in which no feature varies. Another library may accept them."""


class Stopped(Exception):
    """The training was asked to stop. `boost` saved its trees by `save_checkpoint`; other libraries save none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Where a training runs, and from which trees it resumes. The defaults: one process, a new booster, no checkpoints."""

    group: RankGroup = dataclasses.field(default_factory=RankGroup)
    model: bytes | None = None
    """The trees to resume from, as `Booster.to_bytes` returned them."""
    history: tuple[Scores, ...] = ()
    """The scores after each tree of `model`."""
    page_folder: Path | None = None
    """The folder where XGBoost stores its rows with memory=low."""
    stop_requested: Callable[[], int] = lambda: 0
    """Returns a number other than 0 if this process was asked to stop."""
    save_checkpoint: Callable[[bytes, list[Scores], float], None] = lambda model, history, learning_rate: None
    """Writes a checkpoint; called on rank 0."""
    is_refit: bool = False
    """Whether the validation rows are training rows too. Then they are not scored, and all trees are kept."""
    seconds_left: Callable[[], float] = lambda: math.inf
    """Returns the seconds that are left; at 0 or less, `boost` ends with the trees so far, after at least one round."""
    copy: int | None = None
    """The number of this copy, if copies are trained at the same time: then any of several threads may run its rounds."""
    stored_copies: Mapping[int, StoredCopy] = dataclasses.field(default_factory=dict)
    """Copies that other tasks have trained already, by number."""
    on_chunk: Callable[[list[Scores]], None] = lambda history: None
    """Called with the scores at the start of each chunk; an exception that it raises ends the training."""
    bins: list[Any] | None = None
    """A list that keeps the binned rows for further trainings on them, for copies one list for each; None to bin again."""

    def binned(self, make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """The binned training and validation rows that `make` returns, or those in `bins`."""
        if self.bins is None:
            return make()
        if not self.bins:
            self.bins.extend(make())
        return self.bins[0], self.bins[1]


def boost(
    config: TreesConfig, metric: str, booster: Booster, score: Callable[[np.ndarray], Scores] | None, training: Training
) -> tuple[list[Scores], int]:
    """Train until early stopping by `metric`, a key of the scores; without `score`, as in a refit, train all trees.

    Returns the scores after each tree, and the best number of trees, to which the caller cuts the booster by `first_rounds`.
    score : scores the predictions that `booster.update` returns.

    Every rank scores the whole validation split, since average precision is not a mean over parts. The scores of rank 0
    decide on all ranks, so all stop at the same tree. If any rank was asked to stop, rank 0 saves the trees at the end of
    the chunk, and all ranks raise `Stopped`.
    """
    group, history = training.group, list(training.history)
    saved_at = time.monotonic()
    is_late = bool(history) and any(group.gather(training.seconds_left() <= 0))
    name = f"{config.library} refit" if training.is_refit else config.library
    with Progress(name, config.num_rounds, len(history), group.rank == 0) as progress:
        while (
            not is_late
            and len(history) < config.num_rounds
            and not (score and is_past_best(history, metric, config.early_stopping_rounds))
        ):
            chunk, trees_in_chunk = divmod(len(history), config.chunk_rounds)
            if trees_in_chunk == 0:
                must_stop = any(group.gather(bool(training.stop_requested())))
                is_due = time.monotonic() - saved_at >= config.checkpoint_s
                if group.rank == 0 and len(history) > len(training.history) and (must_stop or is_due):
                    training.save_checkpoint(booster.to_bytes(), history, config.learning_rate)
                    saved_at = time.monotonic()
                if must_stop:
                    raise Stopped
                training.on_chunk(history)
                booster.seed(copy_seed(chunk_seed(config.seed, chunk), training.copy or 0))
            predictions = booster.update()
            by_rank = group.gather((score(predictions) if score else {}, training.seconds_left() <= 0))
            history.append(by_rank[0][0])
            is_late = any(rank_is_late for _, rank_is_late in by_rank)
            progress.update(f"{metric} {history[-1][metric]:.6g}" if score else "")
    return history, best_round(history, metric) if score else len(history)


def best_round(history: list[Scores], metric: str) -> int:
    """The number of trees with the best score, the smallest of several. NaN is worse than any score."""
    sign = 1 if METRIC_FUNCTIONS[metric].higher_is_better else -1
    scores = sign * np.array([scores[metric] for scores in history])
    return int(np.argmax(np.where(np.isnan(scores), -np.inf, scores))) + 1


def chunk_seed(seed: int, chunk: int) -> int:
    """The seed of a chunk, 30 bits. With seed + chunk, the second chunk of one seed would repeat the first of the next."""
    return int(np.random.SeedSequence([seed, chunk]).generate_state(1)[0]) >> 2


def copy_seed(seed: int, number: int) -> int:
    """The seed of copy `number`, 30 bits; that of copy 0 is the seed itself."""
    return (seed + 7919 * number) & 0x3FFFFFFF


def is_past_best(history: list[Scores], metric: str, patience: int) -> bool:
    """Whether the last `patience` trees have not improved the score."""
    return bool(history) and len(history) - best_round(history, metric) >= patience
