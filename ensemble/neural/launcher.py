"""`accelerate launch` without a traceback of the launcher after an error of the user (exit code 2) and after a signal.

    python -m ensemble.neural.launcher --config_file accelerate_configs/multi_cpu.yaml scripts/train.py …

The arguments are those of `accelerate launch`. The sentence of the error is printed by a rank (`errors.run`). Any other
failure ends as with `accelerate launch`, which adds no traceback to that of a single process with `--quiet`.
"""

import logging
import sys
from subprocess import CalledProcessError

from ensemble.errors import FAILED, INTERRUPTED, USER_ERROR


def main() -> None:
    """Run `accelerate launch` with the arguments of this process."""
    from accelerate.commands import launch

    logging.disable(logging.ERROR)  # torchelastic logs the exit code of each rank, which its error contains too
    args = launch.launch_command_parser().parse_args()
    is_quiet, args.quiet = args.quiet, False  # with it, the exit code of a single process would be lost
    try:
        launch.launch_command(args)
    except CalledProcessError as error:
        if is_quiet or error.returncode == USER_ERROR:
            sys.exit(USER_ERROR if error.returncode == USER_ERROR else FAILED)
        raise
    except KeyboardInterrupt:  # with a single process, which has received it too
        sys.exit(INTERRUPTED)
    except Exception as error:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        if isinstance(error, SignalException):  # the ranks have received it too
            sys.exit(128 + error.sigval)
        if isinstance(error, ChildFailedError) and error.get_first_failure()[1].exitcode == USER_ERROR:
            sys.exit(USER_ERROR)
        raise


if __name__ == "__main__":
    main()
