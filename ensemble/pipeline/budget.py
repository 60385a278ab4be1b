"""The time limit of a command."""

import math
import time
from collections.abc import Callable

import psutil


class Budget:
    """A limit in seconds, counted from the start of the process, so that its imports count."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic, passed: float | None = None):
        """limit : seconds, 0 for no limit. passed : seconds that have passed already; None for those since the process
        started."""
        self.limit, self._clock = limit, clock
        if passed is None:
            passed = max(0.0, time.time() - psutil.Process().create_time())
        self._start = clock() - passed

    def passed(self) -> float:
        return self._clock() - self._start

    def left(self) -> float:
        """Seconds left: infinite without a limit, negative after its end."""
        return self.limit - self.passed() if self.limit else math.inf
