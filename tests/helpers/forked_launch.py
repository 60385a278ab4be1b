"""`accelerate launch` in a forked child of a ScriptServer; its ranks are forked from it, which saves their imports of torch.

forked_launch.py ENVIRONMENT word…   ENVIRONMENT is JSON, the words are those of `accelerate launch`

The launcher and the ranks run the code of a real launch, except that the interpreter of a rank does not start anew. Real
launches remain in tests/slurm and launch/: test_launch, test_torture, test_elastic, test_train_on_cpu, test_yamls, and in
test_failures the ranks that are killed, fail or are short of memory.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import script_server
from accelerate.commands import launch
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

TIMEOUT_S = 240


class Forked:
    """Replaces `subprocess.Popen` in the launchers: runs a Python script in a forked child, in a session of its own."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]):
        self.returncode: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which rank 0's store has
            self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.closerange(3, 65536)  # as an exec does with the launcher's sockets
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.alarm(TIMEOUT_S)  # no rank outlives its launcher for long
            os.environ.clear()
            os.environ.update(env)
            os._exit(script_server.ended(list(args[2 if args[1] == "-u" else 1 :]), os.getcwd()))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.02)
        return code


if __name__ == "__main__":
    os.environ.clear()
    os.environ.update(json.loads(sys.argv.pop(1)))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # Several ranks are started by torch's launcher, one rank by Accelerate's
    SubprocessHandler._popen = lambda handler, args, env: Forked(args, env)
    vars(launch)["subprocess"] = SimpleNamespace(**vars(subprocess) | {"Popen": Forked})
    launch.main()
