"""Which rank was lost, and why: a collective that fails says only that some peer is gone, or late.

    with Heartbeat.of(accelerator, config.timeout_s, out, announce) as heart:
        for …:
            heart.beat(step)

A thread tells this rank's step to the others once a second, through the store that the process group met in. When a
collective fails, who is left looks for the rank that failed, died, fell silent or stayed behind, and raises `RankLost`
with one sentence. On NCCL a late peer raises nothing in Python (the watchdog aborts the process), so there the thread
says it, some seconds before.

Under `accelerate launch` the launcher holds the store, so it outlives any rank. Without a launcher (`srun`, one process a
task) rank 0 holds it, and a store that is gone means that rank 0 is.
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
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ensemble.errors import Failure, UserError

if TYPE_CHECKING:
    from accelerate import Accelerator

PULSE_S = 1.0
WATCH_S = 3.0
"""How long the others are watched before one is called silent: three pulses."""
GLOO_WORDS = (
    "gloo/", "pair closure", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Read timeout",
    "Broken pipe", "Socket closed",
)  # fmt: skip
"""What Gloo says of a peer that is gone or late; in a backward pass without the name of its file."""
MOVING, WAITING, FINISHED = "moving", "waiting", "finished"
"""States of a rank; any other is the exception that ended it."""

Record = dict[str, Any]
"""What a rank tells: rank, host, pid, pulse, step, moved_at (seconds since 1970), state, and where it stays if it does."""

_numbers = itertools.count()


class RankLost(Failure):
    """Another rank failed, died or hangs; the message is one sentence that names it."""


def flight_recorder_environment(folder: str | Path) -> dict[str, str]:
    """What must be in the environment before the process group exists, so that NCCL's watchdog writes the last 2000
    collectives of each rank to `<folder>/flight_recorder.rank<rank>` on a time-out.

    `python -m torch.distributed.flight_recorder.fr_trace -p flight_recorder.rank <folder>` reads them. The names are those
    of torch 2.13 (FlightRecorder.hpp, ProcessGroupNCCL.hpp). Gloo keeps such a record, too, but never writes it:
    `Heartbeat` does, to `<folder>/collectives.rank<rank>.json`.
    """
    return {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": f"{Path(folder).resolve()}/flight_recorder.rank",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",  # the dump depends on it
    }


class Heartbeat:
    """Tells this rank's step to the others, and names the one that was lost. With one rank it does nothing."""

    def __init__(
        self,
        store: Any,
        rank: int,
        num_ranks: int,
        timeout_s: float,
        folder: Path,
        announce: Callable[[str], None] | None = None,
    ):
        """`store`: torch.distributed's, None for one rank.

        `announce` is for where no exception says who is late: the thread prints the sentence and calls it with that.
        """
        self._shared_store, self._rank, self._num_ranks = store, rank, num_ranks
        self._timeout_s, self._folder, self._announce = timeout_s, folder, announce
        self._state = MOVING
        self._pulse = 0
        self._neighbours: dict[int, Any] = {}
        self._main_thread = threading.get_ident()
        self._stop = threading.Event()
        self.beat(0)

    @classmethod
    def of(cls, accelerator: "Accelerator", timeout_s: float, folder: Path, announce: Callable[[str], None]) -> "Heartbeat":
        """The heartbeat of this process in the process group that Accelerate made; `announce` as above, on NCCL alone."""
        from torch.distributed import PrefixStore, distributed_c10d

        rank, num_ranks = accelerator.process_index, accelerator.num_processes
        if num_ranks == 1:
            return cls(None, rank, num_ranks, timeout_s, folder)
        store = PrefixStore(f"heartbeat{next(_numbers)}", distributed_c10d._get_default_store())
        return cls(store, rank, num_ranks, timeout_s, folder, announce if accelerator.device.type == "cuda" else None)

    def beat(self, step: int) -> None:
        """This rank is alive and at `step`: to be called before each micro-batch; costs 0.3 µs."""
        self._moved = (step, time.time())

    def __enter__(self) -> "Heartbeat":
        """Wait for the others; `RankLost` if one does not come within `timeout_s`."""
        if self._shared_store is None:
            return self
        import psutil
        from torch.distributed import DistStoreError

        # Connections of their own, made while the store is surely there: the process group may block in the first
        self._store, threads_store = self._shared_store.clone(), self._shared_store.clone()
        for store in (self._store, threads_store):
            store.set_timeout(timedelta(seconds=WATCH_S))
        self._tell(self._store)
        everyone = [str(rank) for rank in range(self._num_ranks)]
        try:
            self._store.wait(everyone, timedelta(seconds=self._timeout_s))
        except DistStoreError:
            missing = [rank for rank in everyone if not self._store.check([rank])]
            raise RankLost(
                f"rank {', '.join(missing)} of {self._num_ranks} did not begin while this rank waited for it, "
                f"timeout_s={self._timeout_s:g}: see what it wrote, or give it more time"
            ) from None
        for record in self._others(self._store):
            # Only a process that is seen now can be seen to die: in a container of its own it has another number
            if record["host"] == socket.gethostname() and psutil.pid_exists(record["pid"]):
                self._neighbours[record["rank"]] = psutil.Process(record["pid"])
        threading.Thread(target=self._beat_on, args=(threads_store,), name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Tell the others how this rank ended; `RankLost` if it was a collective that failed."""
        if self._shared_store is None:
            return
        if error is None or not is_lost_peer(error):
            self._state = FINISHED if error is None else in_a_line(error)
            with suppress(RuntimeError):  # the store is gone, and nobody is left to tell
                self._tell(self._store)
            self._stop.set()
            return
        # The launcher ends the survivors 0.1 s after a death: it must not cut the sentence off
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._state = WAITING
        try:
            lost = self._find_lost(self._store)
        except RuntimeError as gone:
            address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            lost = f"the ranks' store at {address} is gone: the launcher or rank 0, which held it, died ({in_a_line(gone)})"
        self._stop.set()
        self._write_collectives()
        raise RankLost(
            lost
            or f"the ranks lost each other at step {self._moved[0]}, though none of them died: the network between them "
            f"broke, or they gave up waiting for this one ({in_a_line(error)})"
        ) from error

    def _beat_on(self, store: Any) -> None:
        """The thread: tell, and on NCCL say who is late before the watchdog aborts this process."""
        try:
            while not self._stop.wait(PULSE_S):
                self._tell(store)
                stalled = time.time() - self._moved[1] > self._timeout_s - 2 * WATCH_S
                if self._announce and stalled and (lost := self._find_lost(store)):
                    print(f"\nfailed: {lost}", file=sys.stderr, flush=True)
                    self._announce(lost)
                    self._announce = None
        except RuntimeError:  # the store is gone, and the next collective will fail
            return

    def _tell(self, store: Any) -> None:
        self._pulse += 1
        step, moved_at = self._moved
        where = ""
        if time.time() - moved_at > WATCH_S and (frame := sys._current_frames().get(self._main_thread)):
            where = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
        record: Record = {
            "rank": self._rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pulse": self._pulse,
            "step": step,
            "moved_at": moved_at,
            "where": where,
            "state": self._state,
        }
        store.set(str(self._rank), json.dumps(record))

    def _others(self, store: Any) -> list[Record]:
        """The other ranks but for those that lost a peer themselves: they may leave before us."""
        texts = store.multi_get([str(rank) for rank in range(self._num_ranks) if rank != self._rank])
        return [record for record in map(json.loads, texts) if record["state"] != WAITING]

    def _find_lost(self, store: Any) -> str | None:
        """The sentence on a rank that ended, at once; on one that is silent or late, after `WATCH_S`."""
        self._tell(store)
        before = {record["rank"]: record["pulse"] for record in self._others(store)}
        deadline = time.monotonic() + WATCH_S
        while True:
            others = self._others(store)
            for record in others:
                if end := self._end(record):
                    return f"{self._name(record)} {end}"
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
            self._tell(store)  # the others may be watching this rank

        now = time.time()
        waited = f"this rank has waited for it for {now - self._moved[1]:.0f} s (timeout_s={self._timeout_s:g})"
        silent = [record for record in others if record["pulse"] == before.get(record["rank"])]
        # If our collective failed, who does not wait has not come to it; before that, only a lower step tells
        reached = self._moved[0] - (self._state != WAITING)
        late = sorted((record for record in others if record["step"] <= reached), key=lambda record: record["step"])
        if not (suspects := silent or late):
            return None
        record = suspects[0]
        since = f"since step {record['step']}, {now - record['moved_at']:.0f} s ago"
        if silent:
            state = self._process_state(record)
            why = f"its process is {state}" if state else "see whether its machine can be reached"
            return f"{self._name(record)} has given no sign of life {since}, and {waited}: {why}"
        why = f"it is in {record['where']}" if record["where"] else "it moves, but too slowly"
        return f"{self._name(record)} has not moved {since}, and {waited}: {why}"

    def _end(self, record: Record) -> str:
        """How a rank ended, "" if it did not."""
        if record["state"] == FINISHED:
            return f"finished at step {record['step']}, before this rank"
        if record["state"] != MOVING:
            return f"failed at step {record['step']}: {record['state']}"
        if self._process_state(record) == "gone":
            return (
                f"died, last seen at step {record['step']}: the launcher says with which exit code (-9: often out of memory)"
            )
        return ""

    def _name(self, record: Record) -> str:
        return f"rank {record['rank']} of {self._num_ranks} (host {record['host']}, pid {record['pid']})"

    def _process_state(self, record: Record) -> str:
        """Of a process that can be seen from here: running, sleeping, stopped, … or gone; "" for any other."""
        import psutil

        if (process := self._neighbours.get(record["rank"])) is None:
            return ""
        try:
            state = str(process.status()) if process.is_running() else "gone"
        except psutil.NoSuchProcess:
            return "gone"
        return "gone" if state in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else state

    def _write_collectives(self) -> None:
        """This rank's last collectives, to hold against another's; a disk that is full must not hide the sentence."""
        from torch._C import _distributed_c10d

        file = self._folder / f"collectives.rank{self._rank}.json"
        try:
            file.write_bytes(_distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]
        except OSError as error:
            print(f"{file} could not be written: {error.strerror}", file=sys.stderr)


def is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed: NCCL and the store have exceptions of their own, Gloo's are known by their words."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in GLOO_WORDS)
    )


def in_a_line(error: BaseException) -> str:
    """What an exception says; with its class, and cut, unless it was written to be read."""
    told = " ".join(str(error).split())
    if isinstance(error, UserError | Failure):
        return told
    return f"{type(error).__name__}: {told[:300]}" if told else type(error).__name__
