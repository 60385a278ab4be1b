"""Signals that ask a run to stop: SIGTERM (a scheduler), SIGINT (Ctrl-C), SIGUSR1 (Slurm's warning before a time limit).

After the first signal the run finishes its step and saves. A second signal ends the process at once, unless it comes within
`ECHO_S` seconds: a scheduler signals every process of a job, and the launcher passes its signal on, so one request arrives
several times.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_S = 3.0
"""Seconds in which further signals count as the same request."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to a process when its parent dies."""


def end_with_parent() -> None:
    """Let this process receive SIGTERM when its parent dies; this has no effect on systems other than Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class StopSignals:
    """A context manager; `received` is the number of the first of the signals `STOP`, or 0 before any.

    Contexts may be nested: a signal counts for all of them, whenever it comes.

    A thread reads the signals that the operating system delivers (`signal.set_wakeup_fd`), so a second signal works even
    while the main thread waits for another rank. A handler that other code sets inside the context is kept.
    """

    innermost: "StopSignals | None" = None
    """The context that was entered last and is still active."""

    def __init__(self) -> None:
        self.received, self._received_s = 0, 0.0

    def __enter__(self) -> "StopSignals":
        self._outer, StopSignals.innermost = StopSignals.innermost, self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        if self._outer:  # a signal that the outer context has received
            self.received, self._received_s = self._outer.received, self._outer._received_s
        # In this order no signal is lost: one that comes now waits in the pipe
        self._descriptor_before = signal.set_wakeup_fd(self._write)
        self._before = {number: signal.signal(number, _leave_to_thread) for number in STOP}
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        signal.set_wakeup_fd(self._descriptor_before)
        for number, handler in self._before.items():
            if signal.getsignal(number) is _leave_to_thread:
                signal.signal(number, handler)
        os.close(self._write)  # which ends the thread
        StopSignals.innermost = self._outer
        if self._outer and self.received:
            self._outer.received, self._outer._received_s = self.received, self._received_s

    def _watch(self) -> None:
        while received := os.read(self._read, 1):
            number = received[0]
            if number not in STOP:
                continue
            if not self.received:
                self._received_s, self.received = time.monotonic(), number
                name = signal.Signals(number).name
                with suppress(OSError):  # standard error may be a pipe whose reader has ended
                    print(f"{name}: saving after this step; a second signal stops at once", file=sys.stderr, flush=True)
            elif time.monotonic() - self._received_s > ECHO_S:
                os._exit(128 + number)
        os.close(self._read)


def _leave_to_thread(number: int, frame: object) -> None:
    """A handler that does nothing: the thread acts on the signal."""
