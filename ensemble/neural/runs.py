"""The folder of a run: create it, or open it to resume.

    config.json  environment.json  status  train.log  val.log  metrics.jsonl  tensorboard/
    checkpoints/step-…/  best/  final/  trial/  newest/  summary.json  manifest.json

The manifest has the checksums of the JSON files of a finished run; best/ and final/ have manifests of their own.
trial/ and newest/ are the parts of a refit (refit.py). Some runs also have nonfinite/ (guards.py), profile/ (profiling.py),
curves.txt (tracking.py), and the last collectives before a failure (launch.py).

The file `status` is for schedulers and scripts, which cannot use the exit code of a launcher. Its first line is one word:

    running     in progress; or killed, if no process runs
    preempted   stopped by a signal, with a checkpoint: continue with --resume auto
    lost        a rank or its machine died, hung or became unreachable; the run itself has no error: continue from the last
                checkpoint with --resume auto
    failed      any other error, which may occur again
    done

After lost and failed, the second line is the reason: a sentence with rank and host.
"""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ensemble import folders
from ensemble.errors import UserError, error_on_all_ranks, in_a_line
from ensemble.neural import checkpoint, environment, launch
from ensemble.neural.accelerator import Accelerator
from ensemble.neural.heartbeat import RankLost, is_communication_error
from ensemble.neural.settings import FREE_TO_CHANGE

Status = Literal["running", "preempted", "lost", "failed", "done"]
FAILURE = ".failed"
"""The name of a file beside `status` with the reason of the rank that failed; the next start deletes it. See `mark_lost`."""


def set_status(run: Path, status: Status, reason: str = "") -> None:
    """Write the file `status` of a run; for a part of a refit, the file of the run to which it belongs."""
    folders.write_text(_root(run) / "status", "".join(f"{line}\n" for line in (status, reason) if line))


def end(run: Path, status: Status) -> None:
    """Set the status and, if the run is done, write the checksums of the JSON files that readers of a finished run use.

    A part of a refit has no status of its own. If it is done, the status of the run does not change; otherwise it is set.
    """
    if status != "done" or _root(run) == run:
        set_status(run, status)
    if status == "done":
        only = ("config.json", "environment.json", "metrics.jsonl", "summary.json")
        folders.write_manifest(run, {"kind": "run"}, only=only)


def _root(run: Path) -> Path:
    """The folder of the whole run, if `run` is a part of its refit, which starts from best/; otherwise `run` itself."""
    is_part = run.name in (folders.TRIAL, folders.NEWEST) and (run.parent / "best" / "state.json").is_file()
    return run.parent if is_part else run


@contextmanager
def status_on_error(run: Path, accelerator: Accelerator) -> Iterator[None]:
    """Set the status to lost or failed if this rank raises an exception inside the context."""
    try:
        yield
    except BaseException as error:
        rank = f"rank {accelerator.process_index} of {accelerator.num_processes} (host {socket.gethostname()})"
        reason = f"{rank}: {in_a_line(error)}"
        if isinstance(error, RankLost):
            mark_lost(run, in_a_line(error))
        elif is_communication_error(error):  # before the heartbeat started
            mark_lost(run, reason)
        else:
            with suppress(OSError):  # a full disk must not hide the exception
                folders.write_text(_root(run) / FAILURE, reason)
                set_status(run, "failed", reason)
        raise


def mark_lost(run: Path, reason: str) -> None:
    """Set the status to lost, unless a rank failed: its error is the cause, whichever rank writes first."""
    with suppress(OSError):
        root = _root(run)
        if (root / "status").read_text(encoding="utf-8") == "running\n":
            set_status(root, "lost", reason)
            # A rank that fails writes the reason before the status: it overwrites this status, or its reason is seen here
            if (root / FAILURE).exists():
                set_status(root, "failed", (root / FAILURE).read_text(encoding="utf-8"))


def open_run(
    run: Path, description: dict[str, Any], accelerator: Accelerator, resume: str, override: bool, stack: ExitStack
) -> Path | None:
    """Create or open the folder of a run; returns the checkpoint to resume from, or None for a new run.

    `description` has the recipe, fingerprint of the data and config that checkpoints store. `resume`: '' starts a run in a
    folder that must be absent or empty; 'last' needs an intact checkpoint in `run`; 'auto' uses the newest intact
    checkpoint, or starts a run if there is none; any other value is the folder of a checkpoint from which a new run starts.
    `override` allows settings that differ from the checkpoint's, besides those of `FREE_TO_CHANGE`. All ranks must have the
    same data. Until `stack` is closed, no other command may train in the folder.
    """
    from accelerate.utils import gather_object

    fingerprints = gather_object([description["fingerprint"]])
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise error_on_all_ranks(
                f"the data of rank {rank} differ from those of rank 0: give every node a copy of the same folder"
            )
    resume_from, problem = None, None
    if accelerator.is_main_process:
        try:
            resume_from = _open(run, json.loads(json.dumps(description)), resume, override, stack)
        except UserError as error:
            problem = str(error)
        except OSError as error:
            problem = f"the folder {run} cannot be written: {error.strerror}"
    resume_from, problem = launch.from_main_process((resume_from, problem))
    if problem:
        raise error_on_all_ranks(problem)
    return resume_from


