"""`Predictor.fit`, which runs the command of scripts/fit.py in its own process.

The tree libraries read their number of threads when they are imported, and must not share a process with PyTorch. So nothing
is trained in the process of the caller.
"""

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from ensemble import recipe
from ensemble.errors import PREEMPTED, USER_ERROR, Failure, UserError
from ensemble.predictor.frames import to_arrow

ROWS = "rows.parquet"
COMMAND = [sys.executable, "-m", "ensemble.commands.fit"]


def fit(source: Any, out: str | Path, name: str, resume: bool, settings: dict[str, Any]) -> None:
    """Fit an ensemble in the folder `out`, with the settings of scripts/fit.py; progress is printed on standard error.

    source : a path, a list of paths, or a DataFrame (see frames.py). name : the recipe. Raises `UserError` for a mistake
    in the arguments, and `Failure` if the process fails or is stopped.
    """
    with tempfile.TemporaryDirectory(prefix="ensemble-") as scratch:
        if isinstance(source, (str, Path)):
            files = [str(source)]
        elif isinstance(source, (list, tuple)):
            files = [str(file) for file in source]
        else:
            import pyarrow.parquet as pq

            files = [f"{scratch}/{ROWS}"]
            pq.write_table(to_arrow(source)[0], files[0])
        config = Path(scratch) / "settings.yaml"
        content = json.dumps({**settings, "source": files, "out": str(out)}, default=_as_json)
        config.write_text(content, encoding="utf-8")  # JSON is YAML
        words = ["--recipe", name, "--config", str(config), *(["--resume", "auto"] if resume else [])]
        if name not in recipe.BUILT_IN:
            recipe.named(name)
        last = ""
        with subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stderr or ():
                    print(line, end="", file=sys.stderr)
                    last = line.strip() or last
                code = process.wait()
            except BaseException:
                process.terminate()
                raise
    if code == USER_ERROR:
        sentence = last.removeprefix("error: ").replace(f"{scratch}/", "").removeprefix(f"{config.name}: ")
        raise UserError(sentence.replace("--resume auto", "resume=True").replace(ROWS, Path(ROWS).stem))
    if code == PREEMPTED:
        raise Failure(f"the fit was stopped: continue with resume=True and out={out}")
    if code:
        raise Failure(f"the fit ended with exit code {code}: {last}")


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if getattr(value, "shape", None) == ():  # a NumPy scalar
        return value.item()
    shown = textwrap.shorten(repr(value), 80, placeholder="…")
    raise UserError(f"{shown} is not a setting: give a string, a number, true or false, or a list of them")
