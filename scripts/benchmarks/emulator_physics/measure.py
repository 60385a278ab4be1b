"""Networks of the recipe emulator: Jacobians of a batch, C++ beside Python, and analysis errors beside DAPPER's."""

from typing import Any

from benchmarks.emulator_physics import assimilation, compiled, jacobians


def emulator_jacobian(rounds: int) -> dict[str, Any]:
    """See jacobians.py."""
    return jacobians.measured(rounds)


def emulator_cpp(build: str) -> dict[str, Any]:
    """See compiled.py."""
    return compiled.measured(build)


def emulator_dapper(python: str, seeds: int, cycles: int, member: str, data: str) -> dict[str, Any]:
    """See assimilation.py."""
    return assimilation.measured(python, seeds, cycles, member, data)
