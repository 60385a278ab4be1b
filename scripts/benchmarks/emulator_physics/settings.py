"""Settings of the benchmarks in measure.py. Nothing heavy is imported here."""

import dataclasses

from benchmarks.results import Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorJacobian(Results):
    """Jacobians of 100,000 rows by hand-written propagation, beside autograd and vmap(jacrev); a CPU minute."""

    rounds: int = 9
    """Calls of each way, in turn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorCpp(Results):
    """One row and 100,000 rows by C++, beside Python; it compiles for two CPU minutes."""

    build: str = "runs/emulator_cpp"
    """The folder for the compiled program and the exported files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmulatorDapper(Results):
    """EKF and LETKF with the true model beside DAPPER's; a CPU minute."""

    python: str = "???"
    """The python of a venv with DAPPER: python3 -m venv V && V/bin/pip install dapper==1.7.1."""
    seeds: int = 5
    """Experiments of each."""
    cycles: int = 1000
    """Cycles that are scored, after 400 of spin-up."""
    member: str = ""
    """A neural member for Lorenz-96, to have its errors too; empty for none."""
    data: str = ""
    """The prepared data that it learned from."""


SCHEMAS: dict[str, type] = {
    "emulator_jacobian": EmulatorJacobian,
    "emulator_cpp": EmulatorCpp,
    "emulator_dapper": EmulatorDapper,
}
