"""Settings of the benchmarks in measure.py. No large library is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorSkill(Results):
    """Sea ice from generation to page: scores relative to the ceiling, Jacobians, CPU seconds; three CPU minutes."""

    num_times: int = 4
    """Times in each generated file; make demo-emulator has 4."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorLorenz96(Results):
    """The presets for Lorenz-96, trained and tested; a CPU minute for each training."""

    seeds: int = 1
    """Trainings of each preset."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorThroughput(Results):
    """Rows per CPU second of the training loop, relative to a plain loop that indexes tensors; two CPU minutes."""

    rounds: int = 8
    """Blocks of our loop, each between two of the plain loop, for each batch size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorMemory(Results):
    """Peak memory of preparing NetCDF files larger than the memory limit; needs 20 GB of disk and ten CPU minutes."""

    num_files: int = 4
    """NetCDF files, of two formats."""
    num_times: int = 25
    """Times in each file; a fifth of them for comparison."""
    limit_mb: int = 1000
    """The limit of the private memory of the process."""
