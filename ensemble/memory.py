"""How much memory is available to this process."""

from contextlib import suppress
from pathlib import Path

from ensemble import cores

MEMINFO = Path("/proc/meminfo")


def available(cgroup: Path | None = None) -> int | None:
    """Bytes that this process may still allocate: the least that the machine and each cgroup allow; None if unknown."""
    limits = []
    with suppress(OSError, KeyError):
        limits.append(1024 * read_numbers(MEMINFO)["MemAvailable"])
    for folder in cores.cgroup_folders("memory", cgroup):
        # Inactive file pages count as used, but the kernel frees them on demand
        for limit, used, pages in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError, KeyError):  # "max" is no number
                limit_bytes, used_bytes = (int((folder / name).read_text()) for name in (limit, used))
                limits.append(limit_bytes - used_bytes + read_numbers(folder / "memory.stat")[pages])
    return max(0, min(limits)) if limits else None


def read_numbers(file: Path) -> dict[str, int]:
    """The numbers by name, from the lines of a file that begin with a name and a number."""
    lines = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
