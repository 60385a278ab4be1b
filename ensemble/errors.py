"""What a user can get wrong, and how a script says so.

Everything that a user can cause (a wrong path, key, value or combination, a damaged file) is a `UserError` whose
message is one sentence: what was wrong, the value, what to do. Our own mistakes are assertions and keep their traceback.

Exit codes of every script: 0 done, 1 failed (a traceback follows), 2 the user's mistake (one sentence), 130 Ctrl-C.
"""

import sys
from collections.abc import Callable

USER_ERROR = 2
INTERRUPTED = 130


class UserError(ValueError):
    """A mistake that the person at the keyboard can mend; the message says how."""


def run(main: Callable[[], None]) -> None:
    """Run a script's `main` and leave with the exit code that the module's docstring documents."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
