"""Boosting in chunks of trees, so that a training that was killed goes on to the same bits; for both libraries.

They draw rows and features from generators whose state no model file holds. So the draws begin anew every `chunk_rounds`
trees, from a seed made of the training's and the chunk's number: there, a training that never stopped and one that was read
from a file are in the same state. The scores that early stopping looks at are in the file too, so where the chunks end does
not change where the training does.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ensemble.errors import UserError
from ensemble.metrics import METRIC_OF
from ensemble.trees.distributed import RankGroup
from ensemble.trees.progress import Progress
from ensemble.trees.settings import TreesConfig
from ensemble.trees.stored import StoredCopy

Scores = dict[str, float]
"""On validation: the metric of early stopping, and for probabilities of a yes the log loss."""


class Growth(Protocol):
    """A library's booster on its data, one tree after the other."""

    def seed(self, seed: int) -> None:
        """Draw the rows and features of all further trees from `seed`, as a booster would that was just read from a file."""

    def grow(self) -> Scores:
        """Add a tree, and score all trees."""

    def model(self) -> bytes:
        """All trees, as the library reads them."""


class SingleGrowth(Growth, Protocol):
    """A library's booster that copies.py grows beside others; each library's module has one of the name `Growth`."""

    def update(self) -> np.ndarray:
        """Add a tree; predictions of all trees for the validation rows, (n,) or (n, K), on the scale that is learned."""

    def cut(self, num_rounds: int) -> Any:
        """The booster of the first rounds."""


class CannotLearn(UserError):
    """A library refuses the rows, such as those of a fold in which no feature varies; another may take them."""


class Stopped(Exception):
    """The training was asked to stop, and has kept its trees."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What surrounds the trees; the defaults are one process that begins at the first tree and keeps no checkpoint."""

    group: RankGroup = dataclasses.field(default_factory=RankGroup)
    """The ranks that grow them together."""
    model: bytes | None = None
    """The trees to go on from."""
    history: tuple[Scores, ...] = ()
    """Their scores."""
    pages: Path | None = None
    """The folder where XGBoost keeps its rows with memory=low."""
    asked: Callable[[], int] = lambda: 0
    """Whether this process was asked to stop."""
    keep: Callable[[bytes, list[Scores]], None] = lambda model, history: None
    """Writes a checkpoint; called on rank 0."""
    is_refit: bool = False
    """Whether the rows of validation are learned too: their scores then say nothing, and all trees are kept."""
    seconds_left: Callable[[], float] = lambda: math.inf
    """Until the time is up: then the trees that there are become the member's."""
    is_copy: bool = False
    """Whether other boosters grow beside it, on any of several threads."""
    stored: Mapping[int, StoredCopy] = dataclasses.field(default_factory=dict)
    """Copies that were grown in advance, by number."""
    watch: Callable[[list[Scores]], None] = lambda history: None
    """Sees the scores where a chunk ends; what it raises ends the training."""
    bins: list[Any] | None = None
    """Where a library leaves the bins of its rows, and finds them, when it trains on the same rows again and again."""

    def binned(self, make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """What `make` returns for the training and the validation rows; made once where `bins` are kept."""
        if self.bins is None:
            return make()
        if not self.bins:
            self.bins.extend(make())
        return self.bins[0], self.bins[1]


def boost(config: TreesConfig, metric: str, growth: Growth, training: Training) -> tuple[list[Scores], int]:
    """Grow until it is enough by the metric: the scores after each tree, and the number of the best.

    Every rank scores the whole validation split, because average precision cannot be put together from parts; rank 0's
    scores count on all of them, so that none can stop while another goes on. A request to stop is obeyed where a chunk
    ends, by all ranks at once: `Stopped` is raised when the trees have been kept.
    """
    group, history = training.group, list(training.history)
    kept_at = time.monotonic()
    name = f"{config.library} refit" if training.is_refit else config.library
    with Progress(name, config.num_rounds, len(history), group.rank == 0) as progress:
        while len(history) < config.num_rounds and (training.is_refit or not _is_past_best(config, metric, history)):
            chunk, place_in_chunk = divmod(len(history), config.chunk_rounds)
            if place_in_chunk == 0:
                asked = any(group.gather(bool(training.asked())))
                due = time.monotonic() - kept_at >= config.checkpoint_s
                if group.rank == 0 and len(history) > len(training.history) and (asked or due):
                    training.keep(growth.model(), history)
                    kept_at = time.monotonic()
                if asked:
                    raise Stopped
                if history and any(group.gather(training.seconds_left() <= 0)):
                    break
                training.watch(history)
                growth.seed(chunk_seed(config.seed, chunk))
            history.append(group.gather(growth.grow())[0])
            progress.update("" if training.is_refit else f"{metric} {history[-1][metric]:.4f}")
    return history, len(history) if training.is_refit else best_round(history, metric)


def best_round(history: list[Scores], metric: str) -> int:
    """The number of trees with the best score; of equal ones, the fewest. What is not defined is worse than any score."""
    sign = 1 if METRIC_OF[metric].higher_is_better else -1
    scores = sign * np.array([scores[metric] for scores in history])
    return int(np.argmax(np.where(np.isnan(scores), -np.inf, scores))) + 1


def chunk_seed(seed: int, chunk: int) -> int:
    """30 bits; seed + chunk would give the second chunk of one seed the draws of the next seed's first."""
    return int(np.random.SeedSequence([seed, chunk]).generate_state(1)[0]) >> 2


def _is_past_best(config: TreesConfig, metric: str, history: list[Scores]) -> bool:
    return bool(history) and len(history) - best_round(history, metric) >= config.early_stopping_rounds
