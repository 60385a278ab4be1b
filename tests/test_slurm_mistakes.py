"""Mistakes in slurm/site.sh, in options of sbatch and in arguments of jobs: one sentence, before any work. No cluster."""

from pathlib import Path

import pytest
from batch_scripts import as_a_job


@pytest.mark.parametrize("number", ["", "three", "-1"])
def test_a_wrong_number_of_restarts_is_refused(number: str, tmp_path: Path) -> None:
    """A job that runs out of memory at each start would be requeued for ever."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, srun="exit 137", MAX_RESTARTS=number)
    assert done.returncode == 2, done.stderr
    assert f"slurm/site.sh: MAX_RESTARTS={number} is not a whole number of 0 or more" in done.stderr
