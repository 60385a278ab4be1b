"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knobs(Results):
    """The effect of each speed setting of train.py on this hardware; ten minutes."""

    rounds: int = 3
    """Trainings with each setting, each between two without it; at least 2."""
