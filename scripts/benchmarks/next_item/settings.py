"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItem(Results):
    """next_item beside the public references, in CPU seconds of one thread and peak memory; some ten minutes."""

    rounds: int = 10
    """Pieces of work of ours, each between two of the reference; at least 2. A preparation is repeated a fifth as often."""
    sasrec: str = ""
    """The folder of model.py and utils.py in a checkout of pmixer/SASRec.pytorch; empty measures ours alone."""
    tisasrec: str = ""
    """The same of pmixer/TiSASRec.pytorch."""
    parts: tuple[str, ...] = ()
    """Of sasrec_step, tisasrec_step, evaluate and prepare, those to measure; empty for all."""
    num_users: int = 6040
    """Users of the larger generated set, as MovieLens 1M has; all else shrinks with them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextItemRun:
    """One process that `next_item` and `next_item_growth` start, in a folder of theirs; it writes no JSON."""

    side: Literal["ours", "reference"] = "ours"
    """Whose work; the reference's modules are found by PYTHONPATH."""
    work: Literal["step", "evaluate", "prepare"] = "step"
    """A training step, ranking items for users, or preparing data."""
    time_aware: bool = False
    """TiSASRec, and its reference; else SASRec."""
    num_streams: int = 0
    """Streams of mHC."""
    max_length: int = 50
    """Items of a sequence at most."""
    num_sequences: int = 128
    """Sequences of a batch, or users to rank items for."""
    loss: Literal["bce", "cross_entropy"] = "bce"
    """Of our training step; the reference's is bce."""


SCHEMAS: dict[str, type] = {
    "next_item": NextItem,
    "next-item-run": NextItemRun,
}
