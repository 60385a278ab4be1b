"""Check this machine, or every node of a Slurm job, for the usual causes of failing runs, and print how to fix them.

    python scripts/doctor.py
    srun --ntasks-per-node=1 python scripts/doctor.py

Each line is ok, a note, or a problem with a fix. Exit code 0 without problems, 1 with any.
"""

import dataclasses
import sys

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The time limit for connections between the nodes of a job."""

    wait_s: int = 20
    """Seconds in which every node of a job must connect. A node that does not is reported, and the others are checked."""


def main() -> None:
    # Without arguments OmegaConf, which reads settings, is not needed: it may not be installed
    settings = configuration.from_command_line(DoctorConfig, __doc__) if sys.argv[1:] else DoctorConfig()
    configuration.check(settings, wait_s=(settings.wait_s > 0, "above 0"))

    from ensemble.doctor import examine

    sys.exit(errors.FAILED if examine.diagnose(settings.wait_s) else 0)


if __name__ == "__main__":
    errors.run(main)
