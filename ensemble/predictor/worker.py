"""One stage of a loaded ensemble, in a process of its own: it loads once and then answers tasks until its input ends.

PyTorch, the tree libraries and polars each bring threads of their own and do not share a process here, so the preparation
of the data and each member have one. On standard input, the first line describes the stage and each later one a task, in
JSON; each is answered by a line on standard output:

    {}                      done, or loaded
    {"mistake": sentence}   what was asked cannot be done, and the sentence says why
    {"failure": sentence}   something broke, and the traceback is on standard error

Arrays travel in files: prepared data as a folder, predictions as a prediction file. A member is read from JSON and from
safetensors, UBJ or LightGBM's text, after its checksums were compared; there is nothing here that could read a pickle.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from ensemble import recipe
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError

Task = dict[str, Any]
Stage = Callable[[Task], None]


def main() -> None:
    """Load the stage that the first line describes, and answer those that follow."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group, and requests under way are to be finished
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries and stages print is no answer
    about = json.loads(sys.stdin.readline())
    if about["recipe"] not in recipe.BUILT_IN:  # the process that started this one trusts it already
        recipe.named(about["recipe"])
    stages: list[Stage] = []
    _answer(answers, lambda: stages.append((load_member if "folder" in about else load_preparation)(about)))
    for line in sys.stdin if stages else ():
        _answer(answers, partial(stages[0], json.loads(line)))


def _answer(answers: IO[str], work: Callable[[], None]) -> None:
    answer = {}
    try:
        work()
    except UserError as error:
        answer = {"mistake": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"failure": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)


def load_preparation(about: Task) -> Stage:
    """Raw data to prepared data like those that the members learned from; a task has `source`, `metadata` and `out`."""
    from ensemble.predictor import new_data

    return partial(new_data.of_recipe(about["like"]).prepare, about["like"])


def load_member(about: Task) -> Stage:
    """A member; a task has the folder of prepared `data` and the prediction file `out`."""
    from ensemble import folders
    from ensemble.predictor import members

    with tempfile.TemporaryDirectory(prefix="ensemble-") as empty:  # there are no rows yet
        like = {name: value for name, value in about["like"].items() if name not in ("files", "fingerprint")}
        folders.write_manifest(Path(empty), {**like, "splits": {}})
        member = members.load(Path(about["folder"]), empty, about["threads"])
    return partial(_predict, member.predict, about["name"])


def _predict(ask: Callable[[str, str], dict[str, Any]], name: str, task: Task) -> None:
    from ensemble import predictions

    found = ask(task["data"], FORECAST)
    predictions.write(task["out"], predictions.Predictions(**found, member=name, split=FORECAST))


if __name__ == "__main__":
    main()