def _open(run: Path, description: dict[str, Any], resume: str, override: bool, stack: ExitStack) -> Path | None:
    """The part of `open_run` for the main process: find the checkpoint, check it, and write the files of the folder."""
    resume_from, is_in_place = None, resume in ("", "last", "auto")
    wait_s = min(folders.LOCK_WAIT_S, description["config"]["timeout_s"] / 2)  # meanwhile the other ranks wait for this one
    # A copy of the checkpoints alone is continued only on request
    started_before = (resume in ("last", "auto") and _is_run(run)) or (resume == "last" and bool(folders.checkpoints(run)))
    if started_before:
        stack.enter_context(folders.locked(run, "training in", wait_s))
        checkpoint.clean_up(run)
        resume_from = checkpoint.newest_intact(run, print)
    elif not is_in_place:
        resume_from = Path(resume)
        if (resume_from / "checkpoints").is_dir():
            raise UserError(f"{resume} is the folder of a run: name a checkpoint in {resume_from / 'checkpoints'}")
        folders.verify(resume_from)
    if started_before and not resume_from and (run / folders.NAME).exists():
        fix = "choose another out=…, or delete it to train again"
        raise UserError(f"{run} is complete, and has no checkpoint to continue from: {fix}")
    if resume == "last" and not resume_from:
        delete = "delete it and " if run.exists() else ""
        raise UserError(f"there is no checkpoint to resume from in {run}: {delete}start without --resume")
    saved = folders.read_json(resume_from / "state.json") if resume_from else {}
    if resume_from:
        _check_resumable(resume_from, saved, description, override)
    # Not the settings in the newest checkpoint, which may be older than an override
    has_trial = started_before and (run / folders.TRIAL).exists()
    if has_trial and _changed(folders.read_json(run / "config.json"), description["config"]):
        raise UserError(
            f"{run / folders.TRIAL} was trained from the weights of other settings: choose another out=… instead of "
            "--resume-override"
        )
    folders.refuse_inside(run)
    run.resolve().mkdir(parents=True, exist_ok=True)  # it may be a link to a folder that does not exist yet
    if not started_before:
        stack.enter_context(folders.locked(run, "training in", wait_s if resume == "auto" else 0.0))
        if any(run.glob("[!.]*")):  # only now, since another command may have trained here until it released the lock
            has_checkpoint = bool(folders.checkpoints(run))
            fix = "add --resume last to continue from its last checkpoint" if has_checkpoint else "delete it"
            raise UserError(f"{run} exists already: choose another out=…, or {fix}")
    for weights in (run / "best", run / "final") if started_before else ():
        if not resume_from:  # those of the start that is repeated, maybe with other settings
            folders.discard(weights)
        elif weights.exists():
            checkpoint.is_intact(weights, print)  # new weights do not replace a damaged folder
    (run / folders.NAME).unlink(missing_ok=True)  # written again when the run is done
    if resume_from and not is_in_place:  # so that --resume auto finds it in the new run
        copy = checkpoint.step_folder(run, saved["progress"]["step"])
        with folders.new_folder(copy, False, "checkpoint") as scratch:  # without the permissions of a read-only folder
            for file in filter(Path.is_file, resume_from.iterdir()):
                shutil.copyfile(file, scratch / file.name)
        resume_from = copy
    folders.write_json(run / "config.json", description["config"])
    folders.write_json(run / "environment.json", environment.report())
    with suppress(UserError):  # a run that has not ended before has none
        summary = folders.read_json(run / "summary.json")
        folders.write_json(run / "summary.json", {**summary, "status": "running"})
    (_root(run) / FAILURE).unlink(missing_ok=True)
    set_status(run, "running")
    return resume_from


def _is_run(folder: Path) -> bool:
    """Whether a training wrote the config.json of a folder: tree members and models of Hugging Face have one too."""
    if not (folder / "config.json").exists():
        return False
    content: Any = None
    with suppress(UserError):  # damaged
        content = folders.read_json(folder / "config.json")
    return bool(folders.checkpoints(folder)) or (isinstance(content, dict) and {"out", "max_epochs"} <= content.keys())


def _check_resumable(folder: Path, saved: dict[str, Any], description: dict[str, Any], override: bool) -> None:
    """Raise `UserError` if a checkpoint with the description `saved` is not one of this training."""
    if "progress" not in saved:
        raise UserError(f"{folder} holds weights only: resume from a folder in {folder.parent / 'checkpoints'}")
    if saved["recipe"] != description["recipe"]:
        raise UserError(f"{folder} is of the recipe {saved['recipe']}: give --recipe {saved['recipe']}")
    if saved["fingerprint"] != description["fingerprint"]:
        raise UserError(f"{folder} was trained on other prepared data: give the data of that training")
    before, now = saved["config"], description["config"]
    changed = _changed(before, now)
    if before.get("batch_size") != now.get("batch_size"):
        raise UserError(
            f"{folder} was written with batch_size={before.get('batch_size')} (now {now.get('batch_size')}), and its steps "
            "are counted in such batches: give the previous value"
        )
    if changed and not override:
        raise UserError(
            f"{folder} was written with {', '.join(changed)}: give the previous values, or add --resume-override to use the "
            "new ones"
        )


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings that differ and that are not `FREE_TO_CHANGE`, each with both values."""
    before, now = (
        {**config, **{f"recipe.{name}": value for name, value in config.get("recipe", {}).items()}}
        for config in (before, now)
    )
    return [
        f"{name}={before.get(name, 'missing')} (now {now.get(name, 'missing')})"
        for name in [*now, *(before.keys() - now.keys())]
        if before.get(name) != now.get(name) and name not in ("recipe", *FREE_TO_CHANGE)
    ]
