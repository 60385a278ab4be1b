"""The division of the training rows into batches, and the loader that brings them to the device.

A global batch has `batch_size` rows on any number of ranks. It is divided into micro-batches, and the number of accumulation
steps follows: micro-batch × ranks × accumulation = global batch. The order of rows depends only on the seed and the epoch,
and with bucketing on `lengths`, `batch_size` and `bucket_batches`. So training can be resumed at any step, on any number of
ranks, without reading the rows before it.
"""

import atexit
import dataclasses
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, Protocol

import numpy as np
import torch

from ensemble import configuration
from ensemble.errors import UserError, how_ended
from ensemble.neural.division import check_multiple, divisors

Batch = dict[str, torch.Tensor]


class Rows(Protocol):
    """The examples of a split, read by row number.

    If examples differ in length, an attribute `lengths`, integers of shape (num_rows,), allows bucketing by length.
    """

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        """The examples of `rows`, which is int64 of shape (batch,). Random augmentation must depend only on seed, epoch and
        row."""


def checked_rows(rows: Any, split: str) -> Rows:
    """The rows of a split that a recipe returned; `UserError` if they are not `Rows`, or if the split is empty."""
    if not (hasattr(rows, "__len__") and hasattr(rows, "gather")):
        kind = type(rows).__name__
        raise UserError(f"`rows` of the recipe returns {kind} without __len__ and gather: see Rows in neural/loader.py")
    if not len(rows):
        raise UserError(f"the split {split} has no rows: prepare data with rows in it")
    return rows


