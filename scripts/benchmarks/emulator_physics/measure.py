"""Networks of the recipe emulator: Jacobians of a batch, C++ and Python, and analysis errors beside those of DAPPER."""

from benchmarks.emulator_physics.assimilation import emulator_dapper
from benchmarks.emulator_physics.compiled import emulator_cpp
from benchmarks.emulator_physics.jacobians import emulator_jacobian

__all__ = ["emulator_cpp", "emulator_dapper", "emulator_jacobian"]
