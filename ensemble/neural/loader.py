"""Which rows make which batch, and the DataLoader that fetches them.

The global batch is the constant: `batch_size` rows, whatever the number of ranks. It is cut into micro-batches, and the
number of accumulation steps follows: micro-batch × ranks × accumulation = global batch. The order of rows depends on the
seed and the epoch alone, so any step can be found again without reading what came before it.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ensemble.errors import UserError

Batch = dict[str, torch.Tensor]


class Rows(Protocol):
    """A split of the data: as many examples as its length, gathered by row number without a loop over rows."""

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One forward pass of one rank. An `idle` one stands in for a rank that has no row left: it counts for nothing."""

    step: int
    epoch: int
    rows: np.ndarray
    idle: bool
    is_last_of_step: bool


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The cutting of every global batch of a training into this rank's micro-batches."""

    num_rows: int
    batch_size: int
    micro_batch_size: int
    num_ranks: int
    rank: int
    seed: int

    @classmethod
    def make(
        cls, num_rows: int, batch_size: int, micro_batch_size: int, num_ranks: int, rank: int, seed: int
    ) -> "BatchPlan":
        """`micro_batch_size` 0: no accumulation. `UserError` for sizes that do not divide, naming the nearest that do."""
        per_rank = batch_size // num_ranks
        if batch_size < 1 or batch_size % num_ranks:
            near = max(1, round(batch_size / num_ranks)) * num_ranks
            raise UserError(f"batch_size={batch_size} cannot be cut for {num_ranks} ranks: the nearest that can is {near}")
        micro = micro_batch_size or per_rank
        if micro < 1 or per_rank % micro:
            divisors = [size for size in range(1, per_rank + 1) if per_rank % size == 0]
            near = min(divisors, key=lambda size: abs(size - micro))
            raise UserError(
                f"micro_batch_size={micro} × {num_ranks} ranks does not divide batch_size={batch_size}: "
                f"the nearest that does is micro_batch_size={near}"
            )
        return cls(num_rows, batch_size, micro, num_ranks, rank, seed)

    @property
    def accumulation(self) -> int:
        return self.batch_size // (self.micro_batch_size * self.num_ranks)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def micro_batches(self, first_step: int, last_step: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the steps [first_step, last_step): every row once an epoch, the tail ragged."""
        order, order_epoch = np.empty(0, np.int64), -1
        for step in range(first_step, last_step):
            epoch, within = divmod(step, self.steps_per_epoch)
            if epoch != order_epoch:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
                order_epoch = epoch
            batch = order[within * self.batch_size : (within + 1) * self.batch_size]
            per_round = self.micro_batch_size * self.num_ranks
            num_rounds = math.ceil(len(batch) / per_round)
            for number in range(num_rounds):
                begin = number * per_round + self.rank * self.micro_batch_size
                rows = batch[begin : begin + self.micro_batch_size]
                idle = len(rows) == 0
                yield MicroBatch(step, epoch, batch[:1] if idle else rows, idle, number == num_rounds - 1)


class _ByRows(torch.utils.data.Dataset[Batch]):
    def __init__(self, source: Rows):
        self.source = source

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return self.source.gather(rows)


def make_loader(source: Rows, row_numbers: Sequence[np.ndarray] | Any, num_workers: int, pin_memory: bool) -> Any:
    """A DataLoader that yields `source.gather(rows)` for each entry of `row_numbers`, in order.

    Workers are started by forkserver: a fork after OpenMP work hangs. The loader has a generator of its own, for it draws a
    seed when it starts: from the global one, dropout after --resume would differ from that of the uninterrupted run.
    """
    return torch.utils.data.DataLoader(
        _ByRows(source),
        sampler=row_numbers,
        batch_size=None,
        generator=torch.Generator(),
        num_workers=num_workers,
        pin_memory=pin_memory,
        multiprocessing_context="forkserver" if num_workers else None,
        prefetch_factor=4 if num_workers else None,
    )