def checked_batch(batch: Any, function: str) -> Batch:
    """The batch that a function of a recipe returned; `UserError` if it is not a dict of tensors."""
    if not isinstance(batch, Mapping):
        raise UserError(f"{function} returns {type(batch).__name__}: return a dict of tensors")
    for name, tensor in batch.items():
        if not isinstance(tensor, torch.Tensor):
            raise UserError(
                f"{function} returns '{name}' as {type(tensor).__name__}: return tensors, as by torch.from_numpy"
            )
    return batch  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass on one rank."""

    step: int
    epoch: int
    rows: np.ndarray
    begin: int
    """The position of the first row within the global batch."""
    idle: bool
    """Whether the rank has no row left in this batch. It still takes part in communication, but its loss is not counted."""
    is_last_of_step: bool
    is_short_batch: bool
    """Whether the global batch is the last one of an epoch, and shorter than the others."""


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The division of every global batch of a training into this rank's micro-batches.

    `UserError` for sizes that do not divide, with the nearest valid size, and for bucketing rows without lengths.
    """

    num_rows: int
    batch_size: int
    micro_batch_size: int
    """0 for the largest one, without accumulation; the 0 is replaced by that size."""
    num_ranks: int
    rank: int
    seed: int
    bucket_batches: int = 0
    """Rows are sorted by `lengths` within this many global batches; 0 for no bucketing."""
    lengths: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_multiple("batch_size", self.batch_size, self.num_ranks, f"{self.num_ranks} ranks")
        per_rank = self.batch_size // self.num_ranks
        micro = self.micro_batch_size or per_rank
        if micro < 1 or per_rank % micro:
            nearest = min(divisors(per_rank, per_rank), key=lambda size: abs(size - micro))
            raise UserError(
                f"micro_batch_size={micro} × {self.num_ranks} ranks does not divide batch_size={self.batch_size}: "
                f"the nearest that does is micro_batch_size={nearest}"
            )
        object.__setattr__(self, "micro_batch_size", micro)
        configuration.check(self, at_least_0="bucket_batches")
        if self.bucket_batches and self.lengths is None:
            raise UserError(
                f"bucket_batches={self.bucket_batches} sorts rows by length, but this recipe's rows have no lengths: "
                "set bucket_batches=0"
            )
        assert self.lengths is None or self.lengths.shape == (self.num_rows,)

    @property
    def accumulation(self) -> int:
        return self.batch_size // (self.micro_batch_size * self.num_ranks)

    @property
    def description(self) -> str:
        return f"{self.batch_size} = {self.micro_batch_size} × {self.num_ranks} ranks × {self.accumulation} accumulated"

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.num_rows / self.batch_size)

    def num_steps(self, num_epochs: float) -> int:
        num_steps = min(num_epochs * self.steps_per_epoch, sys.float_info.max)
        return max(1, math.ceil(round(num_steps, 6)))  # 1.1 × 100 is above 110 in floating point

    def halved(self) -> "BatchPlan":
        """The same global batches, with the largest valid micro-batch of at most half the size; `UserError` if it is already
        1."""
        if self.micro_batch_size == 1:
            raise UserError(
                "micro_batch_size=1 does not fit into memory, and a batch has at least one example: "
                "make the model smaller, set precision=bf16, or use a device with more memory"
            )
        sizes = divisors(self.batch_size // self.num_ranks, self.micro_batch_size // 2)
        return dataclasses.replace(self, micro_batch_size=sizes[-1])

    def micro_batches(self, first_step: int, last_step: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the steps [first_step, last_step). Each epoch has every row once."""
        order, order_epoch = np.empty(0, np.int64), -1
        for step in range(first_step, last_step):
            epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
            if epoch != order_epoch:
                order, order_epoch = self._order(epoch), epoch
            batch = order[step_in_epoch * self.batch_size : (step_in_epoch + 1) * self.batch_size]
            begins, is_short_batch = self.begins(len(batch)), len(batch) < min(self.batch_size, self.num_rows)
            for number, begin in enumerate(begins, 1):
                idle = begin >= len(batch)
                begin, end = (0, 1) if idle else (begin, begin + self.micro_batch_size)
                yield MicroBatch(step, epoch, batch[begin:end], begin, idle, number == len(begins), is_short_batch)

    def begins(self, batch_length: int) -> list[int]:
        """The position in a global batch at which each of this rank's micro-batches begins; past the end for idle ones."""
        per_round = self.micro_batch_size * self.num_ranks
        # A round is a micro-batch of each rank. The ranks are in reverse order in every second round: with rows sorted by
        # length, the last rank would otherwise always have the longest
        positions = (self.rank, self.num_ranks - 1 - self.rank)
        return [
            number * per_round + positions[number % 2] * self.micro_batch_size
            for number in range(math.ceil(batch_length / per_round))
        ]

    def batch_length(self, step: int) -> int:
        """The number of rows in a step's global batch: batch_size, or fewer in the last batch of an epoch."""
        return min(self.batch_size, self.num_rows - step % self.steps_per_epoch * self.batch_size)

    def _order(self, epoch: int) -> np.ndarray:
        """All row numbers of an epoch, one global batch after another.

        With bucketing, the rows of each window of `bucket_batches` shuffled batches are sorted by length before they are
        divided into batches, so that a micro-batch needs little padding. Then the batches are shuffled, except a short last
        one.
        """
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(self.num_rows)
        if self.lengths is None or not self.bucket_batches:
            return order
        num_whole = self.num_rows - self.num_rows % self.batch_size
        window = np.arange(self.num_rows) // (self.bucket_batches * self.batch_size)
        window[num_whole:] += 1  # the short last batch is a window of its own
        order = order[np.lexsort((self.lengths[order], window))]
        batches = order[:num_whole].reshape(-1, self.batch_size)
        return np.concatenate([generator.permutation(batches).ravel(), order[num_whole:]])


def in_order(num_rows: int, batch_size: int, num_ranks: int, rank: int) -> Iterator[MicroBatch]:
    """This rank's batches of the rows 0, 1, 2, … for evaluation: ceil(num_rows / num_ranks) consecutive rows.

    Every rank has the same number of rows, so that predictions can be gathered; the last ranks repeat the last row.
    """
    rows_per_rank = math.ceil(num_rows / num_ranks)
    rows = np.minimum(np.arange(rank * rows_per_rank, (rank + 1) * rows_per_rank), num_rows - 1)
    for step, begin in enumerate(range(0, rows_per_rank, batch_size)):
        yield MicroBatch(step, 0, rows[begin : begin + batch_size], rank * batch_size, False, True, False)


CHECK_INTERVAL_S = 5.0
"""Seconds after which a consumer that waits for a batch checks whether the worker processes are alive, and for which it
waits for the exit code of a worker whose connection has ended."""


class Feed(AbstractContextManager["Feed"]):
    """An iterator over (micro-batch, batch on the device), to be iterated once and then closed.

    `waited_s` is the time in seconds for which the consumer waited for data. On a GPU, each batch is copied while the
    previous one is processed. A `UserError` raised by `gather` in a worker process is raised unchanged, and one is raised if
    the workers return no batch for `timeout_s`; otherwise all ranks would wait for ever if all of their workers hang.
    """

    def __init__(
        self,
        source: Rows,
        micro_batches: Iterator[MicroBatch],
        *,
        device: torch.device,
        num_workers: int,
        prefetch_factor: int,
        timeout_s: float = 600.0,
    ):
        self.waited_s, self._timeout_s = 0.0, timeout_s
        self._device, self._on_gpu = device, device.type == "cuda"
        self._requested: deque[MicroBatch] = deque()
        loader = torch.utils.data.DataLoader(
            _ByRows(source),
            sampler=_recorded(micro_batches, self._requested),
            batch_size=None,
            generator=torch.Generator(),  # the DataLoader draws a seed, which must not change the global generator
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            timeout=min(CHECK_INTERVAL_S, timeout_s) if num_workers else 0,
            pin_memory=self._on_gpu,
            multiprocessing_context=worker_context() if num_workers else None,
            worker_init_fn=_exit_with_parent,
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # the error below explains more
                self._batches: Any = iter(loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            if "pickle" not in str(error):
                raise
            raise UserError(
                f"the rows of the recipe cannot be sent to DataLoader workers ({error}): define __reduce__, as "
                "ensemble.neural.prepared.PreparedRows does, or set num_workers=0 and loader=fixed"
            ) from None
        self._iterator = self._copy_ahead() if self._on_gpu else iter(self._fetch, None)
        # A process that ends without `close` would wait for ever for its workers, which ignore SIGTERM
        atexit.register(self.close)

    def __iter__(self) -> Iterator[tuple[MicroBatch, Batch]]:
        return self

    def __next__(self) -> tuple[MicroBatch, Batch]:
        began = time.perf_counter()
        try:
            return next(self._iterator)
        finally:
            self.waited_s += time.perf_counter() - began

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes, also before the last batch; the iterator is exhausted afterwards."""
        # The DataLoader ends its workers when it is garbage-collected, but a traceback may keep it alive. It would send
        # SIGTERM to a worker that hangs in `gather`, but these workers ignore SIGTERM
        if hasattr(self._batches, "_shutdown_workers"):
            self._batches._shutdown_workers()
            for worker in self._batches._workers:
                worker.kill()
        self._batches = self._iterator = iter(())
        atexit.unregister(self.close)

    def _fetch(self) -> tuple[MicroBatch, Batch] | None:
        """The next micro-batch and its batch, None after the last."""
        remaining_s = self._timeout_s
        while True:
            try:
                batch = next(self._batches, None)
                break
            except (RuntimeError, ConnectionError, EOFError) as error:
                if "DataLoader timed out" not in str(error):
                    workers = getattr(self._batches, "_workers", ())
                    if not isinstance(error, RuntimeError):  # a connection to a worker can end before its exit code is known
                        connection.wait([worker.sentinel for worker in workers], timeout=CHECK_INTERVAL_S)
                    codes = [worker.exitcode for worker in workers]
                    if not any(codes):
                        raise
                    raise UserError(
                        f"a DataLoader worker {how_ended(next(filter(None, codes)))}: with num_workers=0 its error is "
                        "shown; if memory or /dev/shm is full, give the job more (with Docker --shm-size)"
                    ) from None
            remaining_s -= CHECK_INTERVAL_S  # a clock would also count the time for which a job is suspended
            if remaining_s <= 0:
                raise UserError(
                    f"the DataLoader workers returned no batch for timeout_s={self._timeout_s:g} seconds, so `gather` of "
                    "the rows hangs or is too slow: with num_workers=0 a debugger shows where, or raise timeout_s"
                )
        if batch is None:
            assert not self._requested, "gather raised StopIteration"
            return None
        if isinstance(batch, UserError):
            raise batch
        on_device = {name: tensor.to(self._device, non_blocking=self._on_gpu) for name, tensor in batch.items()}
        return self._requested.popleft(), on_device

    def _copy_ahead(self) -> Iterator[tuple[MicroBatch, Batch]]:
        """Fetch on a GPU: the copy of each batch starts, on a separate stream, before the previous batch is returned."""
        copies, consumer = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        with torch.cuda.stream(copies):
            current = self._fetch()
        while current is not None:
            consumer.wait_stream(copies)  # before the next copy is queued, for which the consumer need not wait
            for tensor in current[1].values():
                tensor.record_stream(consumer)  # otherwise its memory would be reused when the copy stream is done
            with torch.cuda.stream(copies):
                following = self._fetch()
            yield current
            current = following


class _ByRows(torch.utils.data.Dataset[Batch | UserError]):
    def __init__(self, source: Rows):
        self.source = source

    def __getitem__(self, rows_and_epoch: tuple[np.ndarray, int]) -> Batch | UserError:
        try:
            return self.source.gather(*rows_and_epoch)
        except UserError as error:
            return error  # `Feed` raises it: raised in a worker, it would be wrapped in a traceback


def _recorded(micro_batches: Iterator[MicroBatch], requested: deque[MicroBatch]) -> Iterator[tuple[np.ndarray, int]]:
    """Rows and epoch of each micro-batch, which is appended to `requested`: the DataLoader requests several ahead."""
    for micro in micro_batches:
        requested.append(micro)
        yield micro.rows, micro.epoch


def worker_context() -> BaseContext:
    """A context that starts workers from a fork server, with the signals of schedulers blocked.

    A worker that is forked after OpenMP work hangs. Slurm and torchrun send SIGTERM and other signals to a whole process
    group; workers must live until the rank has finished its step and saved. The fork server and its children inherit the
    signals that are blocked while it starts.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not in every worker
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # starts a process, and unblocks some signals in this one
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    return context


def _exit_with_parent(worker: int) -> None:
    """End a worker when its rank was killed: fork server and workers would otherwise wait for each other for ever."""
    rank = multiprocessing.parent_process()
    assert rank is not None

    def watch() -> None:
        rank.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
