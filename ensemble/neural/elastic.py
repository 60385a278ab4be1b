"""Continue a training after a permanent loss of ranks: restart it on fewer ranks, and on more ranks when they return.

scripts/train_elastic.py is the command. `supervise` starts `accelerate launch` (by launcher.py), waits for it, and reads the
file `status` of the run (runs.py). A lost run continues from its last checkpoint. The number of ranks is then the largest
divisor of `batch_size` that is at most the number of available ranks. The global batches stay the same, and micro-batches do
not become larger: with fewer ranks there are more accumulation steps.

A monitor or a person may write the number of available ranks to a file (`Job.capacity`). If a job names no such file, each
loss counts as one rank that does not return.
"""

import ctypes
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ensemble import configuration, errors, folders
from ensemble.errors import UserError
from ensemble.neural.division import divisors
from ensemble.neural.settings import TrainConfig
from ensemble.signals import STOP, end_with_parent

POLL_S = 0.2
ORPHANS_S = 60.0
"""The time in which a rank whose launcher has ended may save a checkpoint, before the rank is killed."""
PR_SET_CHILD_SUBREAPER = 36
"""The option of prctl(2) that makes a process the parent of each descendant whose own parent ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A training and the ranks on which it runs."""

    command: list[str]
    """scripts/train.py and its arguments, without --resume."""
    settings: TrainConfig
    """The settings in these arguments. `micro_batch_size` is the largest one allowed; 0 for batch_size / num_ranks."""
    yaml: Path
    """The accelerate configuration of one machine."""
    num_ranks: int
    """The number of ranks if none is lost."""
    capacity: Path | None
    """The file with the number of available ranks; None: after each loss, one rank fewer is available than ran before it."""
    max_losses: int
    """The largest number of losses without a new checkpoint between them; after one more the job is not started again."""


def hardware_of(yaml: Path | str) -> dict[str, Any]:
    """The content of the accelerate configuration of one machine. Raises `UserError` for one of several machines, on which a
    launcher would wait for the others, and for a number in quotes."""
    hardware = configuration.read_accelerate_yaml(yaml)
    for name in ("num_processes", "num_machines"):
        if not isinstance(hardware.get(name, 1), int):
            raise UserError(f"{yaml}: {name}={hardware[name]!r} is not a whole number: write one without quotes")
    if (machines := hardware.get("num_machines", 1)) != 1:
        fix = "under Slurm, slurm/train_multi_node.slurm starts several, and requeues a job that lost a node"
        raise UserError(f"{yaml} is for {machines} machines: this command supports one; {fix}")
    return hardware


