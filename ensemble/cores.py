"""The number of cores that this process may use, which can be less than that of the machine.

This module imports no other module of the package.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def granted() -> int:
    """The number of cores that this process may use: the smallest of `limits`. All ranks of a launcher share these cores."""
    return min(limits(os.environ).values())


def limits(environment: Mapping[str, str], cgroup: Path | None = None) -> dict[str, int]:
    """The limits in cores: the affinity mask, Slurm's allocation, and the CPU quota of the cgroup (default: `CGROUP`).

    Under `srun`, Slurm's limit is that of the task; if the task is a launcher, all the ranks that it starts share it.
    """
    cores = {"affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    if granted_by_slurm := number_in(environment, "SLURM_CPUS_PER_TASK"):
        cores["SLURM_CPUS_PER_TASK"] = granted_by_slurm
    if (quota := _cgroup_quota(cgroup)) is not None:
        cores["cgroup"] = max(1, math.floor(quota))
    return cores


def number_in(environment: Mapping[str, str], name: str) -> int:
    """The number of cores in the environment variable `name`; 0 if it is not set to a number."""
    text = environment.get(name, "")
    return int(text) if text.isdigit() else 0


def cgroup_folders(controller: str, cgroup: Path | None = None) -> Iterator[Path]:
    """The folders whose limits apply to this process: those of its cgroup and of all its parents, in cgroup v2 and v1.

    In a container, the process sees its own cgroup as the root. In a Slurm job, its cgroup is some levels below the root,
    and each of these levels may have a limit.
    """
    root = cgroup or CGROUP
    own = [root, root / controller]
    with suppress(OSError):
        for line in OWN_CGROUP.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names == "" or controller in names.split(","):
                below = [part for part in path.split("/") if part]
                top = root / controller if names else root
                own += [top.joinpath(*below[:depth]) for depth in range(1, len(below) + 1)]
    yield from own


def _cgroup_quota(cgroup: Path | None) -> float | None:
    """The smallest CPU quota in cores of cgroup v2 and v1; None if there is none."""
    quotas = []
    for folder in cgroup_folders("cpu", cgroup):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append((quota, period))
        with suppress(OSError):
            quotas.append(((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()))
    # "max" or -1 means no limit
    return min((int(quota) / int(period) for quota, period in quotas if quota.strip().isdigit()), default=None)
