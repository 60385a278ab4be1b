"""Check what usually breaks a run, and say how to mend it: on this machine, or on every node of a Slurm job.

    python scripts/doctor.py
    srun --ntasks-per-node=1 python scripts/doctor.py

Each line is ok, a note, or a problem with its mend. Exit code 0 without problems, 1 with any.
"""

import dataclasses
import sys

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """How patient the doctor is."""

    wait_s: int = 20
    """Seconds in which every node of the job must have come; one that has not is named, and the others are checked."""


def main() -> None:
    # OmegaConf, which reads settings, may be what is missing
    settings = configuration.from_command_line(DoctorConfig, __doc__) if sys.argv[1:] else DoctorConfig()
    configuration.check(settings, wait_s=(settings.wait_s > 0, "above 0"))

    from ensemble.doctor import examine

    sys.exit(errors.FAILED if examine.diagnose(settings.wait_s) else 0)


if __name__ == "__main__":
    errors.run(main)
