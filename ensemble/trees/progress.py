"""How far a training has come: a bar on a terminal, and a line now and then in a log file."""

import math
import sys
import time
from types import TracebackType

from tqdm import tqdm

MAX_LINES = 20
"""In a log file, for a training that grows all of its trees."""
SECONDS_BETWEEN = 2.0
"""Lines of a fast training."""


class Progress:
    """Of `total` trees, the first `done` are there already; with `is_shown` false nothing is printed."""

    def __init__(self, name: str, total: int, done: int, is_shown: bool):
        self._name, self._total, self._done, self._is_shown = name, total, done, is_shown
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, desc=name, unit=" trees", disable=not (is_shown and is_terminal))
        self._every = 0 if is_terminal or not is_shown else math.ceil(total / MAX_LINES)
        self._said, self._said_at, self._words = done, time.monotonic(), ""

    def update(self, words: str) -> None:
        """One more tree, and what is shown of it."""
        self._done, self._words = self._done + 1, words
        self._bar.update()
        if words:
            self._bar.set_postfix_str(words, refresh=False)
        if self._every and self._done % self._every == 0 and time.monotonic() - self._said_at >= SECONDS_BETWEEN:
            self._say()

    def _say(self) -> None:
        self._said, self._said_at = self._done, time.monotonic()
        words = f"  {self._words}" if self._words else ""
        print(f"{self._name}: {self._done} of {self._total} trees{words}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
        if self._every and self._said != self._done:
            self._say()
