"""How a script ends: the documented exit code, and one line for an error that the user can fix."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ensemble import errors

SCRIPT = """
from ensemble import errors

def main():
    {}

errors.run(main)
"""


def run(body: str, before: str = "") -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", before + SCRIPT.format(body)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_imports_are_not_interrupted_by_full_collections() -> None:
    """The garbage collector would scan the objects of PyTorch several times while they are created."""
    body = "import gc; objects = [[] for _ in range(300_000)]; print(gc.get_stats()[2]['collections'])"
    assert run(body) == (0, "0\n", "")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("print('done')", (0, "done\n", "")),
        ("raise errors.UserError('x=3 is too much: choose 2')", (2, "", "error: x=3 is too much: choose 2\n")),
        (
            "open('x' * 300)",
            (2, "", f"error: the name {'x' * 100}… is too long: a file's name may have 255 bytes, a path 4,095\n"),
        ),
        (
            "raise MemoryError('Unable to allocate 9 TiB')",
            (2, "", "error: the memory does not suffice (Unable to allocate 9 TiB): use smaller settings or less data\n"),
        ),
        (
            "import numpy; numpy.empty(2**62)",
            (
                2,
                "",
                "error: the memory does not suffice (array is too big; `arr.size * arr.dtype.itemsize` is larger than the "
                "maximum possible size.): use smaller settings or less data\n",
            ),
        ),
        (
            'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")',
            (
                2,
                "",
                "error: the memory does not suffice (DefaultCPUAllocator: can't allocate memory): set a smaller "
                "micro_batch_size in training, or predict on a device with more memory\n",
            ),
        ),
        (
            "raise OSError(27, 'File too large')",
            (
                2,
                "",
                "error: a file is larger than `ulimit -f` or its disk allows ([Errno 27] File too large): raise the limit, "
                "or write elsewhere\n",
            ),
        ),
        *(  # the second one: to rename a folder of another user in a folder with the sticky bit, such as /tmp
            (
                f"raise PermissionError({number}, '{reason}', 'private/fit.json')",
                (
                    2,
                    "",
                    f"error: private/fit.json is not accessible ({reason}): check its permissions, or choose another path\n",
                ),
            )
            for number, reason in ((13, "Permission denied"), (1, "Operation not permitted"))
        ),
        (
            "raise FileNotFoundError(2, 'No usable temporary directory found in /tmp')",
            (
                2,
                "",
                "error: no folder for temporary files can be written ([Errno 2] No usable temporary directory found in "
                "/tmp): set TMPDIR to a folder that you may write\n",
            ),
        ),
        (
            "raise OSError('AF_UNIX path too long')",
            (
                2,
                "",
                "error: the path of the folder for temporary files is too long for a socket (AF_UNIX path too long): set "
                "TMPDIR to a shorter one\n",
            ),
        ),
        (
            "raise RuntimeError(\"Symlink loop from '/tmp/a'\")",
            (2, "", "error: a link leads to itself (Symlink loop from '/tmp/a'): choose another path\n"),
        ),
        (
            "'[\"my \\udce4pfel.csv\"]'.encode()",
            (
                2,
                "",
                "error: the name ?pfel.csv has bytes that are not UTF-8, shown as question marks: rename the file or the "
                "folder\n",
            ),
        ),
        (
            "raise ImportError('x.so: failed to map segment from shared object')",
            (
                2,
                "",
                "error: the memory does not suffice (x.so: failed to map segment from shared object): use smaller settings "
                "or less data\n",
            ),
        ),
        *(
            (f"import sys; {other}sys.stdout{closed}", (0, "", ""))
            for other in ("", "sys.modules['torch'] = sys; ")
            for closed in (".close()", " = None")
        ),
        ("raise KeyboardInterrupt", (130, "", "interrupted\n")),
        ("raise SystemExit(7)", (7, "", "")),
        ("raise SystemExit('no column x')", (1, "", "no column x\n")),
        ("raise SystemExit(ValueError('no column x'))", (1, "", "no column x\n")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", (143, "", "")),
        *(
            (
                f"raise RuntimeError('writing failed: {why}')",
                (2, "", f"error: the disk is full (writing failed: {why}): free some space, or write elsewhere\n"),
            )
            for why in ("No space left on device", "Disk quota exceeded")
        ),
    ],
)
def test_exit_codes(body: str, expected: tuple[int, str, str]) -> None:
    """A script or a Slurm job could not tell a user's mistake from a failure or from Ctrl-C."""
    assert run(body) == expected


