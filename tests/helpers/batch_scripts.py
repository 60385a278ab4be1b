"""The scripts of slurm/ without a cluster: stand-ins for the commands of Slurm print what they get."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STARTED = "mkdir -p {out}; echo running >{out}/status; exit 1"
"""The `srun` of a training whose processes are killed after its start."""


def on_a_node(programs: Path, *words: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """slurm/node.sh on the only node of a job, which has few programs."""
    for program in ("bash", "hostname", "sed", "grep"):
        (programs / program).symlink_to(str(shutil.which(program)))
    (programs / "python").symlink_to(sys.executable)
    job = {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "10000"}
    environment = {"PATH": str(programs), **job, **variables}
    command = ["bash", ROOT / "slurm/node.sh", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


def as_a_job(
    programs: Path,
    script: str,
    *words: str,
    srun: str = 'echo "$@"',
    job: str = "ArrayJobId=7",
    log: Any = subprocess.PIPE,
    **variables: str,
) -> "subprocess.CompletedProcess[str]":
    """A .slurm file as the batch script of a job on one node; `srun` prints its command instead of running it.

    job : what Slurm says about the job. log : the file of its stderr, which job.sh can read
    """
    scontrol = f"case $2 in hostnames) echo node1 ;; job) echo {job} ;; esac"
    for name, body in {"srun": srun, "scontrol": scontrol, "python": "true"}.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    (programs / "environment/bin").mkdir(parents=True)
    (programs / "environment/bin/python").symlink_to(programs / "python")
    facts = {"SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHON_ENVIRONMENT": str(programs / "environment")}
    command = ["bash", ROOT / "slurm" / script, *words]
    environment = {**path, **facts, **variables}
    streams = {"stdout": subprocess.PIPE, "stderr": log}
    return subprocess.run(command, env=environment, **streams, text=True, timeout=60, check=False, cwd=ROOT)


def array_of(num_tasks: int, step: int = 1) -> dict[str, str]:
    """The variables of the first task of an array."""
    facts = {"JOB_ID": 7, "TASK_ID": 0, "TASK_MIN": 0, "TASK_MAX": (num_tasks - 1) * step, "TASK_COUNT": num_tasks}
    return {f"SLURM_ARRAY_{name}": str(value) for name, value in facts.items()}


def submitted(
    programs: Path, words: str, project: Path, sinfo: str = "echo gpu", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """`sbatch` of slurm/site.sh with these words, in the project's folder; prints the words for Slurm's own sbatch."""
    for name, body in {"sbatch": 'echo "$@"', "sinfo": sinfo}.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    command = ["bash", "-c", f"source slurm/site.sh; sbatch {words}"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=project)
