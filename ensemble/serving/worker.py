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

from ensemble import config as configuration
from ensemble.errors import UserError

FORECAST = "forecast"
Task = dict[str, Any]
Stage = Callable[[Task], None]


def main() -> None:
    """Load the stage that the first line describes, and answer those that follow."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group, and requests under way are to be finished
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what libraries and stages print is no answer
    about = json.loads(sys.stdin.readline())
    stages: list[Stage] = []
    _answer(answers, lambda: stages.append(LOADERS[about["kind"]](about)))
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
    """Raw reviews to prepared data like those that the members learned from; a task has `source`, `metadata` and `out`."""
    from ensemble.data import panel
    from ensemble.data.config import PrepareConfig

    like = about["like"]

    def prepare(task: Task) -> None:
        panel.prepare(configuration.from_dict(PrepareConfig, {**task, "panel": like["config"]}), like)

    return prepare


def load_trees(about: Task) -> Stage:
    """A tree member; a task has the folder of prepared `data` and the prediction file `out`."""
    from ensemble.trees import threads

    threads.settle(about["threads"])

    from ensemble import bag
    from ensemble.trees.prediction import LoadedMember

    ask = bag.load(Path(about["folder"]), lambda copy: LoadedMember(copy).predict)
    return partial(_predict, ask, about["name"])


def load_neural(about: Task) -> Stage:
    """A neural member; a task is that of `load_trees`."""
    if about["threads"]:
        os.environ["OMP_NUM_THREADS"] = str(about["threads"])

    from ensemble.neural import launch

    accelerator = launch.start()

    from ensemble import bag
    from ensemble.data import manifest
    from ensemble.neural.member import LoadedMember

    with tempfile.TemporaryDirectory(prefix="ensemble-") as empty:  # there are no rows yet
        like = {name: value for name, value in about["like"].items() if name not in ("files", "fingerprint")}
        manifest.write_manifest(Path(empty), {**like, "splits": {}})
        ask = bag.load(Path(about["folder"]), lambda copy: LoadedMember(copy, accelerator, empty).predict)
    return partial(_predict, ask, about["name"])


def _predict(ask: Callable[[str, str], dict[str, Any]], name: str, task: Task) -> None:
    from ensemble import predictions

    found = ask(task["data"], FORECAST)
    predictions.write(task["out"], predictions.Predictions(**found, member=name, split=FORECAST))


LOADERS: dict[str, Callable[[Task], Stage]] = {
    "preparation": load_preparation,
    "neural": load_neural,
    "xgboost": load_trees,
    "lightgbm": load_trees,
}


if __name__ == "__main__":
    main()
