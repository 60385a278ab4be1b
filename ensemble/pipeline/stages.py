"""Parts of a fit as tasks of a cluster; the fit that follows them with --resume auto finds their work done.

    prepare    the folder, the prepared data, and in network.words the words of scripts/train.py for the neural member
    copies     the copies of the tree members on the folds of a cross-validation, each on one core (trees/single_copy.py)
    members    the tree members, from their copies

Of copies and members a task does every `num_tasks`-th, so that any number of tasks does all of them. A task that was killed
begins again: what is whole is not done twice, and what is not goes on from its last checkpoint.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ensemble import folders
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.pipeline import network
from ensemble.pipeline import run as whole
from ensemble.pipeline.plan import PREPARED, Planned, Preempted
from ensemble.signals import StopSignals

WORDS = "network.words"
"""In the folder of the fit: the words of scripts/train.py, one a line; empty without a neural member."""


def run(stage: str, config: Any, name: str, task: int = 0, num_tasks: int = 1) -> None:
    """Do a stage of a fit of the recipe `name`, or the share of `task`.

    Raises `UserError` for a mistake of the user's, and `Preempted`.
    """
    from ensemble.trees import threads

    if config.time_limit or getattr(config, "overwrite", False):
        raise UserError("--stage is for time_limit=0 without overwrite=true: tasks have limits of Slurm's, and begin again")
    if not 0 <= task < num_tasks:
        raise UserError(f"--task {task} --num-tasks {num_tasks} is impossible: tasks are counted from 0")
    about = whole.prepare(config, name, resume=True) if stage == "prepare" else whole.prepared(config, name)
    num_threads = threads.configure(config.threads)
    planned = whole.chosen(about, config, num_threads)
    # Members of a follow-up train on predictions of the others, so the fit without --stage trains them
    trees = [member for member in planned if member.kind == "trees" and member.data == PREPARED]
    if stage == "prepare":
        _write_words(planned, about, config)
    elif stage == "copies":
        _grow_copies(trees, about, config, num_threads, slice(task, None, num_tasks))
    else:
        for member in trees[task::num_tasks]:
            _warned(whole.train_trees, member, config, num_threads)


def _write_words(planned: list[Planned], about: dict[str, Any], config: Any) -> None:
    """Those of the first neural member."""
    out = Path(config.out)
    words = [
        network.words(member, out / PREPARED, out / "members" / member.name, about, config)
        for member in planned
        if member.kind == "neural"
    ]
    folders.write_text(out / WORDS, "".join(f"{word}\n" for word in words[0]) if words else "")


def _grow_copies(trees: list[Planned], about: dict[str, Any], config: Any, num_threads: int, share: slice) -> None:
    """As many copies at once as there are threads; a single copy is the member itself, and is left to the next stage."""
    from ensemble.trees import single_copy
    from ensemble.trees.boosting import Stopped

    cv, members = CrossValidation.of(about), Path(config.out) / "members"
    num_copies = cv.num_folds if cv and cv.num_folds > 1 else 0
    is_whole = {member.name: (members / member.name / folders.NAME).is_file() for member in trees}
    mine = [(member, copy) for member in trees for copy in range(num_copies)][share]
    with StopSignals() as stop, ThreadPoolExecutor(num_threads) as pool:

        def grow(member: Planned, copy: int) -> None:
            _warned(single_copy.train_copy, whole.trees_config(member, config, 1), copy, lambda: stop.asked)

        tasks = [(member, pool.submit(grow, member, copy)) for member, copy in mine if not is_whole[member.name]]
        for member, task in tasks:
            try:
                task.result()
            except Stopped:
                raise Preempted(member.name) from None


def _warned(train: Any, *arguments: Any) -> None:
    """A member that its library cannot learn is left out with a warning, as in the fit."""
    from ensemble.trees.boosting import CannotLearn

    try:
        train(*arguments)
    except CannotLearn as error:
        print(f"warning: {error}", file=sys.stderr)


@contextmanager
def status_kept(folder: str) -> Iterator[None]:
    """Keep the file `status` in a folder for slurm/job.sh, as trainings do: running, preempted, failed or done."""
    file = Path(folder) / "status"

    def write(word: str) -> None:
        if folder:
            file.parent.mkdir(parents=True, exist_ok=True)
            folders.write_text(file, f"{word}\n")

    write("running")
    try:
        yield
    except Preempted:
        write("preempted")
        raise
    except BaseException:
        write("failed")
        raise
    write("done")
