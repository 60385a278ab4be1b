"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results

COMPLAINTS = (
    "stateful_loader", "reshuffled_epoch", "skipped_batches", "sharded_stream", "code_on_load", "missing_processes",
    "changed_ranks", "uneven_accumulation", "checkpoint_stall",
)  # fmt: skip
"""The modules of this folder, each of which reproduces one complaint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pains(Results):
    """Problems reported by users of plain Accelerate, reproduced with it and with this project; ten minutes."""

    only: tuple[str, ...] = ()
    """Complaints to reproduce, of those in `COMPLAINTS`; empty for all."""
    short: bool = False
    """Fewer variants of the same trainings, as in CI."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PainsRank:
    """A process of plain Accelerate that `pains` launches; it writes no results of its own."""

    complaint: str = "???"
    """The complaint to reproduce."""
    out: str = "???"
    """The folder for checkpoints, the record and other results."""
    resume: str = ""
    """A checkpoint of Accelerate, in a folder step_NUMBER, to resume from."""
    variant: str = ""
    """The variant of the complaint, if it has several."""
    sampler: Literal["default", "seedable", "stateful"] = "default"
    """How the DataLoader is resumed: skip_first_batches without or with a seedable sampler, or a stateful loader."""
    shuffle: bool = True
    """Whether rows come in a random order."""
    num_rows: int = 192
    """Rows of the training split."""
    max_tokens: int = 1
    """The largest number of tokens of a row; the smallest is 1."""
    batch_size: int = 8
    """Rows in a batch of one process."""
    accumulation: int = 1
    """Batches of a process in one optimizer step."""
    epochs: int = 2
    """Passes over the rows."""
    save_at: tuple[int, ...] = ()
    """Steps after which a checkpoint is saved."""
    last_step: int = 0
    """The step to end after; 0 for the last of `epochs`."""
    keep_weights: bool = False
    """Write the final weights to `out`/final.safetensors."""
    extra_width: int = 0
    """As `recipe.extra_width`."""
