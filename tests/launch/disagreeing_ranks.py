"""Two ranks with different data, as on two nodes with local disks: disagreeing_ranks.py OUT broken|other

The data of rank 1 are broken, or have another fingerprint. test_failures.py starts it with the launcher.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from ensemble import errors
from ensemble.neural import launch


def main() -> None:
    out, failure = Path(sys.argv[1]), sys.argv[2]
    accelerator = launch.start()

    from ensemble.neural import runs

    is_second = accelerator.process_index == 1
    with launch.together(accelerator):
        if is_second and failure == "broken":
            raise errors.UserError("rows.arrow is missing")
    description = {"fingerprint": f"f{int(is_second)}", "config": {}}
    runs.open_run(out, description, accelerator, "", False, ExitStack())


if __name__ == "__main__":
    errors.run(main)
