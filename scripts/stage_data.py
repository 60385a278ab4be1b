"""Copy prepared data to a node's own disk and verify the checksums; slurm/stage.sh runs this script on each node of a job.

python scripts/stage_data.py source=runs/demo/prepared out=/local/scratch/prepared
"""

import dataclasses
import socket

from ensemble import configuration, errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageConfig:
    """The data to copy, and the folder to write."""

    source: str = "???"
    """The folder of prepared data."""
    out: str = "???"
    """The folder to write; it is not changed if it already contains the same data."""


def main() -> None:
    settings = configuration.from_command_line(StageConfig, __doc__)

    from ensemble.data import staging

    num_bytes, copied = staging.stage(settings.source, settings.out)
    result = "copied and checked" if copied else "already there, checked"
    print(f"{socket.gethostname()}: {settings.out}: {num_bytes / 1e6:.1f} MB {result}")


if __name__ == "__main__":
    errors.run(main)
