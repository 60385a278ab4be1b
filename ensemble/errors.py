"""What a user can get wrong, and how a script says so.

Everything that a user can cause (a wrong path, key, value or combination, a damaged file) is a `UserError` whose
message is one sentence: what was wrong, the value, what to do. Our own mistakes are assertions and keep their traceback.

Exit codes of every script: 0 done, 1 failed (a traceback follows, or one sentence where nobody can mend it), 2 the
user's mistake (one sentence), 75 a training that was asked to stop and saved all it had, 130 Ctrl-C, 143 SIGTERM. Under
`accelerate launch` these are the workers' codes. A sentence that all of them raise alike comes from rank 0, any other from
each that raises it; the launcher itself then leaves with 1, after a traceback of its own whose last line has the sentence.
"""

import atexit
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

FAILED = 1
USER_ERROR = 2
PREEMPTED = 75
INTERRUPTED = 130
TERMINATED = 143


class Failure(RuntimeError):
    """Nobody's mistake, such as a machine that died; the message says all there is to say."""


class UserError(ValueError):
    """A mistake that the person at the keyboard can mend; the message says how."""

    on_all_ranks = False
    """Whether every rank raises it alike; then rank 0 prints it for all of them."""


def error_on_all_ranks(sentence: str) -> UserError:
    """An error that every rank raises with this sentence."""
    error = UserError(sentence)
    error.on_all_ranks = True
    return error


def run(main: Callable[[], None]) -> None:
    """Run a script's `main` and leave with the exit code that the module's docstring documents."""
    signal.signal(signal.SIGTERM, _leave)  # so that half-written folders are cleared away, as after Ctrl-C
    code, sentence = 0, ""
    try:
        main()
    except UserError as error:
        if not error.on_all_ranks or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        code, sentence = USER_ERROR, str(error)
    except Failure as error:
        print(f"failed: {error}", file=sys.stderr)
        code = FAILED
    except Exception as error:
        # Each library has its own class for it, but they all quote the operating system
        if os.strerror(errno.ENOSPC) in str(error):
            sentence = f"there is no room left on the disk ({error}): free some, or write elsewhere"
            print(f"error: {sentence}", file=sys.stderr)
            code = USER_ERROR
        elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            shown = str(error.filename or "")
            shown = shown if len(shown) <= 100 else f"{shown[:100]}…"
            sentence = f"the name {shown} is too long: a file's name may have 255 bytes, a path 4,095"
            print(f"error: {sentence}", file=sys.stderr)
            code = USER_ERROR
        else:
            traceback.print_exc()
            code, sentence = FAILED, f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except SystemExit as error:
        code = int(error.code or 0)
    if sentence:
        _tell_launcher(sentence)
    if "torch" in sys.modules:
        # Neither by destroying a process group nor through the interpreter's end: now and then, Gloo's threads hang the
        # former, which waits for them and holds the lock they wait for, and abort the latter, which they outlive
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if code:
        sys.exit(code)


def _tell_launcher(sentence: str) -> None:
    """Write the sentence to the file whose content torchelastic's launcher shows at the end of its traceback."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        import json

        message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError), open(file, "w", encoding="utf-8") as stream:
            json.dump({"message": message}, stream)


def _leave(number: int, frame: object) -> None:
    sys.exit(TERMINATED)
