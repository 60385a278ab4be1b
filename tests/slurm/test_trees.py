"""XGBoost and LightGBM over two nodes: as good as on one, and a node that dies costs only a chunk of trees."""

import json
from pathlib import Path

import pytest
from conftest import Job, Login

from ensemble import metrics, predictions

TOLERANCE = 0.05
"""Largest absolute difference between the average precisions on the test split of one node and of two.

On two nodes each node bins its own shard, and training can stop after another number of trees.
"""
WORDS = ("num_rounds=60", "early_stopping_rounds=60", "chunk_rounds=10")


def submit(login: Login, prepared: Path, out: Path, num_nodes: int, *words: str) -> Job:
    words = ("slurm/train_tree_models.slurm", f"data={prepared}", f"out={out}", *WORDS, *words)
    return login.sbatch(*words, options=f"--nodes={num_nodes}")


def summary(out: Path, library: str) -> dict[str, float]:
    return json.loads((out / library / "summary.json").read_text())


def test_two_nodes_are_as_good_as_one(login: Login, prepared: Path, tmp_path: Path) -> None:
    """A node would be idle, or trees that were trained on divided rows would predict worse."""
    jobs = [submit(login, prepared, tmp_path / str(nodes), nodes) for nodes in (1, 2)]
    for job in jobs:
        job.completed()
    for library in ("xgboost", "lightgbm"):
        one, two = (summary(tmp_path / nodes, library) for nodes in "12")
        assert (one["ranks"], two["ranks"]) == (1, 2)
        scores = []
        for nodes in "12":
            words = f"member={tmp_path}/{nodes}/{library} data={prepared} out={tmp_path}/{nodes} splits=[test]"
            done = login.shell(f"$PYTHON_ENVIRONMENT/bin/python scripts/predict.py {words}")
            assert done.returncode == 0, done.stderr
            predicted = predictions.read(tmp_path / nodes / f"{library}.test.parquet")
            scores.append(metrics.average_precision(predicted.target, predicted.prediction))
        print(f"{library}: test average precision {scores}")
        assert scores[1] == pytest.approx(scores[0], abs=TOLERANCE)


ROUNDS = {"xgboost": 1000, "lightgbm": 2000}
"""Trees of the trainings that lose a node. They take some seconds."""
MODELS = {"xgboost": "model.ubj", "lightgbm": "model.txt"}


def test_a_dead_node(login: Login, prepared: Path, tmp_path: Path) -> None:
    """The other node names the dead one, the job is requeued, and its trees equal those of an uninterrupted training.

    There is a job for each library, and both run on the node that dies.
    """

    def submit_both(out: Path) -> list[Job]:
        jobs = []
        for library, rounds in ROUNDS.items():
            rest = (f"early_stopping_rounds={rounds}", f"chunk_rounds={rounds // 10}", "checkpoint_s=0")
            jobs.append(submit(login, prepared, out, 2, f"library={library}", f"num_rounds={rounds}", *rest))
        return jobs

    for job in submit_both(tmp_path / "whole"):
        job.completed()
    jobs = submit_both(tmp_path / "killed")
    for job, library in zip(jobs, ROUNDS, strict=True):
        checkpoints = tmp_path / "killed" / f"{library}.checkpoint"
        job.until(lambda folder=checkpoints: any(folder.glob("trees-*")), "write a checkpoint")
    login.cluster.kill_node("node2")
    try:
        for job in jobs:
            job.until(lambda job=job: job.facts()["JobState"] != "RUNNING", "leave", 90)
    finally:
        login.cluster.start_node("node2")
    for job, (library, model) in zip(jobs, MODELS.items(), strict=True):
        assert int(job.completed().facts()["Restarts"]) >= 1, job.log()
        whole, killed = (tmp_path / kind / library / model for kind in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes()


def warn(job: Job) -> None:
    """Send the signal of --signal, which Slurm sends before the time limit."""
    job.cluster.slurm("scancel", "--signal=USR1", "--batch", job.id)


def test_a_bag_is_warned(login: Login, folded: Path, tmp_path: Path) -> None:
    """The signal would wait for a status that no copy of the bag writes, until Slurm kills the job at its limit."""
    rounds = ("library=xgboost", "folds=true", "num_rounds=300", "early_stopping_rounds=300", "checkpoint_s=0")
    job = submit(login, folded, tmp_path, 1, *rounds)
    job.until(lambda: any((tmp_path / "xgboost").glob("1.checkpoint/trees-*")), "train the second copy")
    warn(job)
    log = job.completed().log()
    assert f"train_tree_models {job.id}: preempted by a signal, saved: requeued" in log
    assert [(tmp_path / f"xgboost/{copy}/summary.json").exists() for copy in range(5)] == [True] * 5
    assert [path.name for path in tmp_path.iterdir()] == ["xgboost"]


def test_a_job_that_gets_no_further_ends(login: Login, prepared: Path, tmp_path: Path) -> None:
    """A job with refits that take longer than its limit would be requeued for ever, and waste the user's hours."""
    refits = ("library=lightgbm", "num_rounds=20", "checkpoint_s=0", "refit=true", "num_refits=10000")
    job = submit(login, prepared, tmp_path, 1, *refits)
    job.until(lambda: any(tmp_path.glob("lightgbm.checkpoint/trees-*")), "write a checkpoint")
    warn(job)
    job.until(lambda: "saved: requeued" in job.log(), "be requeued")
    job.until(lambda: "continuing after" in job.log(), "continue")
    warn(job)
    assert job.wait().facts()["ExitCode"] == "1:0"
    assert "failed: nothing new could be saved before the job's time limit" in job.log()
