"""Two ranks, as on two nodes with a disk each: disagreeing_ranks.py OUT broken|other

The data of rank 1 is broken, or another's. test_failures.py runs it through the launcher.
"""

import sys
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
    about = {"fingerprint": f"f{int(is_second)}", "config": {}}
    runs.open_run(out, about, accelerator, "", False)


if __name__ == "__main__":
    errors.run(main)
