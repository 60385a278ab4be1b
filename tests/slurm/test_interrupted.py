"""Interrupted by whatever a cluster does to jobs, a training on two nodes ends with the weights of an uninterrupted one."""

import json
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


def test_the_time_limit(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """A limit of a minute: Slurm itself sends --signal so long before it, and the job begins again with a new minute."""
    job = submit(login, prepared, tmp_path / "run", "--time=1 --signal=B:USR1@42")
    finished_alike(job, tmp_path / "run", uninterrupted)


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
    began = time.monotonic()
    try:
        job.until(lambda: job.facts()["JobState"] != "RUNNING", "leave", TIMEOUT_S + 60)
    finally:
        login.cluster.mend("node2")
    print(f"left {time.monotonic() - began:.0f} s after the cut, timeout_s={TIMEOUT_S}")
    finished_alike(job, tmp_path / "run", uninterrupted)


def test_a_dead_node(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """Power fails: slurmd and ranks are gone at once; who is left says so, and the job goes on when the node is back."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.kill_node("node2")
    try:
        job.until(lambda: job.facts()["JobState"] != "RUNNING", "leave", TIMEOUT_S + 60)
    finally:
        login.cluster.start_node("node2")
    finished_alike(job, tmp_path / "run", uninterrupted)
