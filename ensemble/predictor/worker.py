"""The worker process of a loaded ensemble: it loads the preparation of data, or one member, and runs tasks.

PyTorch, the tree libraries and polars each start threads of their own and must not share a process. So the preparation of
the data and each member have a worker process each. A worker reads lines of JSON from standard input: the first describes
what to load (`WorkerConfig`), each later line is a task. It ends at a blank line, when its input ends, or if it cannot load.
It answers each other line with a line of JSON on standard output:

    {"notes": [sentence]}   the worker has loaded, or the task is done; the sentences of its warnings
    {"mistake": sentence}   a mistake of the user, as the sentence of a `UserError`
    {"failure": sentence}   any other exception; the traceback is on standard error

Arrays are passed in files: prepared data as a folder, predictions as a prediction file. A member is read from JSON and from
safetensors, UBJ, CBM or LightGBM's text, after its checksums were compared. No pickle is read.
"""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from ensemble import recipe
from ensemble.errors import UserError, full_temporary_disk, is_disk_full, no_temporary_folder, open_missing_streams

WorkerConfig = dict[str, Any]
"""`trusted`, the recipes that the user named; `manifest`, of the data that the ensemble was fitted on; for a member also
`name`, `folder`, `threads`, and `quiet`: whether another worker prints the number of threads of trees."""
Task = dict[str, Any]
"""For the preparation `source`, `metadata` and `out`, and `directory`, to which relative paths refer; for a member `data`,
the prepared folder, and `out`, a file."""
RunTask = Callable[[Task], list[str]]
"""It returns the sentences of the warnings."""


def main() -> None:
    """Load what the first line describes, and run the tasks of the lines that follow."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole process group; requests under way must finish
    # Or `answers`, or a library that keeps a file open (libffi 3.5), would get the descriptor of a closed standard error
    open_missing_streams()
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what libraries print, which would be read as an answer
        lines = takewhile(str.strip, sys.stdin)
        if first := next(lines, ""):  # otherwise the program was interrupted before it could send it
            _load_and_run(json.loads(first), lines, answers)


def _load_and_run(config: WorkerConfig, tasks: Iterable[str], answers: IO[bytes]) -> None:
    """Load what `config` describes, and run the tasks, each a line of JSON."""
    loaded: list[RunTask] = []

    def load() -> list[str]:
        for name in config["trusted"]:
            recipe.named(name)
        loaded.append(_load(config))
        return []

    _answer(answers, load)
    for line in tasks if loaded else ():
        _answer(answers, partial(loaded[0], json.loads(line)))


def _answer(answers: IO[bytes], run: Callable[[], list[str]]) -> None:
    """Call `run`, and write the line that answers it."""
    answer: dict[str, Any]
    try:
        answer = {"notes": run()}
    except UserError as error:
        answer = {"mistake": str(error)}
    except BaseException as error:  # also PanicException of polars, which is no Exception
        if is_disk_full(error):  # a worker writes nothing but temporary files
            answer = {"mistake": str(full_temporary_disk())}
        elif sentence := no_temporary_folder(error):
            answer = {"mistake": sentence}
        else:
            traceback.print_exc()
            answer = {"failure": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError):  # the program that reads the answers was killed
        answers.write(f"{json.dumps(answer)}\n".encode())


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """A list that has, after the context, the warnings that were printed within it on standard error."""
    notes: list[str] = []
    try:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            yield notes
    finally:
        for line in printed.getvalue().splitlines():
            if line.startswith("warning: "):
                notes.append(line.removeprefix("warning: "))
            else:
                print(line, file=sys.stderr)


def _load(config: WorkerConfig) -> RunTask:
    """Load a member or the preparation of new raw data; returns the function that runs a task, for a member a forecast."""
    if "folder" not in config:
        from ensemble.data import prepared

        prepare = recipe.of(config["manifest"]).get("new_data", "prepare")

        def prepare_data(task: Task) -> list[str]:
            if "directory" in task:
                os.chdir(task.pop("directory"))
            with _warnings() as notes:
                prepared.write_new(config["manifest"], prepare, task)
            return notes

        return prepare_data

    from ensemble import folders
    from ensemble.data.inputs import FORECAST
    from ensemble.predictor import members

    with tempfile.TemporaryDirectory(prefix="ensemble-") as empty:  # there are no rows yet
        manifest = {name: value for name, value in config["manifest"].items() if name not in ("files", "fingerprint")}
        folders.write_manifest(Path(empty), {**manifest, "splits": {}})
        member = members.load(Path(config["folder"]), empty, config["threads"], quiet=config.get("quiet", False))

    def predict(task: Task) -> list[str]:
        from ensemble import predictions

        with _warnings() as notes:
            columns = member.predict(task["data"], FORECAST)
        predictions.write(task["out"], predictions.Predictions(**columns, member=config["name"], split=FORECAST))
        return notes

    return predict


if __name__ == "__main__":
    main()
