"""Scripts in forked children of one process, which has loaded some libraries: this saves a second or more for each script.

A child differs from `python scripts/NAME.py` in nothing else: it runs the file as `__main__`, with a command line, a working
directory, a session and standard streams of its own, and ends with an exit code. The process that forks runs nothing. It
loads torch, XGBoost or LightGBM only if they are among its arguments, since a script chooses the settings of OpenMP before
it imports them.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class ScriptServer:
    """The process that forks; `run` is called in the process of the tests."""

    def __init__(self, environment: Mapping[str, str], *libraries: str):
        """`libraries` are imported beside those that every script needs."""
        command = [sys.executable, __file__, *libraries]
        self.process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """A script in a child, with `folder` as working directory."""
        assert self.process.stdin
        assert self.process.stdout
        command = [str(SCRIPTS / f"{script}.py"), *words]
        self.process.stdin.write(json.dumps({"command": command, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return subprocess.CompletedProcess(command, **json.loads(self.process.stdout.readline()))

    def stop(self) -> int:
        """The server's exit code."""
        self.process.communicate(timeout=120)  # a busy machine may import the libraries for long
        return self.process.returncode


def answer(command: list[str], folder: str, timeout_s: int = 240) -> dict[str, Any]:
    """Run a script in a child: its exit code and what it wrote."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            import signal

            signal.alarm(timeout_s)  # a script that hangs ends with the exit code -SIGALRM
            os._exit(ended(command, folder))
        _, status = os.waitpid(child, 0)
        texts = {}
        for name, stream in (("stdout", output), ("stderr", errors)):
            stream.seek(0)
            texts[name] = stream.read().decode()
    return {"returncode": os.waitstatus_to_exitcode(status), **texts}


def ended(command: list[str], folder: str) -> int:
    """Run a script as the interpreter does, to the exit code that it would end with."""
    code = 0
    os.chdir(folder)
    sys.argv, sys.path[0] = command, os.path.dirname(command[0])
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    import omegaconf  # noqa: F401
    import yaml  # noqa: F401

    from ensemble import configuration, errors, folders, recipe  # noqa: F401
    from ensemble.neural import settings  # noqa: F401

    for library in sys.argv[1:]:
        importlib.import_module(library)
    assert not {"torch", "xgboost", "lightgbm"} & sys.modules.keys() - set(sys.argv[1:])

    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
