"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses
from typing import Literal

from benchmarks.results import Results

COMPLAINTS = (
    "stateful_loader", "reshuffled_epoch", "skipped_batches", "sharded_stream", "code_on_load", "missing_processes",
    "changed_ranks", "uneven_accumulation", "checkpoint_stall",
)  # fmt: skip
"""The modules of this folder that each reproduce one complaint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pains(Results):
    """What users of plain Accelerate report, reproduced beside this project; some ten minutes."""

    only: tuple[str, ...] = ()
    """Complaints to reproduce, of those in `COMPLAINTS`; none for all."""
    short: bool = False
    """Fewer variants of the same trainings, as in CI: one minute for some of the complaints."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PainsRank:
    """A process of plain Accelerate that `pains` launches; it writes no JSON of its own."""

    complaint: str = "???"
    """The module with the function `rank`."""
    out: str = "???"
    """The folder for its checkpoints and what it reports."""
    resume: str = ""
    """A checkpoint of Accelerate's, in a folder step_NUMBER, to resume from."""
    variant: str = ""
    """What a complaint has several of."""
    sampler: Literal["default", "seedable", "stateful"] = "default"
    """How the DataLoader is to be resumed: skip_first_batches without or with a seedable sampler, or a stateful loader."""
    shuffle: bool = True
    """Whether rows come in a random order."""
    num_rows: int = 192
    """Rows of the training split."""
    max_tokens: int = 1
    """Each row has 1 to so many tokens."""
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
    """Write the final weights to final.safetensors in `out`."""
    extra_width: int = 0
    """As `recipe.extra_width`."""


SCHEMAS: dict[str, type] = {"pains": Pains, "pains-rank": PainsRank}
