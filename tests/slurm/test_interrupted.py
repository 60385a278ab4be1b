"""Interrupted by whatever a cluster does to jobs, a training on two nodes ends with the weights of an uninterrupted one."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from conftest import Job, Login
from safetensors.torch import load_file

CPU = {"ACCELERATE_CONFIG": "accelerate_configs/multi_node_cpu.yaml"}
TIMEOUT_S = 15
"""timeout_s of the runs: what Gloo waits for a rank that is cut off."""
WORDS = ("batch_size=64", "max_epochs=4", "evaluations_per_epoch=1", "checkpoint_steps=5", "log_every=1")


def submit(login: Login, prepared: Path, out: Path, options: str = "", **variables: str) -> Job:
    words = ("slurm/train_multi_node.slurm", f"data={prepared}", f"out={out}", f"timeout_s={TIMEOUT_S}", *WORDS)
    return login.sbatch(*words, options=options, **CPU, **variables)


@pytest.fixture(scope="module")
def uninterrupted(login: Login, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    submit(login, prepared, out).completed()
    assert json.loads((out / "summary.json").read_text())["ranks"] == 4
    return load_file(out / "final" / "model.safetensors")


def finished_alike(job: Job, out: Path, uninterrupted: dict[str, torch.Tensor], num_restarts: int = 1) -> str:
    """Wait for the job; its weights are those of the other to the bit, and it was begun again so many times."""
    log = job.completed().log()
    assert int(job.facts()["Restarts"]) >= num_restarts, log
    weights = load_file(out / "final" / "model.safetensors")
    assert weights.keys() == uninterrupted.keys()
    assert all(torch.equal(weights[name], uninterrupted[name]) for name in weights)
    return log


def test_a_warning_signal(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """USR1 reaches the batch shell only, which must hand it to every rank and requeue the job."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.slurm("scancel", "--signal=USR1", "--batch", job.id)
    log = finished_alike(job, tmp_path / "run", uninterrupted)
    assert f"train_multi_node {job.id}: preempted by a signal, saved: requeued" in log


def test_the_time_limit(login: Login, prepared: Path, tmp_path: Path) -> None:
    """Slurm itself sends --signal before the limit, to the launcher of a single rank too, which would die of it."""
    words = ("slurm/train_cpu.slurm", f"data={prepared}", "batch_size=64", "max_epochs=60", "patience=60")

    def submit(name: str, options: str) -> Job:
        return login.sbatch(*words, f"out={tmp_path}/{name}", options=options, OMP_NUM_THREADS="1")

    # Slurm looks every 30 s, so the signal comes 10 to 40 s after the start
    limited, unlimited = submit("limited", "--time=2 --signal=B:USR1@110"), submit("unlimited", "--time=10")
    unlimited.completed()
    log = finished_alike(limited, tmp_path / "limited", load_file(tmp_path / "unlimited" / "final" / "model.safetensors"))
    assert f"train_cpu {limited.id}: preempted by a signal, saved: requeued" in log


def test_scontrol_requeue(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """An operator's requeue sends SIGTERM to all and begins again by itself."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.slurm("scontrol", "requeue", job.id)
    log = finished_alike(job, tmp_path / "run", uninterrupted)
    assert "SIGTERM: saving after this step" in log


def test_a_cut_network(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """Nothing arrives any more, and nobody says so: the ranks give up after timeout_s, and the job is requeued."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.cut("node2")
    try:
        leaves(job, TIMEOUT_S + 60)
    finally:
        login.cluster.mend("node2")
    finished_alike(job, tmp_path / "run", uninterrupted)


def leaves(job: Job, limit_s: float) -> None:
    """Wait until the job runs no more, and say how long that took."""
    began = time.monotonic()
    job.until(lambda: job.facts()["JobState"] != "RUNNING", "leave", limit_s)
    print(f"left {time.monotonic() - began:.0f} s later, timeout_s={TIMEOUT_S}")


def test_a_dead_rank(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """SIGKILL, as the kernel does when memory is short: the last lines name the rank and its host."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    (rank,) = (process for process in login.cluster.processes("node2") if process.environ().get("RANK") == "3")
    rank.kill()
    leaves(job, 60)
    log = finished_alike(job, tmp_path / "run", uninterrupted)
    assert re.search(rf"^train_multi_node {job.id}: lost: rank 3 of 4 \(host node2.*: requeued$", log, re.MULTILINE), log


def test_a_dead_node(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """Power fails: slurmd and ranks are gone at once; who is left says so, and the job goes on when the node is back."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.kill_node("node2")
    try:
        leaves(job, 120)
    finally:
        login.cluster.start_node("node2")
    log = finished_alike(job, tmp_path / "run", uninterrupted)
    assert re.search(r"(rank [23] of 4 \(host node2|the ranks' store|lost each other)", log), log


def test_a_dead_slurmd(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """The ranks go on, but Slurm calls the node down: what is left there must not disturb the job that begins again."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.kill_slurmd("node2")
    try:
        # As Slurm does itself after SlurmdTimeout, by default 300 s, in which this training would have ended well
        login.cluster.slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=slurmd is gone")
        leaves(job, 120)
    finally:
        login.cluster.start_node("node2")
    finished_alike(job, tmp_path / "run", uninterrupted)