@pytest.mark.parametrize(
    ("body", "code"), [("print('done')", 0), ("print('x', flush=True); print('not reached', file=sys.stderr)", 141)]
)
def test_output_that_is_not_read_gives_no_traceback(body: str, code: int) -> None:
    """`fit.py … | head` would end with a traceback, or with an error after all of its work."""
    statement = f"import sys; sys.stdin.read()\n{SCRIPT.format(body)}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", statement], env=environment, text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        assert (process.stderr.read(), process.wait()) == ("", code)


def test_a_socket_that_is_not_read_gives_no_traceback() -> None:
    """Under Node.js, or on macOS, where this is reported otherwise than for a pipe of Linux, there would be a traceback."""
    ours, output = socket.socketpair()
    ours.close()
    with output:
        command = [sys.executable, "-c", SCRIPT.format("print('x', flush=True)")]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize(
    ("redirection", "body", "expected"),
    [
        (">/dev/full", "print('done')", (2, "error: the output cannot be written (No space left on device): free some")),
        ("2>/dev/full", "raise errors.UserError('x=3')", (2, "")),
        ("2>/dev/full", "print('a line', file=__import__('sys').stderr)", (2, "")),
        ("2>/dev/full", "raise ValueError('ours')", (1, "")),
        ("<&- >&- 2>&-", "import sys; sys.stderr.isatty(); print('done'); sys.stdin.read()", (0, "")),
    ],
)
def test_output_that_cannot_be_written_gives_no_traceback(redirection: str, body: str, expected: tuple[int, str]) -> None:
    """With a full disk of logs a command would end with a traceback and an undocumented exit code, and with closed streams
    in the middle of its work."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", f'exec "$@" {redirection}', "_", sys.executable, "-c", SCRIPT.format(body)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[: len(expected[1]) or None]) == expected


def test_a_file_does_not_take_the_place_of_a_closed_stream() -> None:
    """After `2>&-` what a library prints would be written into the first file that a command opens."""
    body = "import subprocess, tempfile; assert tempfile.TemporaryFile().fileno() > 2; "
    body += "subprocess.check_call(['ls', '/dev/fd/2'])"
    command = ["bash", "-c", 'exec "$@" 2>&-', "_", sys.executable, "-c", SCRIPT.format(body)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_caller_may_ignore_the_end_of_its_children() -> None:
    """A fit would take a network that failed for a trained one: the exit code of each of its processes would be 0."""
    body = "import subprocess, sys; raise SystemExit(subprocess.call([sys.executable, '-c', 'raise SystemExit(7)']))"
    assert run(body, "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")[0] == 7


def test_python_without_docstrings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit would end with a traceback of LightGBM after the preparation, and --help would not describe the settings."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    code, _, shown = run("print('started')")
    assert (code, shown[:52]) == (2, "error: PYTHONOPTIMIZE=2 or python -OO removes docstr")


@pytest.mark.parametrize("error", ["FileNotFoundError(2, 'No such file', 'f\\u00fcr/x')", "'\\udcc3'.encode()"])
def test_a_locale_that_is_not_utf_8_is_named(error: str) -> None:
    """On a node whose locale is Latin-1 a folder with an umlaut would end a command in a traceback of Arrow."""
    code, _, shown = run(f"raise {error}", "import sys; sys.getfilesystemencoding = lambda: 'iso8859-1'\n")
    assert code == 2
    assert (
        "since the encoding of this locale is iso8859-1, and libraries read names of files as UTF-8: set PYTHONUTF8=1"
        in shown
    )


def test_windows_is_refused() -> None:
    """A command would end in a traceback about fcntl, resource or SIGUSR1, which Windows lacks."""
    code, _, shown = run("import fcntl", "import sys; sys.modules['fcntl'] = None; sys.platform = 'win32'\n")
    assert (code, shown[:61]) == (2, "error: this command does not run on Windows itself: run it in")


def test_a_terminal_without_a_character_shows_a_question_mark() -> None:
    """doctor.py would end in a UnicodeEncodeError on a node whose locale is Latin-1."""
    before = "import sys; sys.stdout.reconfigure(encoding='latin1')\n"
    assert run("print('a \u2192 b')", before) == (0, "a ? b\n", "")


@pytest.mark.parametrize("error", ["ValueError('ours')", "AssertionError", "OSError(5, 'Input/output error')"])
def test_our_own_mistakes_keep_their_traceback(error: str) -> None:
    """An error of the program would look like an error of the user, and its place would be unknown."""
    code, _, shown = run(f"raise {error}")
    assert code == 1
    assert shown.startswith("Traceback (most recent call last)")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise errors.UserError('x=3 is too much: choose 2')", "x=3 is too much: choose 2"),
        ("raise errors.error_on_all_ranks('x=3 is too much: choose 2')", "x=3 is too much: choose 2"),
        ("raise ValueError('ours')", "ValueError: ours"),
        ("raise errors.Failure('rank 1 died')", None),
        ("print('done')", None),
    ],
)
def test_the_launcher_gets_the_sentence(
    body: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the launcher's own traceback, the last lines would not contain the error."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    code, _, _ = run(body, "import os; os.environ['RANK'] = '1'")
    assert (tmp_path / "error.json").exists() == bool(message)
    if message:
        assert ProcessFailure(0, 1, code, str(tmp_path / "error.json")).message["message"] == message
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "none/error.json"))
    assert run(body)[0] == code


@pytest.mark.parametrize(("rank", "shown"), [("0", "error: x=nan: choose 2\n"), ("1", "")])
def test_an_error_that_is_alike_on_all_ranks_is_printed_once(rank: str, shown: str) -> None:
    """Eight ranks would print the same sentence eight times."""
    before = f"import os; os.environ['RANK'] = '{rank}'\n"
    before += "def fail():\n    with errors.alike_on_all_ranks(): raise errors.UserError('x=nan: choose 2')\n"
    code, _, printed = run("fail()", before)
    assert (code, printed) == (2, shown)


def test_a_sentence_of_several_ranks_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that nobody marked as alike on all ranks would print its sentence eight times, or hide another one."""
    printed = []
    for rank, sentence in enumerate(("no compiler", "no compiler", "no disk")):
        (tmp_path / str(rank)).mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / str(rank) / "error.json"))
        printed.append(run(f"raise errors.UserError('{sentence}')"))
    assert printed == [(2, "", "error: no compiler\n"), (2, "", ""), (2, "", "error: no disk\n")]


