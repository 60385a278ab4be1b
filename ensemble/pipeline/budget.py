"""The time that a command may take."""

import math
import time
from collections.abc import Callable

import psutil

Clock = Callable[[], float]


class Budget:
    """Seconds that are left of a limit; the start of the process counts, and so do its imports."""

    def __init__(self, limit: float, clock: Clock = time.monotonic, passed: float | None = None):
        """limit : seconds, 0 for none. passed : seconds before now that count; None for those of this process."""
        self.limit, self._clock = limit, clock
        if passed is None:
            passed = max(0.0, time.time() - psutil.Process().create_time())
        self._began = clock() - passed

    def passed(self) -> float:
        return self._clock() - self._began

    def left(self) -> float:
        """Infinite without a limit; may be negative."""
        return self.limit - self.passed() if self.limit else math.inf
