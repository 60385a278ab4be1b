"""Interrupted by whatever a cluster does to jobs, a training on two nodes ends with the weights of an uninterrupted one."""

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from conftest import LIMIT_S, Job, Login
from processes import command_of
from safetensors.torch import load_file

CPU = {"ACCELERATE_CONFIG": "accelerate_configs/multi_node_cpu.yaml", "RANKS_PER_NODE": "1"}
TIMEOUT_S = 15
"""timeout_s of the runs: how long Gloo waits for a rank whose network is cut."""
WORDS = ("batch_size=64", "max_epochs=4", "evaluations_per_epoch=1", "checkpoint_steps=5", "log_every=1")


def submit(login: Login, prepared: Path, out: Path, options: str = "", **variables: str) -> Job:
    words = ("slurm/train_multi_node.slurm", f"data={prepared}", f"out={out}", f"timeout_s={TIMEOUT_S}", *WORDS)
    return login.sbatch(*words, options=options, **CPU, **variables)


@pytest.fixture(scope="module")
def near_its_limit(
    login: Login, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, Path, psutil.Process]:
    """A run on one rank that is halted at step 12, long before Slurm warns it."""
    out = tmp_path_factory.mktemp("limited") / "run"
    options = "--time=60 --signal=B:USR1@290 --cpus-per-task=1 --nodelist=node1"
    job = login.sbatch("slurm/train_cpu.slurm", f"data={prepared}", f"out={out}", *WORDS, options=options)
    job.until_step(out, 12)
    training = process_of(job, "node1", lambda process: "scripts/train.py" in command_of(process)[1:3])
    training.suspend()
    return job, out, training


