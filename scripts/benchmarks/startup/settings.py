"""Settings of the benchmark in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Startup(Results):
    """Seconds from a command to its first step, or to its end, beside empty scripts; some ten minutes."""

    pairs: int = 5
    """Runs of each command, each followed by the empty scripts that it is compared with; at least 2."""
