"""Two nodes of two ranks, over the addresses of two hosts, learn what one process learns."""

import json
from pathlib import Path

import numpy as np
import pytest
import small_emulators
import torch
from conftest import Job, Login
from safetensors.torch import load_file

from ensemble import metrics, predictions

WORKER = "tests/launch/equivalence_worker.py"
RUN = 'source slurm/job.sh && "${on_nodes[@]}" bash slurm/node.sh'
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
"""Largest norm of the difference of gradients, relative to their norm."""
FIRST_STEPS = 4
"""The compared steps: an epoch of three steps of 64 rows, and one of 5 rows, in which some ranks have none. After more steps
the weights differ more."""
LOSS_SPREAD = 1e-4
"""Largest relative difference of the loss of a step. The order of sums in float32 differs, and so do the weights after 38
steps of AdamW."""


def wrapped(login: Login, nodes: int, command: str) -> Job:
    return login.sbatch("--wrap", f"bash -c '{RUN} {command}'", options=f"--nodes={nodes} --ntasks-per-node=1")


def test_gradients(login: Login, tmp_path: Path) -> None:
    """The gradients of two nodes would differ from those of one process, for example if some ranks have no rows."""
    jobs = [
        wrapped(login, nodes, f"accelerate_configs/{yaml}.yaml {WORKER} {tmp_path}/{nodes}")
        for nodes, yaml in ((1, "single_cpu"), (2, "multi_node_cpu"))
    ]
    for job in jobs:
        job.completed()
    for dtype, tolerance in TOLERANCE.items():
        alone = load_file(tmp_path / "1" / f"{dtype}-1" / "0.safetensors")
        for rank in range(4):
            together = load_file(tmp_path / "2" / f"{dtype}-1" / f"{rank}.safetensors")
            for step in range(FIRST_STEPS):
                result, expected = together["gradients"][step], alone["gradients"][step]
                error = torch.linalg.vector_norm(result - expected) / torch.linalg.vector_norm(expected)
                assert error < tolerance, f"{dtype}, rank {rank}, step {step}: {error}"


def test_the_loss_curve_and_the_metric(login: Login, prepared: Path, tmp_path: Path) -> None:
    """The real recipe, without dropout, which draws other numbers on other ranks."""
    words = (f"data={prepared}", "batch_size=128", "max_epochs=1", "log_every=1", "recipe.dropout=0")
    jobs = [
        login.sbatch(f"slurm/{file}.slurm", *words, f"out={tmp_path}/{file}")
        for file in ("train_cpu", "train_multi_node_cpu")
    ]
    losses, scores = [], []
    for job, file in zip(jobs, ("train_cpu", "train_multi_node_cpu"), strict=True):
        job.completed()
        lines = (tmp_path / file / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses.append([line["loss"] for line in map(json.loads, lines) if line["kind"] == "train"])
        command = f"scripts/predict.py member={tmp_path}/{file} data={prepared} out={tmp_path} splits=[test] name={file}"
        done = login.shell(f"$PYTHON_ENVIRONMENT/bin/python {command}")
        assert done.returncode == 0, done.stderr
        predicted = predictions.read(tmp_path / f"{file}.test.parquet")
        scores.append(metrics.average_precision(predicted.target, predicted.prediction))
    spread = np.abs(np.array(losses[0]) / np.array(losses[1]) - 1)
    print(f"loss of {len(spread)} steps: first {spread[0]:.1e}, largest {spread.max():.1e}; test {scores}")
    assert spread[0] < TOLERANCE["float32"]
    assert spread.max() < LOSS_SPREAD
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


def test_one_process_a_node_learns_what_one_process_learns(login: Login, tmp_path: Path) -> None:
    """The commands of emulator's README would scale the learning rate by another batch size, or use the rows of one node."""
    data = small_emulators.sea_ice(tmp_path)
    scaling = ("batch_size=100", "learning_rate_scaling=sqrt", "base_batch_size=50", "max_epochs=8", "warmup_steps=2")
    words = ("--recipe", "emulator", f"data={data}", *scaling, "recipe.jacobian_weight=0.1")
    one = login.sbatch("slurm/train_cpu.slurm", *words, f"out={tmp_path}/1")
    two = login.sbatch("slurm/train_multi_node_cpu.slurm", *words, f"out={tmp_path}/2", RANKS_PER_NODE="1")
    curves = []
    for job, num_ranks in ((one, 1), (two, 2)):
        job.completed()
        run = tmp_path / str(num_ranks)
        assert json.loads((run / "summary.json").read_text())["ranks"] == num_ranks
        lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        scores = ("root_mean_squared_error", "r_squared", "jacobian_error")
        curves.append([[line[name] for name in scores] for line in lines if line["kind"] == "val"])
    assert len(curves[0]) == 8
    assert curves[0][-1][0] < 0.9 * curves[0][0][0], "nothing was learned"
    assert np.allclose(curves[0], curves[1], rtol=1e-5, atol=0), curves
