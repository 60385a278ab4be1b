"""Boosting in chunks of trees, so that a training that was killed goes on to the same bits; for both libraries.

They draw rows and features from generators whose state no model file holds. So the draws begin anew every `chunk_rounds`
trees, from a seed made of the training's and the chunk's number: there, a training that never stopped and one that was read
from a file are in the same state. The scores that early stopping looks at are in the file too, so where the chunks end does
not change where the training does.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from ensemble.trees.config import TreesConfig
from ensemble.trees.distributed import Group

Scores = dict[str, float]
"""log_loss and average_precision on validation."""


class Growth(Protocol):
    """A library's booster on its data, one tree after the other."""

    def seed(self, seed: int) -> None:
        """Draw the rows and features of all further trees from `seed`, as a booster would that was just read from a file."""

    def grow(self) -> Scores:
        """Add a tree, and score all trees."""

    def model(self) -> bytes:
        """All trees, as the library reads them."""


class Stopped(Exception):
    """The training was asked to stop, and has kept its trees."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What surrounds the trees; the defaults are one process that begins at the first tree and keeps no checkpoint."""

    group: Group = dataclasses.field(default_factory=Group)
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


def boost(config: TreesConfig, growth: Growth, training: Training) -> tuple[list[Scores], int]:
    """Grow until it is enough: the scores after each tree, and the number of the best.

    Every rank scores the whole validation split, because average precision cannot be put together from parts; rank 0's
    scores count on all of them, so that none can stop while another goes on. A request to stop is obeyed where a chunk
    ends, by all ranks at once: `Stopped` is raised when the trees have been kept.
    """
    group, history = training.group, list(training.history)
    kept_at = time.monotonic()
    with tqdm(
        total=config.num_rounds, initial=len(history), desc=config.library, unit=" trees", disable=group.rank > 0
    ) as bar:
        while not _is_enough(config, history):
            chunk, place_in_chunk = divmod(len(history), config.chunk_rounds)
            if place_in_chunk == 0:
                asked = any(group.gather(bool(training.asked())))
                due = time.monotonic() - kept_at >= config.checkpoint_s
                if group.rank == 0 and len(history) > len(training.history) and (asked or due):
                    training.keep(growth.model(), history)
                    kept_at = time.monotonic()
                if asked:
                    raise Stopped
                growth.seed(chunk_seed(config.seed, chunk))
            history.append(group.gather(growth.grow())[0])
            bar.update()
            bar.set_postfix(average_precision=f"{history[-1]['average_precision']:.4f}")
    return history, best_round(history)


def best_round(history: list[Scores]) -> int:
    """The number of trees with the highest average precision; of equal ones, the fewest."""
    return int(np.argmax([scores["average_precision"] for scores in history])) + 1


def chunk_seed(seed: int, chunk: int) -> int:
    """30 bits; seed + chunk would give the second chunk of one seed the draws of the next seed's first."""
    return int(np.random.SeedSequence([seed, chunk]).generate_state(1)[0]) >> 2


def _is_enough(config: TreesConfig, history: list[Scores]) -> bool:
    if not history:
        return False
    return len(history) >= config.num_rounds or len(history) - best_round(history) >= config.early_stopping_rounds


def log_loss(target: np.ndarray, margin: np.ndarray) -> float:
    """Mean log loss in nats of log odds; both (n,)."""
    return float(np.mean(np.logaddexp(0, margin.astype(np.float64)) - target * margin))