@pytest.fixture(scope="module")
def uninterrupted(
    login: Login, prepared: Path, near_its_limit: object, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """The weights of a run on one rank of each of two nodes, while the run near its limit is halted."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    submit(login, prepared, out).completed()
    assert json.loads((out / "summary.json").read_text())["ranks"] == 2
    return load_file(out / "final" / "model.safetensors")


def finished_alike(job: Job, out: Path, uninterrupted: dict[str, torch.Tensor], num_restarts: int = 1) -> str:
    """Wait for the job, whose weights must equal the others to the bit after `num_restarts` restarts; returns its log."""
    log = job.completed().log()
    assert int(job.facts()["Restarts"]) >= num_restarts, log
    weights = load_file(out / "final" / "model.safetensors")
    assert weights.keys() == uninterrupted.keys()
    assert all(torch.equal(weights[name], uninterrupted[name]) for name in weights)
    return log


def rank_1(job: Job) -> psutil.Process:
    """The rank on node2."""
    return process_of(job, "node2", lambda process: process.environ().get("RANK") == "1")


def process_of(job: Job, node: str, is_it: Callable[[psutil.Process], bool]) -> psutil.Process:
    for process in job.cluster.processes(node):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if process.environ().get("SLURM_JOB_ID") == job.id and is_it(process):
                return process
    raise AssertionError(f"job {job.id} has no such process on {node}")


def warn(job: Job) -> None:
    job.cluster.slurm("scancel", "--signal=USR1", "--batch", job.id)


INTERRUPTIONS: dict[str, Callable[[Job], object]] = {
    "warned early": warn,
    "warned": warn,
    "requeued": lambda job: job.cluster.slurm("scontrol", "requeue", job.id),
    "killed": lambda job: rank_1(job).kill(),
}


def test_the_time_limit(
    login: Login, prepared: Path, near_its_limit: tuple[Job, Path, psutil.Process], uninterrupted: object, tmp_path: Path
) -> None:
    """Slurm sends the signal of --signal before the limit, also to the launcher of a single rank, which would end."""
    limited, out, training = near_its_limit
    hours, minutes, _ = limited.facts()["RunTime"].split(":")
    almost = 60 * int(hours) + int(minutes) + 5  # 4 to 5 minutes from now: Slurm, which looks every 30 s, warns it soon
    limited.cluster.slurm("scontrol", "update", f"JobId={limited.id}", f"TimeLimit={almost}")
    words = ("slurm/train_cpu.slurm", f"data={prepared}", f"out={tmp_path}/run", *WORDS)
    unlimited = login.sbatch(*words, options="--cpus-per-task=1")
    limited.until(lambda: is_pending(training, signal.SIGUSR1), "be warned")
    limited.cluster.slurm("scontrol", "update", f"JobId={limited.id}", "TimeLimit=20")  # or it would be warned again
    training.resume()
    unlimited.completed()
    log = finished_alike(limited, out, load_file(tmp_path / "run" / "final" / "model.safetensors"))
    assert f"train_cpu {limited.id}: preempted by a signal, saved: requeued" in log


def is_pending(process: psutil.Process, number: int) -> bool:
    """Whether a stopped process was sent a signal."""
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)


def has_ranks(job: Job) -> bool:
    """Whether the step that trains has begun."""
    steps = job.cluster.slurm("squeue", "--noheader", "--steps", f"--jobs={job.id}", "--format=%i")
    return f"{job.id}.0" in steps.split()


@pytest.fixture(scope="module")
def interrupted(
    login: Login, prepared: Path, uninterrupted: object, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Job, Path]]:
    """Jobs that run at the same time. Each is interrupted at step 12, or early, in a way that does not affect the others."""
    folder = tmp_path_factory.mktemp("interrupted")
    outs = {name: folder / name / "run" for name in INTERRUPTIONS}
    jobs = {name: (submit(login, prepared, out), out) for name, out in outs.items()}
    left = dict(jobs)
    deadline = time.monotonic() + LIMIT_S
    while left:
        assert time.monotonic() < deadline, {name: job.log()[-2000:] for name, (job, _) in left.items()}
        for name, (job, out) in list(left.items()):
            if has_ranks(job) if name == "warned early" else job.has_reached(out, 12):
                INTERRUPTIONS[name](job)
                assert name != "warned early" or not (out / "status").exists(), "it was not early"
                del left[name]
        time.sleep(0.1)
    return jobs


def test_a_warning_signal(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """USR1 reaches the batch shell only, which must pass it on to every rank and requeue the job."""
    job, out = interrupted["warned"]
    log = finished_alike(job, out, uninterrupted)
    assert f"train_multi_node {job.id}: preempted by a signal, saved: requeued" in log


def test_scontrol_requeue(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """When an operator requeues the job, Slurm sends SIGTERM to all processes and restarts the job."""
    log = finished_alike(*interrupted["requeued"], uninterrupted)
    assert "SIGTERM: saving after this step" in log


def test_a_dead_rank(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """SIGKILL, as the kernel does when memory is short: the last lines name the rank and its host."""
    job, out = interrupted["killed"]
    log = finished_alike(job, out, uninterrupted)
    assert re.search(rf"^train_multi_node {job.id}: lost: rank 1 of 2 \(host node2.*: requeued$", log, re.MULTILINE), log


def test_an_early_warning(interrupted: dict[str, tuple[Job, Path]], uninterrupted: dict[str, torch.Tensor]) -> None:
    """A signal before the ranks handle signals would kill them, or the job would be killed later without having saved."""
    job, out = interrupted["warned early"]
    log = finished_alike(job, out, uninterrupted)
    assert f"train_multi_node {job.id}: preempted by a signal, saved: requeued" in log
    assert re.search(r"status preempted .* steps [1-9]", log), f"nothing was saved:\n{log}"
    assert list(out.parent.iterdir()) == [out], "something was left beside the run"


@pytest.mark.torture
def test_a_cut_network(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """No packet arrives, and no connection reports an error: the ranks stop after timeout_s, and the job is requeued."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.cut("node2")
    try:
        leaves(job, TIMEOUT_S + 60)
    finally:
        login.cluster.mend("node2")
    finished_alike(job, tmp_path / "run", uninterrupted)


def leaves(job: Job, limit_s: float) -> None:
    """Wait until the job does not run any more, and print how long that took."""
    began = time.monotonic()
    job.until(lambda: job.facts()["JobState"] != "RUNNING", "leave", limit_s)
    print(f"left {time.monotonic() - began:.0f} s later, timeout_s={TIMEOUT_S}")


def test_a_dead_node(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """Slurmd and the ranks of a node are gone at once. Other ranks report it, and the job resumes when the node is back."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.kill_node("node2")
    try:
        leaves(job, 120)
    finally:
        login.cluster.start_node("node2")
    log = finished_alike(job, tmp_path / "run", uninterrupted)
    assert re.search(r"(rank 1 of 2 \(host node2|the store of the process group|connection between the ranks)", log), log


@pytest.mark.torture
def test_a_dead_slurmd(login: Login, prepared: Path, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]) -> None:
    """The ranks continue, but Slurm marks the node as down. Processes left there must not disturb the restarted job."""
    job = submit(login, prepared, tmp_path / "run")
    job.until_step(tmp_path / "run", 12)
    login.cluster.kill_slurmd("node2")
    try:
        # As Slurm does itself after SlurmdTimeout, by default 300 s, before which this training would be done
        login.cluster.slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=slurmd is gone")
        leaves(job, 120)
    finally:
        login.cluster.start_node("node2")
    finished_alike(job, tmp_path / "run", uninterrupted)
