"""scripts/train.py on the CPU of this machine, with ranks forked from one process that has imported PyTorch.

    python -m ensemble.commands.train_on_cpu --num_processes 2 --recipe table data=… out=…

A fit trains its networks with this module where there is no GPU, or where a CPU is faster. With `accelerate launch` the
launcher and each rank import PyTorch, Accelerate and the recipe: on two ranks the first step begins 2.4 s later, and 0.2 GB
more memory is used. With GPUs, ranks must not be forked, since CUDA may be initialized. On systems other than Linux, ranks
are spawned, and import these libraries again. The other arguments and the exit codes are those of scripts/train.py.
"""

import argparse
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from types import FrameType

from ensemble import errors, recipe, signals
from ensemble.commands import train
from ensemble.neural import launch

GRACE_S = 30.0
"""When a rank has ended with an error or was stopped, the others have this time to end too, for instance to write a
checkpoint, and the same time again after SIGTERM."""


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_processes", type=int, required=True)
    options, words = parser.parse_known_args()
    if options.num_processes < 1:
        raise errors.UserError(f"--num_processes {options.num_processes} is impossible: it must be at least 1")
    sys.argv = [train.__file__, *words]
    os.environ |= {**launch.ON_CPU, "ACCELERATE_MIXED_PRECISION": "no"}
    if options.num_processes == 1:
        train.main()
    else:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before PyTorch is imported, as in `launch.start`
        _import_what_ranks_need(recipe.option(recipe.DEFAULT).parse_known_args(words)[0].recipe)
        folder = tempfile.mkdtemp()  # a TemporaryDirectory would be deleted by the first rank that exits
        try:
            sys.exit(_train_with_ranks(options.num_processes, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _import_what_ranks_need(name: str) -> None:
    """Import the modules that a training uses. A recipe of the user is not imported: it may start threads, and a process
    with threads must not be forked."""
    from ensemble.neural import loop, preflight, refit, speed  # noqa: F401
    from ensemble.predictor import members  # noqa: F401

    if name in recipe.BUILT_IN:
        recipe.named(name).module("training")


def _train_with_ranks(num_ranks: int, folder: str) -> int:
    """The exit code of the rank that ended first with another code than 0, or 0. The signals `signals.STOP` are forwarded.

    If a signal ended this rank, the code is 128 plus the signal's number. folder : a temporary folder by which the ranks
    print the same error only once.
    """
    from accelerate.utils.other import get_free_port
    from torch import multiprocessing

    gc.freeze()  # a collection would write to the objects, and thus copy the shared memory
    start_method = "fork" if sys.platform == "linux" else "spawn"
    arguments = (num_ranks, get_free_port(), folder)
    ranks = multiprocessing.start_processes(_rank, arguments, num_ranks, join=False, start_method=start_method)

    def forward(number: int, frame: FrameType | None) -> None:
        errors.discard_output_to_closed_terminal()
        for process in ranks.processes:
            if process.is_alive():
                os.kill(process.pid, number)

    for number in signals.STOP:
        signal.signal(number, forward)
    logging.disable(logging.WARNING)  # `join` warns about each rank that it ends because another one has failed
    try:
        while not ranks.join(grace_period=GRACE_S):
            pass
    except multiprocessing.ProcessExitedException as error:
        return error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    return 0


def _rank(rank: int, num_ranks: int, port: int, folder: str) -> None:
    """Run scripts/train.py as one of the ranks, with the environment variables that torchelastic would set."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.makedirs(f"{folder}/{rank}")
    os.environ |= {"TORCHELASTIC_ERROR_FILE": f"{folder}/{rank}/error.json", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    # Whatever interface a cluster's environment names for other nodes
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    errors.run(train.main)


if __name__ == "__main__":
    errors.run(main)
