"""Settings of `figures`, which fills in measured figures. No large library is imported here."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """Fill the figures of the READMEs from the JSON files of slurm/results, and list files whose code has changed."""

    check: bool = False
    """Write nothing; fail if a figure differs."""
