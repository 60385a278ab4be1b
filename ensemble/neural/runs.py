"""The folder of a run: made anew, or opened again to go on in.

    config.json  environment.json  status  train.log  val.log  metrics.jsonl  tensorboard/
    checkpoints/step-…/  best/  final/  summary.json  manifest.json

The manifest has the checksums of the JSON files of a run that is done; best/ and final/ have manifests of their own.

`status` tells schedulers and scripts what a launcher's exit code does not. Its first line is one word:

    running     or killed, when nothing runs
    preempted   asked to stop, and saved: --resume auto goes on
    lost        a rank or its machine died, fell silent or could not be reached; nothing is wrong with the run: --resume auto
                goes on from the last checkpoint
    failed      by any other error, which may well come again
    done

After lost and failed, the second line is the reason: a sentence with rank and host.
"""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ensemble import folders
from ensemble.errors import UserError, error_on_all_ranks
from ensemble.neural import checkpoint, environment, launch
from ensemble.neural.heartbeat import RankLost, in_a_line, is_lost_peer
from ensemble.neural.settings import FREE_TO_CHANGE

if TYPE_CHECKING:
    from accelerate import Accelerator

Status = Literal["running", "preempted", "lost", "failed", "done"]
FAILURE = ".failed"
"""The file with the reason of a rank that failed in this start, beside `status`: see `mark_lost`."""


def set_status(run: Path, status: Status, reason: str = "") -> None:
    folders.write_text(run / "status", "".join(f"{line}\n" for line in (status, reason) if line))


def seal(run: Path) -> None:
    """Write the checksums of what readers of a finished run take from it, beside the weights."""
    only = ("config.json", "environment.json", "metrics.jsonl", "summary.json")
    folders.write_manifest(run, {"kind": "run"}, only=only)


@contextmanager
def failure_marked(run: Path, accelerator: "Accelerator") -> Iterator[None]:
    """On whatever rank something is raised, the run is lost or has failed."""
    try:
        yield
    except BaseException as error:
        who = f"rank {accelerator.process_index} of {accelerator.num_processes} (host {socket.gethostname()})"
        if isinstance(error, RankLost):
            mark_lost(run, in_a_line(error))
        elif is_lost_peer(error):  # while the run starts
            mark_lost(run, f"{who}: {in_a_line(error)}")
        else:
            mark_failed(run, f"{who}: {in_a_line(error)}")
        raise


def mark_failed(run: Path, reason: str) -> None:
    with suppress(OSError):  # a full disk must not hide what was raised
        folders.write_text(run / FAILURE, reason)
        set_status(run, "failed", reason)


def mark_lost(run: Path, reason: str) -> None:
    """The run is lost, unless a rank failed: that one knows better than those who lost it, and any may write first."""
    with suppress(OSError):
        if (run / "status").read_text(encoding="utf-8") == "running\n":
            set_status(run, "lost", reason)
            # Who failed wrote the reason first, then the status: whatever was written in between, one of us sees it
            if (run / FAILURE).exists():
                set_status(run, "failed", (run / FAILURE).read_text(encoding="utf-8"))


def open_run(run: Path, about: dict[str, Any], accelerator: "Accelerator", resume: str, override: bool) -> Path | None:
    """The checkpoint to go on from, or None for a run that starts.

    `about` is what a checkpoint says of its run: recipe, fingerprint of the data, config. `resume`: '' starts in a folder
    that must not exist; 'last' needs a sound checkpoint in `run`; 'auto' takes the newest sound one, and starts when there
    is none; anything else is a checkpoint's folder, from which a new run branches off. `override` goes on with other
    learning settings than before, which is refused without it. All ranks must have the same data.
    """
    from accelerate.utils import gather_object

    fingerprints = gather_object([about["fingerprint"]])
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise error_on_all_ranks(
                f"the data of rank {rank} is not that of rank 0: give every node a copy of the same folder"
            )
    found, problem = None, None
    if accelerator.is_main_process:
        try:
            found = _open(run, json.loads(json.dumps(about)), resume, override)
        except UserError as error:
            problem = str(error)
        except OSError as error:
            problem = f"the folder {run} cannot be written: {error.strerror}"
    found, problem = launch.from_main_process(accelerator, (found, problem))
    if problem:
        raise error_on_all_ranks(problem)
    return found


def _open(run: Path, about: dict[str, Any], resume: str, override: bool) -> Path | None:
    found = None
    if resume in ("last", "auto") and (run / "config.json").exists():
        checkpoint.sweep(run)
        found = checkpoint.newest_sound(run, print)
    if resume == "last" and not found:
        delete = "delete it and " if run.exists() else ""
        raise UserError(f"there is no checkpoint to resume from in {run}: {delete}start without --resume")
    is_branch = resume not in ("", "last", "auto")
    if is_branch:
        found = Path(resume)
        folders.verify(found)
    is_free = not any(run.glob("[!.]*"))  # not there, or empty
    begun_before = resume == "auto" and (run / "config.json").exists()
    if resume != "last" and not begun_before and not is_free:
        has_checkpoint = any((run / "checkpoints").glob("step-*"))
        mend = "add --resume last to go on from its last checkpoint" if has_checkpoint else "delete it"
        raise UserError(f"{run} exists already: choose another out=…, or {mend}")
    its = folders.read_json(found / "state.json") if found else {}
    if found:
        _refuse_foreign(found, its, about, override)
    folders.refuse_inside(run)
    run.mkdir(parents=True, exist_ok=True)
    (run / folders.NAME).unlink(missing_ok=True)  # until the run is done again
    if found and is_branch:  # so that --resume auto finds it in the new run
        found = Path(shutil.copytree(found, checkpoint.of_step(run, its["progress"]["step"])))
    folders.write_json(run / "config.json", about["config"])
    folders.write_json(run / "environment.json", environment.report())
    (run / FAILURE).unlink(missing_ok=True)
    set_status(run, "running")
    return found


def _refuse_foreign(found: Path, its: dict[str, Any], about: dict[str, Any], override: bool) -> None:
    if "progress" not in its:
        raise UserError(f"{found} holds weights only: go on from one of {found.parent / 'checkpoints'}")
    if its["recipe"] != about["recipe"]:
        raise UserError(f"{found} is of the recipe {its['recipe']}: give --recipe {its['recipe']}")
    if its["fingerprint"] != about["fingerprint"]:
        raise UserError(f"{found} was trained on other prepared data: give the data that it was started with")
    before, now = ({**settings, **_prefixed(settings)} for settings in (its["config"], about["config"]))
    changed = [
        f"{name}={before.get(name, 'not there')} (now {now.get(name, 'not there')})"
        for name in [*now, *(before.keys() - now.keys())]
        if before.get(name) != now.get(name) and name not in ("recipe", *FREE_TO_CHANGE)
    ]
    if changed and not override:
        raise UserError(
            f"{found} was written with {', '.join(changed)}: give it those again, or add --resume-override to go on with "
            "the new ones"
        )


def _prefixed(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"recipe.{name}": value for name, value in settings.get("recipe", {}).items()}
