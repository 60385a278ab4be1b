"""Settings of `figures`, which measures nothing: it fills in what was measured. Nothing heavy is imported here."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """Fill the figures of the READMEs from the JSON files of slurm/results, and list those whose code changed since."""

    check: bool = False
    """Write nothing; end with an error if a figure differs."""


SCHEMAS: dict[str, type] = {"figures": Figures}
