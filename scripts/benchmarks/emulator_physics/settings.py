"""Settings of the benchmarks of this folder. No large library is imported here."""

import dataclasses
from typing import ClassVar

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorJacobian(Results):
    """Jacobians of 100,000 rows by hand-written propagation, compared with autograd and vmap(jacrev); a CPU minute."""

    module: ClassVar[str] = "jacobians"
    rounds: int = 31
    """Calls of each method, alternately."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorCpp(Results):
    """One row and 100,000 rows in C++ and in Python; compiling takes two CPU minutes."""

    module: ClassVar[str] = "compiled"
    build: str = "runs/emulator_cpp"
    """The folder for the compiled program and the exported files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorDapper(Results):
    """Analysis errors of EKF and LETKF with the true model, compared with those of DAPPER; a CPU minute."""

    module: ClassVar[str] = "assimilation"
    python: str = "???"
    """The interpreter of an environment with DAPPER: python3 -m venv V && V/bin/pip install dapper==1.7.1."""
    seeds: int = 5
    """Experiments with each method."""
    cycles: int = 1000
    """Cycles that are scored, after 400 of spin-up."""
    member: str = ""
    """A neural member for Lorenz-96, whose errors are measured too; empty for none."""
    data: str = ""
    """The prepared data that the member was trained on."""
