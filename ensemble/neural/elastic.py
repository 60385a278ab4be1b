"""Keep a training going when ranks are lost for good: start it again on fewer ranks, and on more when they come back.

scripts/train_elastic.py is the command. `supervise` starts `accelerate launch`, waits for it, and reads what the run wrote
to its file `status` (runs.py). A run that is lost goes on from its last checkpoint on the largest number of ranks that are
left and divide `batch_size`. The global batches stay the same, and so does the largest micro-batch: the number of
accumulation steps grows as the ranks shrink.

How many ranks can run is read from a file (`capacity`), which a monitor or a person writes. Without one, each loss counts as
one rank that does not come back.
"""

import ctypes
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ensemble import errors
from ensemble.errors import UserError

POLL_S = 0.2
ORPHANS_S = 60.0
"""What a rank may take to save after its launcher ended."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""prctl(2): the signal that a process gets when its parent dies; who becomes the parent of orphans."""
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A training, and the ranks that it is to have."""

    command: list[str]
    """scripts/train.py and its words, without --resume."""
    out: Path
    """The folder of the run."""
    yaml: Path
    """The accelerate configuration of one machine."""
    num_ranks: int
    """Ranks when none is lost."""
    batch_size: int
    """Examples in a global batch."""
    micro_batch_size: int
    """Examples in one forward pass at most; 0 for those of a rank when none is lost."""
    capacity: Path | None
    """The file with the number of ranks that can run; None to count a rank less after each loss."""
    max_losses: int
    """Losses in a row, without a checkpoint between them, after which the job ends."""


def ranks_for(batch_size: int, most: int) -> int:
    """The largest number of ranks up to `most`, at least 1, that divides `batch_size`."""
    return max(ranks for ranks in range(1, max(1, min(most, batch_size)) + 1) if batch_size % ranks == 0)


def micro_batch_for(batch_size: int, ranks: int, most: int) -> int:
    """The largest micro-batch up to `most`, at least 1, that divides a rank's share of the global batch."""
    share = batch_size // ranks
    return max(size for size in range(1, max(1, min(most, share)) + 1) if share % size == 0)


def supervise(job: Job, say: Callable[[str], None]) -> int:
    """Run the job to its end and return its exit code: 0 done, 1 failed, 75 asked to stop and saved."""
    most_per_rank = job.micro_batch_size or job.batch_size // job.num_ranks
    available, ranks, losses = job.num_ranks, 0, 0
    with _asked_to_stop() as asked:
        while True:
            available = _capacity(job, available)
            before, ranks = ranks, ranks_for(job.batch_size, available)
            micro = micro_batch_for(job.batch_size, ranks, most_per_rank)
            if before not in (0, ranks):
                say(f"goes on with {ranks} ranks instead of {before}: {_algebra(job, micro, ranks)}")
            saved = _newest(job.out)
            status, grows = _one_start(job, ranks, micro, asked)
            if status == "done":
                return 0
            if grows and status == "preempted" and not asked:
                losses = 0
                continue
            # A run that started before, and cannot start now, has lost a rank too
            is_lost = status in ("lost", "running") or (not status and before)
            if asked or not is_lost:
                return errors.PREEMPTED if status == "preempted" else errors.FAILED
            losses = 1 if _newest(job.out) > saved else losses + 1
            if losses > job.max_losses:
                say(f"lost {losses} times without a checkpoint in between: not started again")
                return errors.FAILED
            if job.capacity is None:
                available = max(1, ranks - 1)
            say(f"{_reason(job.out) or 'a process ended without a word'}: starts again")


def _one_start(job: Job, ranks: int, micro: int, asked: list[int]) -> tuple[str, bool]:
    """Launch once and wait until no rank is left.

    Returns the word that the run wrote to `status`, '' for none, and whether it was stopped to go on with more ranks.
    """
    launcher = str(Path(sys.executable).with_name("accelerate-launch"))
    options = ["--quiet", "--config_file", str(job.yaml), "--num_processes", str(ranks)]
    words = [*job.command, "--resume", "auto", f"micro_batch_size={micro}"]
    stamp, saved, grows, num_passed_on = _stamp(job.out), _newest(job.out), False, 0
    with subprocess.Popen([launcher, *options, *words], start_new_session=True, preexec_fn=_end_with_parent) as process:
        while process.poll() is None:
            newest = _newest(job.out)
            if job.capacity and not grows and newest > saved and ranks_for(job.batch_size, _capacity(job, ranks)) > ranks:
                grows = True
                process.terminate()
            saved = newest
            if len(asked) > num_passed_on:
                num_passed_on = len(asked)
                process.terminate()  # a launcher of several ranks passes it on; one rank gets it when its launcher ends
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    _wait_for_orphans()
    if process.returncode == 0:
        return "done", False
    return (_status(job.out)[0] if _stamp(job.out) != stamp else ""), grows


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Within it, the numbers of the signals that asked this process to stop; ranks whose launcher ended are its children."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: asked.append(number)) for number in STOP}
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield asked
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_orphans() -> None:
    """Ranks that their launcher left behind save their checkpoint first; those that hang are ended."""
    import psutil

    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=ORPHANS_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=ORPHANS_S)


def _end_with_parent() -> None:
    """A launcher that outlives this process would train on, and the next start beside it."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _capacity(job: Job, otherwise: int) -> int:
    """The ranks that can run, at most those of the job."""
    if job.capacity is None:
        return otherwise
    try:
        ranks = int(job.capacity.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return job.num_ranks
    except (OSError, ValueError):
        raise UserError(f"{job.capacity} holds no number of ranks: write one whole number into it") from None
    return max(1, min(ranks, job.num_ranks))


def _newest(out: Path) -> str:
    """The name of the newest checkpoint, '' for none; names sort by their step."""
    return max((path.name for path in (out / "checkpoints").glob("step-*")), default="")


def _status(out: Path) -> list[str]:
    """The lines of the run's file `status`."""
    try:
        return (out / "status").read_text(encoding="utf-8").splitlines() or [""]
    except OSError:
        return [""]


def _reason(out: Path) -> str:
    return " ".join(_status(out)[1:])


def _stamp(out: Path) -> tuple[int, int]:
    """Another one whenever the run writes its status, which is a new file each time."""
    try:
        about = (out / "status").stat()
    except OSError:
        return 0, 0
    return about.st_ino, about.st_mtime_ns


def _algebra(job: Job, micro: int, ranks: int) -> str:
    return f"{job.batch_size} = {micro} × {ranks} ranks × {job.batch_size // (micro * ranks)} accumulated"
