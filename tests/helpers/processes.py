"""Facts about other processes, which may be ending."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has ended, even if its parent has not waited for it yet."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
