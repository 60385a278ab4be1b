"""Signals that ask a run to stop: SIGTERM (a scheduler), SIGINT (Ctrl-C), SIGUSR1 (Slurm's warning before a time limit),
SIGHUP (a closed terminal), unless this process ignores it, as under nohup.

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

from ensemble.errors import discard_output_to_closed_terminal

STOP: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
    STOP += (signal.SIGHUP,)
ECHO_S = 3.0
"""Seconds in which further signals count as the same request."""
STARTED_BY = "ENSEMBLE_STARTED_BY"
"""Environment variable with the id of the process of this project that started this one as no rank. A launcher among the
ancestors of that process did not start this one."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that the kernel sends to a process when its parent dies."""


def end_with_parent() -> None:
    """Let this process receive SIGTERM when its parent dies; this has no effect on systems other than Linux.

    To the kernel, the parent is the thread that started this process: such a thread must not end before the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class StopSignals:
    """A context manager; `received` is the number of the first of the signals `STOP`, or 0 before any.

    A `with` statement inside of another one returns the outer context, so a signal counts for both, whenever it comes.

    A thread reads the signals that the operating system delivers (`signal.set_wakeup_fd`), so a second signal works even
    while the main thread waits for another rank. A handler that other code sets inside the context is kept.
    """

    active: "StopSignals | None" = None
    """The context that was entered and not left."""
    received = 0

    def __enter__(self) -> "StopSignals":
        if StopSignals.active:
            return StopSignals.active
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # In this order no signal is lost: one that comes now waits in the pipe
        self._descriptor_before = signal.set_wakeup_fd(self._write)
        self._before = {number: signal.signal(number, _leave_to_thread) for number in STOP}
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._watcher.start()
        StopSignals.active = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if StopSignals.active is not self:
            return
        # In this order no signal is lost: one that comes now waits in the pipe, or the handler before gets it
        for number, handler in self._before.items():
            if signal.getsignal(number) is _leave_to_thread:
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        os.write(self._write, b"\0")  # ends the thread, after the signals that came before
        self._watcher.join()
        os.close(self._write)
        os.close(self._read)
        StopSignals.active = None

    def _watch(self) -> None:
        received_s = 0.0
        while number := os.read(self._read, 1)[0]:
            if number not in STOP:
                continue
            if not self.received:
                received_s, self.received = time.monotonic(), number
                name = signal.Signals(number).name
                discard_output_to_closed_terminal()
                with suppress(OSError):  # standard error may be a pipe whose reader has ended
                    print(f"{name}: saving after this step; a second signal stops at once", file=sys.stderr, flush=True)
            elif time.monotonic() - received_s > ECHO_S:
                os._exit(128 + number)


def _leave_to_thread(number: int, frame: object) -> None:
    """A handler that does nothing: the thread acts on the signal."""
