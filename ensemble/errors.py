"""Errors of users, and the exit codes of scripts.

Everything that a user can cause (a wrong path, key, value or combination, a damaged file) is a `UserError` whose message is
one sentence: what is wrong, the value, what to do. Our own mistakes are assertions, with a traceback.

Exit codes of every script: 0 done, 1 failed (with a traceback, or with one sentence if no one can fix it; from doctor.py:
problems were found), 2 an error of the user (one sentence), 75 a training that was asked to stop and has saved its state,
129 a closed terminal (SIGHUP), 130 Ctrl-C, 141 a command whose output is not read any more, as after `| head`, 143 SIGTERM.
Under `accelerate launch` these are the codes of the workers. An error that is known to be the same on all ranks is printed
by rank 0, any other by the first rank of a node that raises it. Then the launcher exits with 1, after a traceback of its own
whose last line contains the sentence.
"""

import atexit
import errno
import gc
import io
import itertools
import os
import re
import select
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

FAILED = 1
USER_ERROR = 2
PREEMPTED = 75
HUNG_UP = 129
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143
RANK_0_PRINTS_S = 2.0
"""Seconds that the other ranks wait before they end, so that rank 0 can print an error that all ranks raise."""
is_command = False
"""Whether this process is one of the project's commands, and not a program of the user that imports the package."""


class Failure(RuntimeError):
    """A failure that no one can fix, such as a machine that died; only the message is printed."""


class UserError(ValueError):
    """An error that the user can fix; the message is one sentence with the value, the rule and the fix."""

    on_all_ranks = False
    """Whether every rank raises the same error; then only rank 0 prints it."""


class TooFewRows(UserError):
    """Data that have too few rows for the training of members. problem : the value and the rule, without the fix."""

    def __init__(self, problem: str, fix: str):
        super().__init__(f"{problem}: {fix}")
        self.problem = problem


def error_on_all_ranks(sentence: str) -> UserError:
    """An error that every rank raises with this message."""
    error = UserError(sentence)
    error.on_all_ranks = True
    return error


@contextmanager
def alike_on_all_ranks() -> Iterator[None]:
    """Mark a `UserError` that this block raises as the same on all ranks, such as that of a wrong setting."""
    try:
        yield
    except UserError as error:
        error.on_all_ranks = True
        raise


def in_a_line(error: BaseException) -> str:
    """The message of an exception on one line: a sentence of this project, or the class and at most 300 characters."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError | Failure) else f"{type(error).__name__}: {text[:300]}".removesuffix(": ")


def shortened(text: str, most: int = 100) -> str:
    """The text for a message; if it is longer than `most` characters, the first of them and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def listed(names: Collection[object], most: int = 5, separator: str = ", ") -> str:
    """The first names, at most `most`, and the number of the others, as in "a, b and 3 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(str(name) for name in itertools.islice(names, most)) + more


def visible(text: str) -> str:
    """The text for a message, with control characters as escapes such as \\x1a; tabs are unchanged."""
    return re.sub(r"[\x00-\x08\n-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)


def how_ended(code: int) -> str:
    """How a process ended, for a message. code : its `returncode` in `subprocess`, not 0."""
    if code >= 0:
        return f"ended with exit code {code}"
    reason = ", as the kernel does when memory is short" if -code == signal.SIGKILL else ""
    is_named = -code in set(signal.Signals)  # most real-time signals have no name
    return f"was ended by {signal.Signals(-code).name if is_named else f'signal {-code}'}{reason}"


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk or quota caused an error. Libraries raise own classes, but their messages contain the system's."""
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def full_temporary_disk() -> UserError:
    """The error for a full disk of temporary files."""
    import tempfile

    folder = tempfile.gettempdir()
    return UserError(f"the disk of temporary files, {folder}, is full: free some space, or set TMPDIR to another folder")


def no_temporary_folder(error: BaseException) -> str:
    """The sentence for the error of Python or Matplotlib if no folder for temporary files can be written, as in a container
    whose disk is read-only; empty for other errors."""
    if not re.match(r"\[Errno 2\] No usable temporary directory|Matplotlib requires access to a writable", str(error)):
        return ""
    return f"no folder for temporary files can be written ({error}): set TMPDIR to a folder that you may write"


