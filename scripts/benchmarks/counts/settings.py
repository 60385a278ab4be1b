"""Settings of the benchmark in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(Results):
    """Processes, modules, files, bytes, collectives and batches of the commands on a tiny market; half a minute."""
