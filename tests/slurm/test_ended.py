"""Jobs whose processes Slurm or the kernel ends: the last line of the log and the exit code say so.

The Python of these jobs does nothing but what the test needs.
"""

import sys
from pathlib import Path

from conftest import Login


def environment(folder: Path, line: str) -> str:
    """A PYTHON_ENVIRONMENT whose Python runs a line of bash first. `$1` is -c when the job checks it."""
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/bash\n{line}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(folder)


def test_a_name_like_an_option(login: Login, tmp_path: Path) -> None:
    """The losses of a job with such a name would not be found in its log, and it would be requeued for ever."""
    python = environment(tmp_path / "killed", '[ "$1" = -c ] || kill -9 $$')
    words = ("slurm/train_tree_models.slurm", f"data={tmp_path}", f"out={tmp_path}/out")
    job = login.sbatch(*words, options="--job-name=-v", PYTHON_ENVIRONMENT=python, MAX_RESTARTS="0").wait(60)
    assert (job.facts()["JobState"], job.facts()["ExitCode"]) == ("FAILED", "1:0"), job.log()
    assert f"-v {job.id}: failed: lost again after the MAX_RESTARTS=0 restarts: " in job.log().splitlines()[-1]
