"""Which rows make which batch, and the feed that brings them to the device.

The global batch is the constant: `batch_size` rows, whatever the number of ranks. It is cut into micro-batches, and the
number of accumulation steps follows: micro-batch × ranks × accumulation = global batch. The order of rows depends on the
seed and the epoch alone, so any step can be found again without reading what came before it.
"""

import atexit
import dataclasses
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch

from ensemble.errors import UserError

Batch = dict[str, torch.Tensor]


class Rows(Protocol):
    """A split of the data: as many examples as its length, gathered by row number without a loop over rows.

    Ragged rows may have an attribute `lengths`, integers of shape (num_rows,), by which they are bucketed.
    """

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """What is drawn for a row, as in augmentation, follows from seed, epoch and row: not from how batches are cut."""


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """One forward pass of one rank. An `idle` one stands in for a rank that has no row left: it counts for nothing."""

    step: int
    epoch: int
    rows: np.ndarray
    begin: int
    """The position of the first row within the global batch."""
    idle: bool
    is_last_of_step: bool
    is_tail: bool
    """Of the last global batch of an epoch, where that is shorter than the others."""


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The cutting of every global batch of a training into this rank's micro-batches."""

    num_rows: int
    batch_size: int
    micro_batch_size: int
    num_ranks: int
    rank: int
    seed: int
    bucket_batches: int = 0
    lengths: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def make(
        cls,
        num_rows: int,
        batch_size: int,
        micro_batch_size: int,
        num_ranks: int,
        rank: int,
        seed: int,
        *,
        lengths: np.ndarray | None = None,
        bucket_batches: int = 0,
    ) -> "BatchPlan":
        """`micro_batch_size` 0: no accumulation; `bucket_batches` 0: no bucketing by `lengths`, integers (num_rows,).

        `UserError` for sizes that do not divide, naming the nearest that do, and for bucketing rows without lengths.
        """
        per_rank = batch_size // num_ranks
        if batch_size < 1 or batch_size % num_ranks:
            near = max(1, round(batch_size / num_ranks)) * num_ranks
            raise UserError(f"batch_size={batch_size} cannot be cut for {num_ranks} ranks: the nearest that can is {near}")
        micro = micro_batch_size or per_rank
        if micro < 1 or per_rank % micro:
            near = min(_divisors(per_rank), key=lambda size: abs(size - micro))
            raise UserError(
                f"micro_batch_size={micro} × {num_ranks} ranks does not divide batch_size={batch_size}: "
                f"the nearest that does is micro_batch_size={near}"
            )
        if bucket_batches < 0:
            raise UserError(f"bucket_batches={bucket_batches} is impossible: it must be 0 or more")
        if bucket_batches and lengths is None:
            raise UserError(
                f"bucket_batches={bucket_batches} sorts rows by their length, but this recipe's rows have no lengths: "
                "set bucket_batches=0"
            )
        assert lengths is None or lengths.shape == (num_rows,)
        return cls(num_rows, batch_size, micro, num_ranks, rank, seed, bucket_batches, lengths if bucket_batches else None)

    @property
    def accumulation(self) -> int:
        return self.batch_size // (self.micro_batch_size * self.num_ranks)

    @property
    def algebra(self) -> str:
        return f"{self.batch_size} = {self.micro_batch_size} × {self.num_ranks} ranks × {self.accumulation} accumulated"

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def halved(self) -> "BatchPlan":
        """The same global batches in micro-batches of half the size, or of the largest below that divides; see `make`.

        For a model that ran out of memory: `UserError` when there is nothing left to halve.
        """
        if self.micro_batch_size == 1:
            raise UserError(
                "micro_batch_size=1 is too much for the memory, and nothing is smaller than one example: "
                "make the model smaller, set precision=bf16, or use a device with more memory"
            )
        smaller = [size for size in _divisors(self.batch_size // self.num_ranks) if size <= self.micro_batch_size // 2]
        return dataclasses.replace(self, micro_batch_size=smaller[-1])

    def micro_batches(self, first_step: int, last_step: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the steps [first_step, last_step): every row once an epoch, the tail ragged."""
        order, order_epoch = np.empty(0, np.int64), -1
        for step in range(first_step, last_step):
            epoch, within = divmod(step, self.steps_per_epoch)
            if epoch != order_epoch:
                order, order_epoch = self._order(epoch), epoch
            batch = order[within * self.batch_size : (within + 1) * self.batch_size]
            begins, is_tail = self.begins(len(batch)), len(batch) < min(self.batch_size, self.num_rows)
            for number, begin in enumerate(begins, 1):
                idle = begin >= len(batch)
                begin, end = (0, 1) if idle else (begin, begin + self.micro_batch_size)
                yield MicroBatch(step, epoch, batch[begin:end], begin, idle, number == len(begins), is_tail)

    def begins(self, batch_length: int) -> list[int]:
        """Where in a global batch each of this rank's micro-batches begins; past its end for an idle one."""
        per_round = self.micro_batch_size * self.num_ranks
        # There and back: of rows sorted by length, the last rank would else have the longest in every round
        places = (self.rank, self.num_ranks - 1 - self.rank)
        return [
            number * per_round + places[number % 2] * self.micro_batch_size
            for number in range(math.ceil(batch_length / per_round))
        ]

    def length_of(self, step: int) -> int:
        """Rows of a step's global batch: batch_size, or fewer in the ragged tail of an epoch."""
        return min(self.batch_size, self.num_rows - step % self.steps_per_epoch * self.batch_size)

    def _order(self, epoch: int) -> np.ndarray:
        """All rows of an epoch, one global batch after another.

        With bucketing, the batches of a window hold rows of similar lengths, each batch sorted, so that the slices of
        ranks and micro-batches need little padding too; then the batches, all but the ragged last one, are shuffled.
        """
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(self.num_rows)
        if self.lengths is None:
            return order
        num_whole = self.num_rows - self.num_rows % self.batch_size
        window = np.arange(self.num_rows) // (self.bucket_batches * self.batch_size)
        window[num_whole:] += 1  # the ragged batch by itself
        order = order[np.lexsort((self.lengths[order], window))]
        batches = order[:num_whole].reshape(-1, self.batch_size)
        return np.concatenate([generator.permutation(batches).ravel(), order[num_whole:]])


def in_order(num_rows: int, batch_size: int, num_ranks: int, rank: int) -> Iterator[MicroBatch]:
    """This rank's share of the rows 0, 1, 2 …, for evaluation: ceil(num_rows / num_ranks) of them in pieces of batch_size.

    Every rank has as many, so that they can be gathered; to that end the last ones repeat the last row.
    """
    share = math.ceil(num_rows / num_ranks)
    mine = np.minimum(np.arange(rank * share, (rank + 1) * share), num_rows - 1)
    for step, begin in enumerate(range(0, share, batch_size)):
        yield MicroBatch(step, 0, mine[begin : begin + batch_size], rank * batch_size, False, True, False)


class Feed:
    """Brings the rows of each micro-batch to the device: iterate once over (micro-batch, batch), then `close`.

    `waited_s` is how long the consumer waited for data, in seconds. To a GPU, each batch is copied while the one before it
    is worked on. `UserError` from `gather` surfaces as it is, also out of a worker process.
    """

    def __init__(
        self,
        source: Rows,
        micro_batches: Iterator[MicroBatch],
        *,
        device: torch.device,
        num_workers: int,
        prefetch_factor: int,
    ):
        self.waited_s = 0.0
        self._device, self._on_gpu = device, device.type == "cuda"
        self._asked: deque[MicroBatch] = deque()
        self._batches: Any = iter(
            torch.utils.data.DataLoader(
                _ByRows(source),
                sampler=_remembered(micro_batches, self._asked),
                batch_size=None,
                generator=torch.Generator(),  # it draws a seed: from the global one, dropout after --resume would differ
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers else None,
                pin_memory=self._on_gpu,
                multiprocessing_context=_worker_context() if num_workers else None,
                worker_init_fn=_leave_with_the_rank,
            )
        )
        self._found = self._copied_ahead() if self._on_gpu else iter(self._fetch, None)
        atexit.register(self.close)  # else a process that forgot to close waits for ever: the workers are deaf to SIGTERM

    def __iter__(self) -> Iterator[tuple[MicroBatch, Batch]]:
        return self

    def __next__(self) -> tuple[MicroBatch, Batch]:
        began = time.perf_counter()
        try:
            return next(self._found)
        finally:
            self.waited_s += time.perf_counter() - began

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes, also in the middle; the iteration is over."""
        # The DataLoader ends its workers when it is forgotten, but a traceback may remember it. It sends SIGTERM to one that
        # does not come back from `gather`, to which ours are deaf
        if hasattr(self._batches, "_shutdown_workers"):
            self._batches._shutdown_workers()
            for worker in self._batches._workers:
                worker.kill()
        self._batches = self._found = iter(())
        atexit.unregister(self.close)

    def _fetch(self) -> tuple[MicroBatch, Batch] | None:
        """The next micro-batch and its batch, None after the last."""
        batch = next(self._batches, None)
        if batch is None:
            assert not self._asked, "gather raised StopIteration"
            return None
        if isinstance(batch, UserError):
            raise batch
        copied = {name: tensor.to(self._device, non_blocking=self._on_gpu) for name, tensor in batch.items()}
        return self._asked.popleft(), copied

    def _copied_ahead(self) -> Iterator[tuple[MicroBatch, Batch]]:
        """The same on a GPU: the copy of each batch begins, on a stream of its own, when the one before it is handed out."""
        copies, consumer = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        with torch.cuda.stream(copies):
            found = self._fetch()
        while found is not None:
            consumer.wait_stream(copies)  # before the next copy is queued there, which the consumer need not wait for
            for tensor in found[1].values():
                tensor.record_stream(consumer)  # allocated for the other stream, its memory would go back too early
            with torch.cuda.stream(copies):
                following = self._fetch()
            yield found
            found = following


class _ByRows(torch.utils.data.Dataset[Batch | UserError]):
    def __init__(self, source: Rows):
        self.source = source

    def __getitem__(self, asked: tuple[np.ndarray, int]) -> Batch | UserError:
        try:
            return self.source.gather(*asked)
        except UserError as error:
            return error  # raised by `Feed`: a worker would wrap its sentence in a traceback


def _remembered(micro_batches: Iterator[MicroBatch], asked: deque[MicroBatch]) -> Iterator[tuple[np.ndarray, int]]:
    """Rows and epoch of each micro-batch; the DataLoader asks ahead, so what it asked for is kept until it comes."""
    for micro in micro_batches:
        asked.append(micro)
        yield micro.rows, micro.epoch


def _worker_context() -> BaseContext:
    """How workers are started: by forkserver, since a fork after OpenMP work hangs, and deaf to schedulers' signals.

    Slurm and torchrun send SIGTERM and the like to a whole process group; workers must live on until the rank has
    finished its step and saved. The server and its children inherit what is blocked while it starts.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not in every worker
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # a process of its own, which unblocks some signals here when it starts
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _leave_with_the_rank(worker: int) -> None:
    """Else the workers of a rank that was killed would live for ever: forkserver and workers wait for each other's end."""
    rank = multiprocessing.parent_process()
    assert rank is not None

    def watch() -> None:
        rank.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
