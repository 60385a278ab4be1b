"""How many OpenMP threads, and how they wait: settled once, before XGBoost or LightGBM is imported.

On a shared machine two threads that spin while they wait run ten times slower than one; OMP_WAIT_POLICY=PASSIVE lets them
sleep. XGBoost obeys the smallest of nthread, OMP_NUM_THREADS and the cgroup's quota, LightGBM only what it is told: so both
are told the same number, and one line on stderr says which and why.
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

_settled: list[int] = []
"""The number of threads of this process, once it is settled."""


def settle(asked: int = 0) -> int:
    """Choose the number of threads, put it into the environment, say so, and return it; 0 leaves it to the machine."""
    if _settled and (not asked or asked == _settled[0]):
        return _settled[0]
    assert not is_too_late(), "OpenMP has read its settings already"
    if asked < 0:
        raise UserError(f"threads={asked} is impossible: give a number of cores, or 0 for as many as are granted")
    chosen, why, warnings = choose(asked, os.environ)
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    policy = os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    print(f"OMP_NUM_THREADS={chosen} OMP_WAIT_POLICY={policy}: {why}", file=sys.stderr)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    provide_openmp()
    _settled[:] = [chosen]
    return chosen


def is_too_late() -> bool:
    """Whether a library has read the settings of OpenMP already."""
    return bool({"xgboost", "lightgbm"} & sys.modules.keys())


def choose(asked: int, environment: Mapping[str, str], cgroup: Path | None = None) -> tuple[int, str, list[str]]:
    """The number of threads, why, and a sentence on each setting that costs speed, or would have.

    `asked` comes first. A job of Slurm owns its cores, so that a smaller OMP_NUM_THREADS, which job scripts export for other
    programs, is not obeyed there; elsewhere it may be the user's wish to share the machine, and is.
    """
    limits = cores.limits(environment, cgroup)
    granted, wished = min(limits.values()), cores.named(environment, "OMP_NUM_THREADS").get("OMP_NUM_THREADS")
    why = f"{granted} cores are granted ({', '.join(f'{name} {number}' for name, number in limits.items())})"
    chosen, warnings = granted, []
    if asked:
        chosen, why = asked, f"threads={asked} was asked for, {why}"
    elif wished and wished < granted and "SLURM_CPUS_PER_TASK" in limits:
        warnings.append(
            f"OMP_NUM_THREADS={wished} would have left {granted - wished} of the job's {granted} cores idle, and is not "
            f"obeyed: threads={wished} is"
        )
    elif wished and wished < granted:
        chosen, why = wished, f"OMP_NUM_THREADS asks for {wished}, {why}"
        warnings.append(
            f"OMP_NUM_THREADS={wished} leaves {granted - wished} of {granted} cores idle: threads={granted} does not"
        )
    if chosen > granted:
        warnings.append(
            f"{chosen} threads on {granted} cores wait for each other, some ten times slower: leave threads= out"
        )
    if environment.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        warnings.append(
            "OMP_WAIT_POLICY=ACTIVE lets waiting threads spin, some ten times slower where cores are shared: unset it"
        )
    return chosen, why, warnings


def provide_openmp() -> None:
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
