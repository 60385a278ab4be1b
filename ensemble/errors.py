"""Errors of users, and the exit codes of scripts.

Everything that a user can cause (a wrong path, key, value or combination, a damaged file) is a `UserError` whose message is
one sentence: what is wrong, the value, what to do. Our own mistakes are assertions, with a traceback.

Exit codes of every script: 0 done, 1 failed (with a traceback, or with one sentence if no one can fix it), 2 an error of the
user (one sentence), 75 a training that was asked to stop and has saved its state, 130 Ctrl-C, 141 a command whose output is
not read any more, as after `| head`, 143 SIGTERM. Under `accelerate launch` these are the codes of the workers. Rank 0
prints an error that is known to be the same on all ranks. The first rank of a node that raises any other error prints it.
Then the launcher exits with 1, after a traceback of its own whose last line contains the sentence.
"""

import atexit
import errno
import io
import os
import select
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FAILED = 1
USER_ERROR = 2
PREEMPTED = 75
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143
RANK_0_PRINTS_S = 2.0
"""Seconds in which rank 0 prints an error that all ranks raise, before another rank ends."""
is_command = False
"""Whether this process is one of the project's commands, and not a program of the user that imports the package."""


class Failure(RuntimeError):
    """A failure that no one can fix, such as a machine that died; only the message is printed."""


class UserError(ValueError):
    """An error that the user can fix; the message is one sentence with the value, the rule and the fix."""

    on_all_ranks = False
    """Whether every rank raises the same error; then only rank 0 prints it."""


class TooFewRows(UserError):
    """Data that have too few rows for the training of members. what : the value and the rule, without the fix."""

    def __init__(self, what: str, fix: str):
        super().__init__(f"{what}: {fix}")
        self.what = what


def error_on_all_ranks(sentence: str) -> UserError:
    """An error that every rank raises with this message."""
    error = UserError(sentence)
    error.on_all_ranks = True
    return error


@contextmanager
def alike_on_all_ranks() -> Iterator[None]:
    """Mark a `UserError` of this block as equal on all ranks, such as that of a wrong setting."""
    try:
        yield
    except UserError as error:
        error.on_all_ranks = True
        raise


def in_a_line(error: BaseException) -> str:
    """The class and at most 300 characters of the message of an exception, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


def shortened(text: str, most: int = 100) -> str:
    """At most `most` characters of a text, for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def is_disk_full(error: BaseException) -> bool:
    """Whether a disk or a quota is full. Each library raises its own class, but all messages contain that of the system."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def full_temporary_disk() -> UserError:
    """The error for a full disk of temporary files."""
    import tempfile

    folder = tempfile.gettempdir()
    return UserError(f"the disk of temporary files, {folder}, is full: free some space, or set TMPDIR to another folder")


def run(main: Callable[[], None]) -> None:
    """Run a script's `main`, and exit with one of the codes in the module's docstring."""
    global is_command
    is_command = True
    # Exit by an exception, so that half-written folders are deleted, as after Ctrl-C
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    for stream in (sys.stdout, sys.stderr):  # a terminal in Latin-1 has no arrow: a question mark instead of an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code, sentence = 0, ""
    try:
        try:
            os.getcwd()
        except FileNotFoundError:
            raise UserError("the current folder was deleted: change to another one") from None
        main()
    except UserError as error:
        if not error.on_all_ranks or os.environ.get("RANK", "0") == "0":
            if not _is_printed(str(error)):
                print(f"error: {error}", file=sys.stderr)
        else:
            with suppress(SystemExit):  # the launcher stops rank 0 when another rank has ended
                time.sleep(RANK_0_PRINTS_S)
        code, sentence = USER_ERROR, str(error)
    except Failure as error:
        print(f"failed: {error}", file=sys.stderr)
        code = FAILED
    except Exception as error:
        if is_disk_full(error):
            sentence = f"the disk is full ({error}): free some space, or write elsewhere"
        elif os.strerror(errno.EFBIG) in str(error):
            sentence = f"a file is larger than `ulimit -f` or its disk allows ({error}): raise the limit, or write elsewhere"
        elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = shortened(str(error.filename or ""))
            sentence = f"the name {name} is too long: a file's name may have 255 bytes, a path 4,095"
        elif isinstance(error, MemoryError):
            sentence = f"the memory does not suffice ({error or 'no message'}): use smaller settings or less data"
        if sentence:
            print(f"error: {sentence}", file=sys.stderr)
            code = USER_ERROR
        elif isinstance(error, BrokenPipeError) and _is_output_unread():
            code = BROKEN_PIPE
        else:
            traceback.print_exc()
            code, sentence = FAILED, f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except SystemExit as error:
        code = int(error.code or 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process ends anyway
    try:
        if sys.stdout and not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:  # Python would print it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if sentence:
        _write_launcher_error(sentence)
    if "torch" in sys.modules:
        # With Gloo's threads, both usual ways to exit sometimes fail. Destroying the process group waits for the threads
        # while it holds Python's lock, for which they wait. Otherwise they abort the interpreter if they outlive it
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _is_output_unread() -> bool:
    """Whether standard output is a pipe whose reader has ended."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_printed(sentence: str) -> bool:
    """Whether another rank on this node has printed the sentence; if not, an empty file records that this rank prints it."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        return False
    mark = f"printed-{zlib.crc32(sentence.encode()):08x}"
    try:
        os.close(os.open(os.path.join(os.path.dirname(os.path.dirname(file)), mark), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    except OSError:
        pass
    return False


def _write_launcher_error(sentence: str) -> None:
    """Write the sentence to the file that torchelastic's launcher prints at the end of its traceback."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        import json

        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError), open(file, "w", encoding="utf-8") as stream:
            json.dump({"message": message}, stream)