def current_folder() -> str:
    """The path of the current folder. Raises `UserError` if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted: change to another one") from None


def refuse_unreadable(folder: str | os.PathLike[str]) -> None:
    """Raise `UserError` for a folder without permission to list it, in which a pattern matches nothing."""
    try:
        os.listdir(folder)
    except PermissionError:
        raise UserError(f"{folder} cannot be read (Permission denied): check its permissions") from None
    except (OSError, ValueError):
        pass  # there is no such folder


def run(main: Callable[[], None]) -> None:
    """Run a script's `main`, and exit with one of the codes in the module's docstring."""
    global is_command
    is_command = True
    # The libraries create 300,000 objects, none of which can be freed: with Python's default threshold of 700 objects, their
    # import takes a fifth longer
    gc.set_threshold(10_000, 10, 10)
    # A notebook sets it for the commands that it starts, and Matplotlib refuses it in an environment without that backend
    os.environ.pop("MPLBACKEND", None)
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal in Latin-1 has no arrow: a question mark instead of an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code, sentence = 0, ""
    try:
        if sys.platform == "win32":
            raise UserError("this command does not run on Windows itself: run it in WSL, see https://aka.ms/wsl")
        if sys.flags.optimize > 1:
            raise UserError("PYTHONOPTIMIZE=2 or python -OO removes docstrings, which --help and LightGBM need: set it to 1")
        _exit_by_an_exception()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the caller ignores it, the exit code of each process would be 0
        current_folder()
        main()
    except UserError as error:
        if not error.on_all_ranks or os.environ.get("RANK", "0") == "0":
            if not _is_printed(str(error)):
                _print(f"error: {error}")
        else:
            with suppress(SystemExit):  # the launcher stops rank 0 when another rank has ended
                time.sleep(RANK_0_PRINTS_S)
        code, sentence = USER_ERROR, str(error)
    except Failure as error:
        _print(f"failed: {error}")
        code = FAILED
    except Exception as error:
        if sentence := _sentence_of(error):
            _print(f"error: {sentence}")
            code = USER_ERROR
        elif isinstance(error, BrokenPipeError) and _is_output_unread():
            code = BROKEN_PIPE
        else:
            _print(traceback.format_exc().rstrip())
            code, sentence = FAILED, f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        _print("interrupted")
        code = INTERRUPTED
    except SystemExit as error:
        if isinstance(error.code, int | None):
            code = error.code or 0
        else:  # as from sys.exit("a sentence") or sys.exit(exception) in a recipe
            _print(str(error.code))
            code = FAILED
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # Windows has no SIGHUP
        signal.signal(number, signal.SIG_IGN)  # the process ends anyway
    if "torch" in sys.modules:
        atexit._run_exitfuncs()  # `os._exit` below runs none
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream and not stream.closed:
                stream.flush()
        except OSError as error:  # Python would print it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not isinstance(error, BrokenPipeError):
                fix = "free some space, or send it elsewhere"
                sentence = sentence or f"the output cannot be written ({error.strerror}): {fix}"
                _print(f"error: {sentence}")
                code = code or USER_ERROR
    if sentence:
        _write_launcher_error(sentence)
    if "torch" in sys.modules:
        # With Gloo's threads, both usual ways to exit fail sometimes. To destroy the process group, Python waits for these
        # threads while it holds its lock (GIL), for which they wait. Otherwise they can abort the ending interpreter
        os._exit(code)
    if code:
        sys.exit(code)


def open_missing_streams() -> None:
    """Open the standard streams that are closed, as after `2>&-`. Otherwise a file that the command opens would get the
    descriptor of such a stream, and what a library prints would be written into this file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def _exit_by_an_exception() -> None:
    """Let SIGTERM and SIGHUP end this process by an exception, so that half-written folders are deleted, as after Ctrl-C."""

    def leave(number: int, frame: object) -> None:
        discard_output_to_closed_terminal()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, leave)


def discard_output_to_closed_terminal() -> None:
    """Discard what is printed to a terminal that was closed, since each write to it would raise an OSError."""
    for number in (1, 2):
        try:
            os.write(number, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _print(text: str) -> None:
    """Print to standard error, whose disk may be full."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def _sentence_of(error: Exception) -> str:
    """The sentence for an exception of a library or of the system whose cause the user can remove; empty for others."""
    if is_disk_full(error):
        return f"the disk is full ({error}): free some space, or write elsewhere"
    if sentence := no_temporary_folder(error):
        return sentence
    if str(error) == "AF_UNIX path too long":  # with DataLoader workers, up to Python 3.13
        return f"the path of the folder for temporary files is too long for a socket ({error}): set TMPDIR to a shorter one"
    if os.strerror(errno.EFBIG) in str(error):
        return f"a file is larger than `ulimit -f` or its disk allows ({error}): raise the limit, or write elsewhere"
    is_memory = isinstance(error, MemoryError) or str(error).startswith(("array is too big", "Maximum allowed dimension"))
    if is_memory or str(error).endswith("failed to map segment from shared object"):  # the texts before are NumPy's
        return f"the memory does not suffice ({error or 'no message'}): use smaller settings or less data"
    if type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error):  # of PyTorch
        fix = "set a smaller micro_batch_size in training, or predict on a device with more memory"
        return f"the memory does not suffice ({shortened(str(error))}): {fix}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = shortened(str(error.filename or ""))
        return f"the name {name} is too long: a file's name may have 255 bytes, a path 4,095"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename:
        return f"{error.filename} is not accessible ({error.strerror}): check its permissions, or choose another path"
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of Path.resolve
        return f"a link leads to itself ({error}): choose another path"
    is_not_found = isinstance(error, FileNotFoundError) and not str(error).isascii()
    if (encoding := sys.getfilesystemencoding()) != "utf-8" and (is_not_found or isinstance(error, UnicodeEncodeError)):
        why = f"the encoding of this locale is {encoding}, and libraries read names of files as UTF-8"
        return f"a file cannot be opened ({error}), since {why}: set PYTHONUTF8=1"
    if isinstance(error, UnicodeEncodeError) and (word := re.search(r"[^\s\"]*[\udc80-\udcff][^\s\"]*", error.object)):
        name = shortened(word.group()).encode(errors="replace").decode()
        return f"the name {name} has bytes that are not UTF-8, shown as question marks: rename the file or the folder"
    return ""


def _is_output_unread() -> bool:
    """Whether standard output is a pipe or a socket whose reader has ended. macOS reports POLLHUP for both."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


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
    """Write the sentence to a file whose content torchelastic's launcher prints at the end of its traceback."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        import json

        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError), open(file, "w", encoding="utf-8") as stream:
            json.dump({"message": message}, stream)
