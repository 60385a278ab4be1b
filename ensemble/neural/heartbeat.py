"""Find out which rank was lost, and why: the error of a failed collective does not name the rank that caused it.

    with Heartbeat.from_accelerator(accelerator, config.timeout_s, out, announce) as heartbeat:
        for …:
            heartbeat.beat(step)

A thread publishes this rank's step once a second in the key-value store of the process group. When a collective fails, the
remaining ranks search the store for a rank that failed, died, stopped publishing or is behind, and raise `RankLost` with one
sentence. With NCCL, a rank that waits for its GPU gets no Python exception, and NCCL's watchdog, which should abort the
process, can leave it waiting (seen with torch 2.11 and NCCL 2.28). There the thread prints the sentence, at the latest a few
seconds before the time-out, and ends the process `ABORT_S` later. (If the machine that holds the store loses its power, its
connections stay open, and the thread waits as well.)

Under `accelerate launch` the launcher holds the store, which therefore outlives the ranks. Without a launcher (`srun`, one
process per task) rank 0 holds it, and an unreachable store means that rank 0 died.
"""

import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.distributed import DistError, DistStoreError, PrefixStore, distributed_c10d

from ensemble.errors import Failure, in_a_line
from ensemble.neural.accelerator import Accelerator

INTERVAL_S = 1.0
"""Time between two records of a rank."""
OBSERVATION_S = 3.0
"""How long the other ranks are observed before one counts as silent: three intervals."""
ABORT_S = 10.0
"""With NCCL, the time from the sentence to the end of the process, in which NCCL's watchdog writes the last collectives."""
GLOO_ERROR_TEXTS = (
    "gloo/", "pair closure", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Read timeout",
    "Broken pipe", "Socket closed",
)  # fmt: skip
"""Parts of Gloo's messages about a peer that is gone or late; those of a backward pass do not contain `gloo/`."""
RUNNING, SEARCHING, FINISHED = "running", "searching", "finished"
"""States of a rank: in training; searching for the lost rank after a failed collective; finished without an error. Any other
state is the text of the exception that ended the rank."""

Record = dict[str, Any]
"""What a rank publishes: rank, host, pid, count (of its records), step, step_time (of its last call of `beat`, in seconds
since 1970), state, and `where`: the function and line that it executes, or "" if it called `beat` within `OBSERVATION_S`."""

_group_numbers = itertools.count()


class RankLost(Failure):
    """Another rank failed, died or hangs; the message is one sentence that names it."""


