"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knobs(Results):
    """What each speed knob of train.py is worth on this hardware; some ten minutes."""

    rounds: int = 3
    """Trainings with each knob, each between two without it; at least 2."""


SCHEMAS: dict[str, type] = {
    "knobs": Knobs,
}
