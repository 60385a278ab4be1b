"""`Predictor.fit`, which runs the command of scripts/fit.py in its own process.

The tree libraries read their number of threads when they are imported, and must not share a process with PyTorch. So nothing
is trained in the process of the caller.
"""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, get_type_hints

from ensemble import configuration, recipe
from ensemble.errors import PREEMPTED, USER_ERROR, Failure, UserError, how_ended
from ensemble.predictor import frames, new_data
from ensemble.signals import end_with_parent

ROWS = "rows.parquet"
IN_PYTHON = {"--resume auto": "resume=True", "--resume": "resume", "overwrite=true": "overwrite=True"}
"""Words of the command line in messages, and the same as arguments in Python."""
COMMAND = [sys.executable, "-u", "-P", "-m", "ensemble.commands.fit"]
"""Unbuffered, so that the lines of standard output and standard error arrive in the order in which they were printed."""


def fit(source: Any, out: str | Path, name: str, resume: bool, settings: dict[str, Any]) -> None:
    """Fit an ensemble in the folder `out`, with the settings of scripts/fit.py. What the command prints, such as messages
    about how the rows were read, is printed on standard error.

    source : a path, a list of paths, or rows as for `frames.to_arrow`. name : of the recipe. Raises `UserError` for a
    mistake in the arguments, and `Failure` if the process fails or is stopped.
    """
    if not isinstance(out, (str, Path)):
        raise UserError(f"out={out!r} is not a path: name the folder to write, as in out='runs/people'")
    if not isinstance(resume, bool):
        raise UserError(f"resume={resume!r} is neither True nor False: give True to continue the fit in out")
    if not isinstance(name, str):
        raise UserError(f"recipe={name!r} is not a name: give one, as in recipe='table', or leave it out")
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # an error would be lost, and an older fit in `out` be loaded
        fix = "call signal.signal(signal.SIGCHLD, signal.SIG_DFL) before"
        raise UserError(f"this program ignores the signal SIGCHLD, so that no exit code of a fit is known: {fix}")
    # Before the fit, since `Predictor.load` would refuse it at the end
    recipe.named(name).require("new_data", "prepare", "predicts no new rows, so fit it by the commands, not in Python")
    types = get_type_hints(recipe.prepare_config(name))
    with frames.scratch_folder() as scratch:
        files, _ = frames.as_files(source, Path(scratch) / ROWS)
        replaced = {f"{scratch}/": "", **({ROWS: Path(ROWS).stem} if files[0].startswith(scratch) else {}), **IN_PYTHON}
        config = Path(scratch) / "settings.yaml"
        raw = files[0] if len(files) == 1 and types.get("source") is str else files
        given = json.loads(json.dumps({**settings, "source": raw, "out": str(out)}, default=_as_json))
        for key, values in given.items():
            if key in settings and types.get(key) is str and isinstance(values, list):  # as in target=frame["y"]
                raise UserError(f"{key} is a list of {len(values):,} values: give one text, such as the name of a column")
            if types.get(key) == tuple[str, ...] and isinstance(values, list):  # as in missing=[-999.0]
                given[key] = [str(value) if isinstance(value, float) else value for value in values]
        content = json.dumps(configuration.literal(given), ensure_ascii=False)
        # JSON is YAML, except for the two \u escapes of an emoji; other characters are escaped, since YAML folds line breaks
        escaped = (char if char < "\x7f" or char > "\uffff" else f"\\u{ord(char):04x}" for char in content)
        config.write_text("".join(escaped), encoding="utf-8")
        words = ["--recipe", name, "--config", str(config), *(["--resume", "auto"] if resume else [])]
        error, last = list[str](), ""  # `error`: the last line that begins with `error: `, and all lines after it
        outputs: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **new_data.in_utf_8()}
        outputs["preexec_fn"] = end_with_parent  # also if a notebook's kernel is killed

        def show(line: str) -> str:
            for word, in_python in replaced.items():
                line = line.replace(word, in_python)
            print(line, end="", file=sys.stderr)
            return line

        with subprocess.Popen([*COMMAND, *words], **outputs) as process:
            assert process.stdout
            try:
                for line in map(show, process.stdout):
                    last = line.strip() or last
                    error = [line] if line.startswith("error: ") else [*error, line] if error else []
                code = process.wait()
            except BaseException:
                process.terminate()
                list(map(show, process.stdout))  # until it has saved its state, and does not use `out` any more
                process.wait()
                raise
    if code == USER_ERROR:
        raise UserError(("".join(error).rstrip() or last).removeprefix("error: ").removeprefix(f"{config.name}: "))
    if code == PREEMPTED:
        raise Failure(f"the fit was stopped: continue with resume=True and out={out}")
    if code:
        raise Failure(f"the fit {how_ended(code)}; its last line: {last}")


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # a scalar or an array of NumPy, or an index of pandas, as in drop=frame.columns[:2]
        return value.tolist()
    shown = textwrap.shorten(repr(value), 80, placeholder="…")
    raise UserError(f"{shown} is not a setting: give a string, a number, true or false, or a list of them")
