"""The setting that all benchmarks share."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Where the figures are written."""

    results: str = "slurm/results"
    """The folder for the JSON file; the same for every benchmark."""
