"""Jobs whose processes Slurm or the kernel ends: the last line of the log and the exit code say so.

The Python of these jobs does nothing but what the test needs.
"""

import sys
from pathlib import Path

import pytest
from conftest import Job, Login

ENDED_BY_SLURM = "ended by SIGTERM; Slurm ended the job, and restarts it unless it was cancelled or reached its time limit"


def environment(folder: Path, line: str) -> str:
    """A PYTHON_ENVIRONMENT whose Python runs a line of bash first. `$1` is -c when the job checks it."""
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/bash\n{line}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(folder)


@pytest.fixture(scope="module")
def cancelled(login: Login, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Jobs that are cancelled at the same time: while the environment is checked, data are copied or data are prepared."""
    folder = tmp_path_factory.mktemp("cancelled")
    (folder / "scratch").mkdir()
    checking = environment(folder / "checking", '[ "$1" != -c ] || { echo begun; sleep 3; }')
    working = environment(folder / "working", '[ "$1" = -c ] || { echo begun; exec sleep 60; }')
    training = ("slurm/train_tree_models.slurm", f"data={folder}", f"out={folder}/out")
    jobs = {
        "check": login.sbatch(*training, PYTHON_ENVIRONMENT=checking),
        "copy": login.sbatch(*training, PYTHON_ENVIRONMENT=working, SCRATCH_FOLDER=f"{folder}/scratch"),
        "prepare": login.sbatch(
            "slurm/prepare_data.slurm", "a.jsonl", "b.jsonl", PYTHON_ENVIRONMENT=working, RUNS=str(folder)
        ),
    }
    for job in jobs.values():
        job.until(lambda job=job: "begun" in job.log(), "begin", 60)
    login.cluster.slurm("scancel", *(job.id for job in jobs.values()))
    return jobs


@pytest.mark.parametrize("name", ["check", "copy", "prepare"])
def test_a_cancelled_job(name: str, cancelled: dict[str, Job]) -> None:
    """The last line would be an error of Slurm's or of the environment, or the job would begin to prepare more data."""
    job = cancelled[name].wait(60)
    assert (job.facts()["JobState"], job.facts()["ExitCode"]) == ("CANCELLED", "75:0"), job.log()
    assert job.log().splitlines()[-1].endswith(f": {ENDED_BY_SLURM}"), job.log()
    assert job.log().count("begun") == 1
