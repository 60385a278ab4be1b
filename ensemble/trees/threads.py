"""How many OpenMP threads, and how they wait: settled once, before XGBoost or LightGBM is imported.

On a shared machine two threads that spin while they wait run ten times slower than one; OMP_WAIT_POLICY=PASSIVE lets them
sleep. XGBoost obeys the smallest of nthread, OMP_NUM_THREADS and the cgroup's quota, LightGBM only what it is told: so both
are told the same number.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ensemble import cores
from ensemble.errors import UserError


def settle(asked: int = 0) -> int:
    """Choose the number of threads, put it into the environment, and return it; 0 leaves the choice to the machine."""
    assert not {"xgboost", "lightgbm"} & sys.modules.keys(), "OpenMP has read its settings already"
    limits = thread_limits(os.environ)
    if asked < 0:
        raise UserError(f"threads={asked} is impossible: give a number of cores, or 0 for as many as are granted")
    chosen = asked or min(limits.values())
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _provide_openmp()
    return chosen


def thread_limits(environment: Mapping[str, str], cgroup: Path | None = None) -> dict[str, int]:
    """What each authority grants, in cores, and what the user's environment asks for."""
    return cores.limits(environment, cgroup) | cores.named(environment, "OMP_NUM_THREADS")


def _provide_openmp() -> None:
    """LightGBM's wheel expects the system's libgomp; on a bare machine, lend it the one that PyTorch's wheel carries.

    Only the shared object is loaded, PyTorch itself is not imported.
    """
    if not sys.platform.startswith("linux") or ctypes.util.find_library("gomp"):
        return
    found = importlib.util.find_spec("torch")
    for folder in (found.submodule_search_locations or []) if found else []:
        for library in sorted(Path(folder, "lib").glob("libgomp.so*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return
    raise UserError("LightGBM needs the OpenMP library libgomp.so.1, which this machine lacks: apt install libgomp1")
