"""How many cores this process was granted, which may be fewer than the machine has; it imports nothing of ours."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


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


def _cgroup_quota(cgroup: Path) -> float | None:
    """The CPU quota in cores of cgroup v2 or v1, None where there is none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit():  # "max", or -1: no limit
        return None
    return int(quota) / int(period)