def test_a_deleted_current_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands would end in a traceback: with a relative path at once, report.py and fit.py also with absolute ones."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run("print('started')") == (
        2, "", "error: the current folder was deleted: change to another one\n"
    )  # fmt: skip


def test_a_killed_process_is_explained() -> None:
    """A fit that needs more memory than there is would end with "exit code -9"."""
    lines = ("kill -9 $$", "kill -15 $$", "kill -40 $$", "exit 3")  # 40: a real-time signal without a name
    codes = [subprocess.run(["sh", "-c", line], check=False).returncode for line in lines]
    assert [errors.how_ended(code) for code in codes] == [
        "was ended by SIGKILL, as the kernel does when memory is short",
        "was ended by SIGTERM",
        "was ended by signal 40",
        "ended with exit code 3",
    ]


def test_a_user_error_is_a_value_error() -> None:
    """A program that calls the package from Python could not catch it by its class."""
    assert issubclass(errors.UserError, ValueError)


def test_nothing_outlives_the_interpreter() -> None:
    """A thread of a process group that still needs the interpreter would abort the process, as in 8 of 32 finished runs."""
    late = "class Late:\n    def __del__(self): print('too late')\n"
    body = "import atexit, torch; global late; late = Late(); atexit.register(print, 'at exit'); print('done', end=' ')"
    assert run(body, late) == (0, "done at exit\n", "")
