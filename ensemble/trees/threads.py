"""How many OpenMP threads the tree libraries use, and how idle threads wait: configured once, before a library is imported.

Two threads that spin while they wait for cores of a shared machine run ten times slower than one thread. With
OMP_WAIT_POLICY=PASSIVE they sleep. XGBoost uses the smallest of nthread, OMP_NUM_THREADS and the cgroup's quota, LightGBM
the number in its parameters. Here both get the same number, and a line on stderr gives the number and the reason.
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

MOST_THREADS = 1024
"""The largest number of threads on a machine that has fewer cores."""
_configured: list[int] = []
"""The number of threads of this process, once it is configured."""


def configure(requested: int = 0, quiet: bool = False) -> int:
    """Choose the number of threads, set it in the environment, print it unless `quiet`, and return it. 0 requests all
    granted cores, or outside of Slurm OMP_NUM_THREADS if that is less; in a configured process, the number stays."""
    if _configured and (not requested or requested == _configured[0]):
        return _configured[0]
    assert not is_openmp_loaded(), "OpenMP has read its settings already"
    if requested < 0:
        raise UserError(f"threads={requested} is impossible: give a number of cores, or 0 for as many as are granted")
    if requested > max(MOST_THREADS, cores.granted()):  # the libraries would end the process, without an error
        raise UserError(f"threads={requested} is impossible: give at most {MOST_THREADS}, or leave threads= out")
    chosen, reason, warnings = choose(requested, os.environ)
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    policy = os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    lines = [f"OMP_NUM_THREADS={chosen} OMP_WAIT_POLICY={policy}: {reason}", *(f"warning: {text}" for text in warnings)]
    if not quiet:
        print(*lines, sep="\n", file=sys.stderr)
    provide_openmp()
    _configured[:] = [chosen]
    return chosen


def is_openmp_loaded() -> bool:
    """Whether a library has read the settings of OpenMP already."""
    return bool({"xgboost", "lightgbm"} & sys.modules.keys())


def choose(requested: int, environment: Mapping[str, str], cgroup: Path | None = None) -> tuple[int, str, list[str]]:
    """The number of threads, the reason, and a warning for each setting that reduces the speed or is ignored since it would.

    `requested` takes precedence. A Slurm job owns its cores, so there a smaller OMP_NUM_THREADS is ignored: job scripts
    export it for other programs. Elsewhere the user may have set it to share the machine.
    """
    limits = cores.limits(environment, cgroup)
    outermost = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of nested parallel regions
    granted, from_environment = min(limits.values()), int(outermost) if outermost.isdecimal() else 0
    reason = f"{granted} cores are granted ({', '.join(f'{name} {number}' for name, number in limits.items())})"
    chosen, warnings = granted, []
    if requested:
        chosen, reason = requested, f"threads={requested} is set, {reason}"
    elif 0 < from_environment < granted and "SLURM_CPUS_PER_TASK" in limits:
        warnings.append(
            f"OMP_NUM_THREADS={from_environment} would leave {granted - from_environment} of the job's {granted} cores idle "
            f"and is ignored: use threads={from_environment} to set the number"
        )
    elif 0 < from_environment < granted:
        chosen, reason = from_environment, f"OMP_NUM_THREADS is {from_environment}, {reason}"
        warnings.append(
            f"OMP_NUM_THREADS={from_environment} leaves {granted - from_environment} of {granted} cores idle: "
            f"use threads={granted} for all"
        )
    if chosen > granted:
        warnings.append(
            f"{chosen} threads on {granted} cores wait for each other, some ten times slower: leave threads= out"
        )
    if environment.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        warnings.append(
            "OMP_WAIT_POLICY=ACTIVE lets waiting threads spin, some ten times slower where cores are shared: unset it"
        )
    return chosen, reason, warnings


def provide_openmp() -> None:
    """Load PyTorch's copy of libgomp, without importing PyTorch, where the system lacks the one that LightGBM needs."""
    if not sys.platform.startswith("linux") or ctypes.util.find_library("gomp"):
        return
    torch = importlib.util.find_spec("torch")
    for folder in (torch.submodule_search_locations or []) if torch else []:
        for library in sorted(Path(folder, "lib").glob("libgomp.so*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return
    raise UserError("LightGBM needs the OpenMP library libgomp.so.1, which this machine lacks: apt install libgomp1")