def supervise(job: Job, report: Callable[[str], None]) -> int:
    """Run the job to its end, and return one of the exit codes in errors.py."""
    out, batch_size = Path(job.settings.out), job.settings.batch_size
    largest_micro_batch = job.settings.micro_batch_size or batch_size // job.num_ranks
    available, ranks, losses = job.num_ranks, 0, 0
    with _signals_to_stop() as signals:
        while True:
            try:
                available = _capacity(job, available)
            except UserError as error:
                if not ranks:
                    raise
                report(f"{error}; until then the number of ranks does not change")
            previous_ranks, ranks = ranks, divisors(batch_size, available)[-1]
            micro = divisors(batch_size // ranks, largest_micro_batch)[-1]
            if previous_ranks not in (0, ranks):
                batch = f"{batch_size} = {micro} × {ranks} ranks × {batch_size // (micro * ranks)} accumulated"
                report(f"continues with {ranks} ranks instead of {previous_ranks}: {batch}")
            checkpoint_before = newest_checkpoint(out)
            status, grows = run_once(job, ranks, micro, signals)
            if status == "done":
                return 0
            if grows and status == "preempted" and not signals:
                losses = 0
                continue
            # A restart that ends before the training starts, even with an error of the user, counts as a loss: the first
            # launch had the same arguments, and its training started
            never_started = status in ("", "mistake") and _status(out)[0] != "failed"
            is_lost = status in ("lost", "running") or (never_started and previous_ranks)
            if status == "mistake" and not is_lost:
                return errors.USER_ERROR
            if signals or not is_lost:
                return errors.PREEMPTED if status == "preempted" else errors.FAILED
            losses = 1 if newest_checkpoint(out) > checkpoint_before else losses + 1
            if losses > job.max_losses:
                report(f"lost {losses} times without a checkpoint in between: not started again")
                return errors.FAILED
            if job.capacity is None:
                available = max(1, ranks - 1)
            written = _status(out)[1:] if status == "lost" else []  # otherwise the file may be that of an earlier launch
            reason = " ".join(written) or "a process ended and left no reason in the file status"
            report(f"{reason}: starts again")


def run_once(job: Job, ranks: int, micro: int, signals: list[int]) -> tuple[str, bool]:
    """Launch the training and wait until all ranks have ended.

    Returns the status, and whether the run was stopped to continue with more ranks. The status is `done`, `mistake` for an
    error of the user, the word that the run wrote to its file `status`, or '' if it wrote none.
    """
    launcher = [sys.executable, "-P", "-m", "ensemble.neural.launcher", "--quiet"]
    hardware = ["--config_file", str(job.yaml), "--num_processes", str(ranks)]
    command = [*launcher, *hardware, *job.command, "--resume", "auto", f"micro_batch_size={micro}"]
    out = Path(job.settings.out)
    status_before, saved, grows, num_forwarded = status_stamp(out), newest_checkpoint(out), False, 0
    # end_with_parent: a launcher that outlived this process would train at the same time as the next launcher
    with subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent) as process:
        while process.poll() is None:
            newest = newest_checkpoint(out)
            if job.capacity and not grows and newest > saved:
                with suppress(UserError):  # it is read again after the next checkpoint
                    grows = divisors(job.settings.batch_size, _capacity(job, ranks))[-1] > ranks
                if grows:
                    process.terminate()
            saved = newest
            if len(signals) > num_forwarded:
                num_forwarded = len(signals)
                process.terminate()  # a launcher of several ranks forwards SIGTERM; one rank gets it when its launcher ends
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    _wait_for_orphans()
    if process.returncode in (0, errors.USER_ERROR):
        return ("mistake" if process.returncode else "done"), False
    return (_status(out)[0] if status_stamp(out) != status_before else ""), grows


@contextmanager
def _signals_to_stop() -> Iterator[list[int]]:
    """A context that appends the signals of `STOP` to a list. In it this process becomes the parent of orphaned ranks."""
    signals: list[int] = []

    def receive(number: int, frame: object) -> None:
        errors.discard_output_to_closed_terminal()
        signals.append(number)

    before = {number: signal.signal(number, receive) for number in STOP}
    _adopt_orphans(True)
    try:
        yield signals
    finally:
        _adopt_orphans(False)
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_orphans() -> None:
    """Wait until the ranks whose launcher has ended have ended too. Kill those that still run after `ORPHANS_S`."""
    import psutil

    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=ORPHANS_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=ORPHANS_S)


def _adopt_orphans(enabled: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def _capacity(job: Job, default: int) -> int:
    """The available ranks, from 1 to `num_ranks`: all if the file `job.capacity` is missing; `default` if it is empty, or if
    `job.capacity` is None."""
    if job.capacity is None:
        return default
    try:
        # It may be empty: `command > FILE` empties FILE before it writes
        ranks = int(job.capacity.read_text(encoding="utf-8").strip() or default)
    except FileNotFoundError:
        return job.num_ranks
    except (OSError, ValueError):
        raise UserError(f"{job.capacity} holds no number of ranks: write one whole number into it") from None
    return max(1, min(ranks, job.num_ranks))


def newest_checkpoint(out: Path) -> str:
    """The newest checkpoint as a string that grows with each one; '' for none. It begins with 0 for the run, 1 or 2 for its
    refit."""
    parts = enumerate((out, out / folders.TRIAL, out / folders.NEWEST))
    names = (f"{number} {path.name:>30}" for number, part in parts for path in folders.checkpoints(part))
    return max(names, default="")


def _status(out: Path) -> list[str]:
    """The lines of the run's file `status`: a word, and the reason if there is one."""
    try:
        return (out / "status").read_text(encoding="utf-8").splitlines() or [""]
    except OSError:
        return [""]


def status_stamp(out: Path) -> tuple[int, int]:
    """Inode and modification time of a run's file `status`, which each write replaces by a new file; (0, 0) if missing."""
    try:
        status = (out / "status").stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns
