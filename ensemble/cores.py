"""How many cores this process was granted, which may be fewer than the machine has; it imports nothing of ours."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def granted() -> int:
    """The least that any authority grants. Ranks that one launcher started share them."""
    return min(limits(os.environ).values())


def limits(environment: Mapping[str, str], cgroup: Path | None = None) -> dict[str, int]:
    """What each authority grants, in cores: the affinity mask, Slurm's allocation, the cgroup (default: `CGROUP`).

    Under `srun`, what Slurm grants is for the task: where that is a launcher, for all the ranks that it starts.
    """
    found = {"affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    found |= named(environment, "SLURM_CPUS_PER_TASK")
    quota = _cgroup_quota(cgroup or CGROUP)
    if quota is not None:
        found["cgroup"] = max(1, math.floor(quota))
    return found


def named(environment: Mapping[str, str], name: str) -> dict[str, int]:
    """The number of cores that a variable gives, under its name; nothing if it gives none."""
    text = environment.get(name, "")
    return {name: int(text)} if text.isdigit() and int(text) > 0 else {}


def cgroup_folders(controller: str, cgroup: Path | None = None) -> Iterator[Path]:
    """The folders whose limits hold for this process: its own group's, and all above it, of cgroup v2 and v1.

    In a container its own group is the root of what it sees; in a job of Slurm it is some levels down, and each may limit.
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


def _cgroup_quota(cgroup: Path) -> float | None:
    """The least CPU quota in cores of cgroup v2 and v1, None where there is none."""
    quotas = []
    for folder in cgroup_folders("cpu", cgroup):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append((quota, period))
        with suppress(OSError):
            quotas.append(((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()))
    # "max", or -1: no limit
    return min((int(quota) / int(period) for quota, period in quotas if quota.strip().isdigit()), default=None)
