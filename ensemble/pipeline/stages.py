"""Stages of a fit as tasks of a cluster. A fit with --resume auto afterwards uses their results.

    prepare    the folder, the prepared data, and the file network.words with the arguments that train the neural member
    copies     the copies of the tree members on the folds of a cross-validation, each on one core (trees/single_copy.py)
    members    the tree members, from their copies if there are any

Each task trains every `num_tasks`-th of the copies or members, so any number of tasks may be started. A task that was killed
is started again: it skips what is complete, and continues from the last checkpoint (only XGBoost, LightGBM and networks have
one).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ensemble import folders
from ensemble.data.cross_validation import CrossValidation
from ensemble.errors import UserError
from ensemble.pipeline import network
from ensemble.pipeline import run as pipeline
from ensemble.pipeline.plan import PREPARED, PlannedMember, Preempted
from ensemble.signals import StopSignals

ARGUMENTS = "network.words"
"""The file in the folder of the fit with the arguments of scripts/train.py, one per line; empty without a neural member."""


def run(stage: str, config: Any, name: str, task: int = 0, num_tasks: int = 1) -> None:
    """Run a stage of a fit of the recipe `name`, or the part of the stage that belongs to `task`.

    Raises `UserError` for a mistake of the user, and `Preempted`.
    """
    from ensemble.trees import threads

    if config.time_limit or getattr(config, "overwrite", False):
        raise UserError("--stage needs time_limit=0 and no overwrite=true: Slurm limits the time of tasks and restarts them")
    if not 0 <= task < num_tasks:
        raise UserError(f"--task {task} --num-tasks {num_tasks} is impossible: --task counts from 0 to --num-tasks minus 1")
    with ExitStack() as lock:
        is_first = stage == "prepare"
        manifest = pipeline.prepare(config, name, True, lock) if is_first else pipeline.prepared(config, name)
    num_threads = threads.configure(config.threads)
    planned = pipeline.chosen_members(manifest, config, num_threads)
    # Members of a follow-up are trained on predictions of the others, so the fit without --stage trains them
    trees = [member for member in planned if member.kind == "trees" and member.data == PREPARED]
    if stage == "prepare":
        out, words = Path(config.out), list[str]()
        if neural := next((member for member in planned if member.kind == "neural"), None):
            words = network.training_arguments(neural, out / PREPARED, out / "members" / neural.name, manifest, config)
        folders.write_text(out / ARGUMENTS, "".join(f"{word}\n" for word in words))
    elif stage == "copies":
        _train_copies(trees, manifest, config, num_threads, slice(task, None, num_tasks))
    else:
        for member in trees[task::num_tasks]:
            pipeline.try_to_train(pipeline.train_trees, member, config, num_threads)


def _train_copies(trees: list[PlannedMember], manifest: dict[str, Any], config: Any, num_threads: int, share: slice) -> None:
    """Train those of the copies that `share` selects, `num_threads` in parallel.

    Without several folds there are no copies, and the next stage trains the members.
    """
    from ensemble.trees import single_copy
    from ensemble.trees.boosting import Stopped

    cv, members = CrossValidation.from_manifest(manifest), Path(config.out) / "members"
    num_copies = cv.num_folds if cv and cv.num_folds > 1 else 0
    copies = [(member, copy) for member in trees for copy in range(num_copies)][share]
    copies = [(member, copy) for member, copy in copies if not (members / member.name / folders.NAME).is_file()]
    with StopSignals() as stop, ThreadPoolExecutor(num_threads) as pool:

        def train(member: PlannedMember, copy: int) -> None:
            pipeline.try_to_train(
                single_copy.train_copy, pipeline.trees_config(member, config, 1), copy, lambda: stop.received
            )

        futures = [(member, pool.submit(train, member, copy)) for member, copy in copies]
        for member, future in futures:
            try:
                future.result()
            except Stopped:
                raise Preempted(member.name) from None


@contextmanager
def status_kept(folder: str) -> Iterator[None]:
    """Write the file `status` in a folder for slurm/job.sh, as trainings do: running, preempted, failed or done. Without
    a folder ('') nothing is written."""
    if not folder:
        yield
        return
    file, word = Path(folder) / "status", "failed"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folders.write_text(file, "running\n")
    except OSError as error:
        raise UserError(f"--status {folder}: {file} cannot be written ({error.strerror}): name another folder") from None
    try:
        yield
        word = "done"
    except Preempted:
        word = "preempted"
        raise
    finally:
        folders.write_text(file, f"{word}\n")