class Heartbeat:
    """Publishes this rank's step, and names the rank that was lost. With one rank it does nothing."""

    def __init__(
        self,
        store: Any,
        rank: int,
        num_ranks: int,
        timeout_s: float,
        folder: Path,
        announce: Callable[[str], None] | None = None,
    ):
        """`store` is a torch.distributed store, or None for one rank. After a failed collective, this rank's last
        collectives are written into `folder`. `announce` is for NCCL: the thread prints the sentence about a lost rank,
        calls `announce` with it, and ends the process `ABORT_S` later, unless this rank advances.
        """
        self._shared_store, self._rank, self._num_ranks = store, rank, num_ranks
        self._timeout_s, self._folder, self._announce = timeout_s, folder, announce
        # After the sentence was printed: this rank's progress at that time, and when its process ends, in monotonic seconds
        self._abort: tuple[tuple[int, float], float] | None = None
        self._state = RUNNING
        self._count = 0
        self._local_processes: dict[int, Any] = {}
        self._main_thread = threading.get_ident()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.beat(0)

    @classmethod
    def from_accelerator(
        cls, accelerator: Accelerator, timeout_s: float, folder: Path, announce: Callable[[str], None]
    ) -> "Heartbeat":
        """The heartbeat of this process in Accelerate's process group; `announce` is used with NCCL only."""
        rank, num_ranks = accelerator.process_index, accelerator.num_processes
        if num_ranks == 1:
            return cls(None, rank, num_ranks, timeout_s, folder)
        store = PrefixStore(f"heartbeat{next(_group_numbers)}", distributed_c10d._get_default_store())
        return cls(store, rank, num_ranks, timeout_s, folder, announce if accelerator.device.type == "cuda" else None)

    def beat(self, step: int) -> None:
        """Record that this rank is at `step`; call it before each micro-batch. It takes 0.3 µs."""
        self._progress = (step, time.time())  # one assignment: the thread reads both

    def finish(self) -> None:
        """Stop publishing and watching: after the last collective, no rank waits for another."""
        self._stop.set()

    def __enter__(self) -> "Heartbeat":
        """Wait for the other ranks; `RankLost` if one does not start within `timeout_s`."""
        if self._shared_store is None:
            return self
        # Separate connections, opened while the store is reachable: the process group may block its own connection
        self._store, thread_store = self._shared_store.clone(), self._shared_store.clone()
        for store in (self._store, thread_store):
            store.set_timeout(timedelta(seconds=OBSERVATION_S))
        self._publish(self._store)
        ranks = [str(rank) for rank in range(self._num_ranks)]
        try:
            self._store.wait(ranks, timedelta(seconds=self._timeout_s))
        except DistStoreError:
            missing = [rank for rank in ranks if not self._store.check([rank])]
            raise RankLost(
                f"rank {', '.join(missing)} of {self._num_ranks} did not start within timeout_s={self._timeout_s:g}: "
                "see what it wrote to its log, or raise timeout_s"
            ) from None
        for record in self._other_records(self._store):
            # A process that is not visible now, such as one in another container, could not be seen to die either
            if record["host"] == socket.gethostname() and psutil.pid_exists(record["pid"]):
                self._local_processes[record["rank"]] = psutil.Process(record["pid"])
        threading.Thread(target=self._publish_regularly, args=(thread_store,), name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Publish how this rank ended; raise `RankLost` if a collective failed."""
        if self._shared_store is None:
            return
        if error is None or not is_communication_error(error):
            self._state = FINISHED if error is None else in_a_line(error)
            with suppress(RuntimeError):  # the store is gone, and with it the other ranks
                self._publish(self._store)
            self._stop.set()
            return
        # The launcher sends SIGTERM 0.1 s after the death of a rank, which must not interrupt the search
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._state = SEARCHING
        try:
            lost = self._find_lost_rank(self._store)
        except RuntimeError as store_error:
            lost = _store_is_gone(store_error)
        self._stop.set()
        self._write_collectives()
        raise RankLost(
            lost
            or f"the connection between the ranks was lost at step {self._progress[0]}, but all of them are alive: the "
            f"network failed, or the others timed out waiting for this rank ({in_a_line(error)})"
        ) from error

    def _publish_regularly(self, store: Any) -> None:
        """The thread: publish this rank's record and, with NCCL, end this process if it waits for a lost rank."""
        store_error: RuntimeError | None = None
        while not self._stop.wait(INTERVAL_S):
            try:
                if store_error is None:
                    self._publish(store)
                    if self._announce:
                        self._end_if_lost(self._lost_rank(store), self._announce)
            except DistStoreError:  # the store answered late
                continue
            except RuntimeError as error:  # the connection is closed
                store_error = error
            # A rank whose launcher died may be saving; one that does not call `beat` for `timeout_s` waits for another rank
            if store_error and self._announce and self._waited() > self._timeout_s:
                self._end_if_lost(_store_is_gone(store_error), self._announce)

    def _waited(self) -> float:
        """Seconds since the last call of `beat`."""
        return time.time() - self._progress[1]

    def _lost_rank(self, store: Any) -> str | None:
        """A sentence about a rank that failed or died, or that is late when NCCL's time-out is near; or None."""
        if self._waited() > self._timeout_s - 2 * OBSERVATION_S:
            return self._find_lost_rank(store)
        if self._waited() > 2 * OBSERVATION_S:  # a failed collective that raises an exception has done so by now
            return self._ended_rank([record for record in self._other_records(store) if record["state"] != FINISHED])
        return None

    def _end_if_lost(self, lost: str | None, announce: Callable[[str], None]) -> None:
        """Print the sentence `lost`; end the process if this rank still waits for a lost one `ABORT_S` later."""
        progress, now = self._progress, time.monotonic()
        is_waiting = self._waited() > OBSERVATION_S and self._state == RUNNING and not self._stop.is_set()
        if not lost or not is_waiting:  # the wait ended, or the training, also while the thread searched
            self._abort = None
        elif self._abort is None or self._abort[0] is not progress:
            print(f"\nfailed: {lost}", file=sys.stderr, flush=True)
            announce(lost)
            self._abort = progress, now + ABORT_S
        elif now > self._abort[1]:
            os._exit(1)

    def _publish(self, store: Any) -> None:
        with self._lock:  # an earlier record must not replace the last one
            self._count += 1
            step, step_time = self._progress
            where = ""
            if time.time() - step_time > OBSERVATION_S and (frame := sys._current_frames().get(self._main_thread)):
                where = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
            record: Record = {
                "rank": self._rank,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "count": self._count,
                "step": step,
                "step_time": step_time,
                "where": where,
                "state": self._state,
            }
            store.set(str(self._rank), json.dumps(record))

    def _other_records(self, store: Any) -> list[Record]:
        """The records of the other ranks, except those that search for the lost rank too: they may exit before this one."""
        texts = store.multi_get([str(rank) for rank in range(self._num_ranks) if rank != self._rank])
        return [record for record in map(json.loads, texts) if record["state"] != SEARCHING]

    def _find_lost_rank(self, store: Any) -> str | None:
        """A sentence about a rank that ended, at once, or one that is silent or late, after `OBSERVATION_S`; or None."""
        self._publish(store)
        previous_counts = {record["rank"]: record["count"] for record in self._other_records(store)}
        deadline = time.monotonic() + OBSERVATION_S
        while True:
            records = self._other_records(store)
            if ended := self._ended_rank(records):
                return ended
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
            self._publish(store)  # the others may be observing this rank

        now = time.time()
        waited = f"this rank has waited for it for {now - self._progress[1]:.0f} s (timeout_s={self._timeout_s:g})"
        silent = [record for record in records if record["count"] == previous_counts.get(record["rank"])]
        # After a failed collective, a rank at this step that does not search is late; before it, only a rank at a lower step
        late_step = self._progress[0] - (self._state != SEARCHING)
        late = sorted((record for record in records if record["step"] <= late_step), key=lambda record: record["step"])
        if not (suspects := silent or late):
            return None
        record = suspects[0]
        since = f"since step {record['step']}, {now - record['step_time']:.0f} s ago"
        if silent:
            state = self._process_state(record)
            why = f"its process is {state}" if state else "check whether its machine can be reached"
            return f"{self._name(record)} has not responded {since}, and {waited}: {why}"
        why = f"it is in {record['where']}" if record["where"] else "it makes progress, but too slowly"
        return f"{self._name(record)} has made no progress {since}, and {waited}: {why}"

    def _ended_rank(self, records: list[Record]) -> str | None:
        """A sentence about the first rank that finished, failed or died; or None."""
        return next((f"{self._name(record)} {end}" for record in records if (end := self._end(record))), None)

    def _end(self, record: Record) -> str:
        """How a rank ended; "" if it has not ended."""
        if record["state"] == FINISHED:
            return f"finished at step {record['step']}, before this rank"
        if record["state"] != RUNNING:
            return f"failed at step {record['step']}: {record['state']}"
        if self._process_state(record) == "gone":
            return f"died, last seen at step {record['step']}: the launcher prints its exit code (-9: often out of memory)"
        return ""

    def _name(self, record: Record) -> str:
        return f"rank {record['rank']} of {self._num_ranks} (host {record['host']}, pid {record['pid']})"

    def _process_state(self, record: Record) -> str:
        """The state of a process on this machine: running, sleeping, stopped, … or gone; "" for a process elsewhere."""
        if (process := self._local_processes.get(record["rank"])) is None:
            return ""
        try:
            state = str(process.status()) if process.is_running() else "gone"
        except psutil.NoSuchProcess:
            return "gone"
        return "gone" if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else state

    def _write_collectives(self) -> None:
        """Write this rank's last collectives, to compare with another rank's; a full disk must not hide `RankLost`."""
        file = self._folder / f"collectives.rank{self._rank}.json"
        try:
            file.write_bytes(torch._C._distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]
        except OSError as error:
            print(f"{file} could not be written: {error.strerror}", file=sys.stderr)


def _store_is_gone(error: RuntimeError) -> str:
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    reason = in_a_line(error)
    return f"the store of the process group at {address} is gone: its owner, the launcher or rank 0, died ({reason})"


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective failed: NCCL and the store have exception classes, Gloo's errors are recognised by their text."""
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in GLOO_ERROR_TEXTS)
    )
