"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItem(Results):
    """next_item and the public references, in CPU seconds of one thread and peak memory; ten minutes."""

    rounds: int = 10
    """Measurements of this project, each between two of the reference; at least 2. Preparations are a fifth as many."""
    sasrec: str = ""
    """The folder of model.py and utils.py in a checkout of pmixer/SASRec.pytorch; empty measures this project alone."""
    tisasrec: str = ""
    """The same for pmixer/TiSASRec.pytorch."""
    parts: tuple[str, ...] = ()
    """The parts to measure, of sasrec_step, tisasrec_step, evaluate and prepare; empty for all."""
    num_users: int = 6040
    """Users of the larger generated set, as in MovieLens 1M; all other sizes are in proportion."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemRun:
    """A process that `next_item` and `next_item_growth` start in a folder of data; it writes no results of its own."""

    side: Literal["ours", "reference"] = "ours"
    """This project, or the reference, whose modules are found through PYTHONPATH."""
    work: Literal["step", "evaluate", "prepare"] = "step"
    """A training step, ranking items for users, or preparing data."""
    time_aware: bool = False
    """TiSASRec; otherwise SASRec."""
    num_streams: int = 0
    """Streams of mHC; 0 for residuals."""
    max_length: int = 50
    """The largest number of items of a sequence."""
    num_sequences: int = 128
    """Sequences of a batch, or users to rank items for."""
    loss: Literal["bce", "cross_entropy"] = "bce"
    """The loss of our training step; that of the reference is bce."""
