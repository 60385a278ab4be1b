"""The progress of a training: a bar on a terminal, otherwise a line from time to time, as in a log file."""

import math
import sys
import time
from contextlib import AbstractContextManager

from tqdm import tqdm

MAX_LINES = 20
"""The largest number of lines in a log file for one training."""
SECONDS_BETWEEN = 2.0
"""The least time between two lines."""


class Progress(AbstractContextManager["Progress"]):
    """The progress to `total` trees, of which `done` exist already; with `is_shown` false nothing is printed."""

    def __init__(self, name: str, total: int, done: int, is_shown: bool):
        self._name, self._total, self._done = name, total, done
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, desc=name, unit=" trees", disable=not (is_shown and is_terminal))
        self._every = 0 if is_terminal or not is_shown else math.ceil(total / MAX_LINES)
        self._printed, self._printed_at, self._suffix = done, time.monotonic(), ""

    def update(self, suffix: str) -> None:
        """Count one more tree; `suffix` is shown after the count, such as a score."""
        self._done, self._suffix = self._done + 1, suffix
        self._bar.update()
        if suffix:
            self._bar.set_postfix_str(suffix, refresh=False)
        if self._every and self._done % self._every == 0 and time.monotonic() - self._printed_at >= SECONDS_BETWEEN:
            self._print()

    def _print(self) -> None:
        self._printed, self._printed_at = self._done, time.monotonic()
        suffix = f"  {self._suffix}" if self._suffix else ""
        print(f"{self._name}: {self._done} of {self._total} trees{suffix}", file=sys.stderr, flush=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._bar.close()
        if self._every and self._printed != self._done:
            self._print()
