"""The Slurm cluster of these tests, and commands on it. Without Slurm or root, the tests are skipped with the reason."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, missing

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
"""A job that does not end in this time has hung."""
KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH")
"""Environment variables of the tests that a user's shell on the login node has too."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "DEADLINE")


@dataclasses.dataclass(frozen=True)
class Job:
    cluster: Cluster
    id: str

    def facts(self) -> dict[str, str]:
        description = self.cluster.slurm("scontrol", "show", "job", self.id)
        return dict(re.findall(r"(\w+)=(\S*)", description))

    def log(self) -> str:
        """What the job wrote, including the lines that it overwrote."""
        facts = self.facts()
        file = Path(facts["StdOut"].replace("%N", facts.get("BatchHost", "")))
        return file.read_text(encoding="utf-8", errors="replace").replace("\r", "\n") if file.exists() else ""

    def wait(self, limit_s: float = LIMIT_S) -> "Job":
        """Wait until the job has ended; a requeued job has not."""
        self.until(lambda: self.facts()["JobState"] in ENDED, "end", limit_s)
        return self

    def until(self, holds: Any, what: str, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            facts = self.facts()
            if time.monotonic() > deadline or (facts["JobState"] in ENDED and not holds()):
                self.cluster.slurm("scancel", self.id)
                pytest.fail(f"job {self.id} did not {what} in {limit_s} s: {facts}\n{self.log()[-5000:]}")
            time.sleep(0.2)

    def until_step(self, out: Path, step: int) -> None:
        """Wait until the run has trained this many steps."""
        self.until(lambda: self.has_reached(out, step), f"reach step {step}")

    def has_reached(self, out: Path, step: int) -> bool:
        """Whether the run, which must not have ended, has trained this many steps."""
        assert self.facts()["JobState"] not in ENDED, self.log()[-5000:]
        file = out / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return any(json.loads(line).get("step", 0) >= step for line in lines if line.endswith("}"))

    def completed(self) -> "Job":
        """Wait until the job has ended, without an error."""
        facts = self.wait().facts()
        assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), f"{facts}\n{self.log()[-8000:]}"
        return self


class Login:
    """A user's shell on the login node, in the project's folder."""

    def __init__(self, cluster: Cluster, logs: Path, project: Path = ROOT):
        self.cluster, self.logs, self.project = cluster, logs, project

    def shell(self, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # With other kernels of OpenBLAS, the last bits would differ from those of a fit without Slurm
        kept = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("OPENBLAS_")}
        site = {"PYTHON_ENVIRONMENT": sys.prefix, "OMP_WAIT_POLICY": "PASSIVE"}
        return subprocess.run(
            ["bash", "-c", f"source slurm/site.sh; {line}"],
            cwd=self.project,
            env={**kept, **self.cluster.environment, **site, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def sbatch(self, *words: str | Path, options: str = "", **variables: str) -> Job:
        """Submit `FILE.slurm key=value…` as the README says, with two cores for each task."""
        line = shlex.join(
            ["sbatch", "--parsable", "--cpus-per-task=2", f"--output={self.logs}/%x-%A.out", *shlex.split(options)]
        )
        done = self.shell(f"{line} {shlex.join(str(word) for word in words)}", **variables)
        assert done.returncode == 0, done.stderr
        return Job(self.cluster, done.stdout.strip())

    def submit_all(self, folder: Path, neural: str, *words: str, **variables: str) -> dict[str, Job]:
        """Submit a whole fit; its jobs by name."""
        logs = {"SBATCH_OUTPUT": f"{self.logs}/%x-%A_%a.out"}
        line = shlex.join(["slurm/submit_all.sh", str(folder), neural, *words])
        done = self.shell(line, **{"COPIES": "--array=0-1 --cpus-per-task=1", **logs, **variables})
        assert done.returncode == 0, done.stderr
        ids = dict(re.findall(r"(\w+) (\d+)", done.stdout.splitlines()[0]))
        assert list(ids) == ["prepare", "neural", "copies", "members", "fit"]
        return {name: Job(self.cluster, number) for name, number in ids.items()}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lacking := missing():
        pytest.skip(f"no Slurm of our own: {lacking}")
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def login(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Login:
    return Login(cluster, tmp_path_factory.mktemp("logs"))
