"""The time limit of a command."""

import math
import time
from collections.abc import Callable

import psutil


class Budget:
    """A limit in seconds, counted from the start of the process, so that its imports count."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic, passed: float | None = None):
        """limit_s : 0 for no limit. clock : a function that returns seconds. passed : seconds that have passed already; None
        for those since the process started."""
        self.limit_s, self._clock = limit_s, clock
        if passed is None:
            passed = max(0.0, time.time() - psutil.Process().create_time())
        self._start = clock() - passed

    def passed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def left(self) -> float:
        """Seconds left: infinite without a limit, negative after its end."""
        return self.limit_s - self.passed() if self.limit_s else math.inf
