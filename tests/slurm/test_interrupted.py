"""Interrupted by whatever a cluster does to jobs, a training on two nodes ends with the weights of an uninterrupted one."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from conftest import LIMIT_S, Job, Login
from safetensors.torch import load_file

CPU = {"ACCELERATE_CONFIG": "accelerate_configs/multi_node_cpu.yaml"}
TIMEOUT_S = 15
"""timeout_s of the runs: what Gloo waits for a rank that is cut off."""
WORDS = ("batch_size=64", "max_epochs=4", "evaluations_per_epoch=1", "checkpoint_steps=5", "log_every=1")


def submit(login: Login, prepared: Path, out: Path, options: str = "", **variables: str) -> Job:
    words = ("slurm/train_multi_node.slurm", f"data={prepared}", f"out={out}", f"timeout_s={TIMEOUT_S}", *WORDS)
    return login.sbatch(*words, options=options, **CPU, **variables)


@pytest.fixture(scope="module")
def with_and_without_limit(login: Login, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Job, Path]]:
    """Two runs on one rank, which the other tests do not touch. Slurm looks at limits every 30 s, so they take long."""
    words = ("slurm/train_cpu.slurm", f"data={prepared}", "batch_size=64", "max_epochs=60", "patience=60")
    folder = tmp_path_factory.mktemp("limits")
    runs = []
    for name, limit in (("limited", "--time=2 --signal=B:USR1@110"), ("unlimited", "--time=20")):
        options = f"{limit} --cpus-per-task=1 --nodelist=node1"
        runs.append((login.sbatch(*words, f"out={folder}/{name}", options=options), folder / name))
    return runs


@pytest.fixture(scope="module")
def uninterrupted(
    login: Login, prepared: Path, with_and_without_limit: object, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """The weights of a run on two ranks of two nodes, which begins after those that take long."""
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


def rank_3(job: Job) -> psutil.Process:
    """The second rank on node2."""
    of_job = {"RANK": "3", "SLURM_JOB_ID": job.id}
    for process in job.cluster.processes("node2"):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if of_job.items() <= process.environ().items():
                return process
    raise AssertionError(f"job {job.id} has no rank 3")


INTERRUPTIONS: dict[str, Callable[[Job], object]] = {
    "warned": lambda job: job.cluster.slurm("scancel", "--signal=USR1", "--batch", job.id),
    "requeued": lambda job: job.cluster.slurm("scontrol", "requeue", job.id),
    "killed": lambda job: rank_3(job).kill(),
}


@pytest.fixture(scope="module")
def interrupted(
    login: Login, prepared: Path, uninterrupted: object, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Job, Path]]:
    """Jobs that run at once, each interrupted at step 12 in a way that leaves the others alone."""
    folder = tmp_path_factory.mktemp("interrupted")
    jobs = {name: (submit(login, prepared, folder / name), folder / name) for name in INTERRUPTIONS}
    left = dict(jobs)
    deadline = time.monotonic() + LIMIT_S
    while left:
        assert time.monotonic() < deadline, {name: job.log()[-2000:] for name, (job, _) in left.items()}
        for name, (job, out) in list(left.items()):
            if job.has_reached(out, 12):
                INTERRUPTIONS[name](job)
                del left[name]
        time.sleep(0.1)
    return jobs


def test_a_warning_signal(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """USR1 reaches the batch shell only, which must hand it to every rank and requeue the job."""
    job, out = interrupted["warned"]
    log = finished_alike(job, out, uninterrupted)
    assert f"train_multi_node {job.id}: preempted by a signal, saved: requeued" in log


def test_scontrol_requeue(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """An operator's requeue sends SIGTERM to all and begins again by itself."""
    log = finished_alike(*interrupted["requeued"], uninterrupted)
    assert "SIGTERM: saving after this step" in log


def test_a_dead_rank(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """SIGKILL, as the kernel does when memory is short: the last lines name the rank and its host."""
    job, out = interrupted["killed"]
    log = finished_alike(job, out, uninterrupted)
    assert re.search(rf"^train_multi_node {job.id}: lost: rank 3 of 4 \(host node2.*: requeued$", log, re.MULTILINE), log


def test_an_early_warning(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """Passed on before the ranks can hear it, it would kill them; kept back for good, the job would lose all it learned."""
    out = tmp_path / "run"
    job = submit(login, prepared, out)
    steps = ("squeue", "--noheader", "--steps", f"--jobs={job.id}", "--format=%i")
    job.until(lambda: f"{job.id}.0" in login.cluster.slurm(*steps).split(), "start its ranks")
    login.cluster.slurm("scancel", "--signal=USR1", "--batch", job.id)
    assert not (out / "status").exists(), "it was not early"
    job.until(lambda: job.facts()["Restarts"] == "1", "be requeued")
    assert list(out.glob("checkpoints/*")), f"nothing was saved:\n{job.log()}"
    log = finished_alike(job, out, uninterrupted)
    assert f"train_multi_node {job.id}: preempted by a signal, saved: requeued" in log
    assert list(tmp_path.iterdir()) == [out], "something was left beside the run"


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


def test_the_time_limit(with_and_without_limit: list[tuple[Job, Path]]) -> None:
    """Slurm itself sends --signal before the limit, to the launcher of a single rank too, which would die of it."""
    (limited, out), (unlimited, out_of_other) = with_and_without_limit
    limited.until(lambda: limited.facts()["Restarts"] != "0", "be requeued")
    longer = ("scontrol", "update", f"JobId={limited.id}", "TimeLimit=20")  # on a slow machine it would be stopped for ever
    limited.cluster.slurm(*longer, check=False)  # unless it has ended
    unlimited.completed()
    log = finished_alike(limited, out, load_file(out_of_other / "final" / "model.safetensors"))
    assert f"train_cpu {limited.id}: preempted by a signal, saved: requeued" in log
