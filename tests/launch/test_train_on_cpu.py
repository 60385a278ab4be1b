"""Ranks that are forked from one process: the same weights as with `accelerate launch`, and the same exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from launcher import ACCELERATE, MULTI_CPU, TRAIN, run, started
from safetensors.torch import load_file

from ensemble import errors, folders

TIMEOUT_S = 180
FORKED = [sys.executable, "-m", "ensemble.commands.train_on_cpu", "--num_processes", "2"]
TINY = ["recipe.width=8", "recipe.num_layers=1", "recipe.num_reviews=0", "learning_rate=0.01", "log_every=1"]


def words(data: Path, out: Path, *more: str, **values: Any) -> list[str]:
    return [f"data={data}", f"out={out}", *TINY, *(f"{name}={value}" for name, value in values.items()), *more]


def ranks_in_training(process: subprocess.Popen[str], out: Path, printed: Path) -> list[psutil.Process]:
    """The ranks in their order, once the training has made a step."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None, printed.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2, "a rank must be a child, without a launcher of its own"
    return sorted(children, key=lambda child: (child.create_time(), child.pid))


def test_forked_ranks_learn_the_same_bits(prepared: Path, tmp_path: Path) -> None:
    """A fit would give other bits than the steps of its README, or train on one rank, or twice."""
    launches = {"forked": FORKED, "launched": [*ACCELERATE, *MULTI_CPU, TRAIN]}
    for name, command in launches.items():
        code, printed = run([*command, *words(prepared, tmp_path / name, max_epochs=0.3, batch_size=256)], tmp_path)
        assert code == 0, printed
    summaries = [folders.read_json(tmp_path / name / "summary.json") for name in launches]
    for key in ("ranks", "device", "precision", "steps", "best_step"):
        assert summaries[0][key] == summaries[1][key], key
    assert summaries[0]["ranks"] == 2
    assert folders.read_json(tmp_path / "forked" / "environment.json")["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    forked, launched = (load_file(tmp_path / name / "final/model.safetensors") for name in launches)
    assert forked.keys() == launched.keys()
    assert all(torch.equal(forked[name], launched[name]) for name in forked)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.torture) for number in (signal.SIGTERM, signal.SIGUSR1))],
    ids=lambda number: number.name,
)
def test_a_signal_to_the_launcher_saves(number: signal.Signals, prepared: Path, tmp_path: Path) -> None:
    """A fit that is interrupted would lose its network's training."""
    out, printed = tmp_path / "run", tmp_path / "printed"
    arguments = words(prepared, out, max_epochs=400, batch_size=64, patience=10**6)
    with started([*FORKED, *arguments], tmp_path, printed) as process:
        ranks_in_training(process, out, printed)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == errors.PREEMPTED, printed.read_text()
    assert (out / "status").read_text() == "preempted\n"
    assert len(list((out / "checkpoints").iterdir())) == 1


def test_ranks_save_when_the_launcher_is_killed(prepared: Path, tmp_path: Path) -> None:
    """The ranks would train on, beside those of the next start."""
    out, printed = tmp_path / "run", tmp_path / "printed"
    arguments = words(prepared, out, max_epochs=400, batch_size=64, patience=10**6)
    with started([*FORKED, *arguments], tmp_path, printed) as process:
        ranks = ranks_in_training(process, out, printed)
        process.kill()
        _, alive = psutil.wait_procs(ranks, TIMEOUT_S)
        for rank in alive:
            rank.kill()
    assert not alive
    assert (out / "status").read_text() == "preempted\n"


def test_a_killed_rank_ends_the_launch(prepared: Path, tmp_path: Path) -> None:
    """The fit would wait for ever, or take the training for complete."""
    out, printed = tmp_path / "run", tmp_path / "printed"
    arguments = words(prepared, out, max_epochs=400, batch_size=64, patience=10**6, timeout_s=10)
    with started([*FORKED, *arguments], tmp_path, printed) as process:
        ranks = ranks_in_training(process, out, printed)
        os.kill(ranks[1].pid, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) in (128 + signal.SIGKILL, errors.FAILED)
        assert not ranks[0].is_running()
    assert (out / "status").read_text().startswith("lost\nrank 1 of 2 ")


@pytest.mark.parametrize(
    "mistake", ["batch_size=33", "batchsize=16", pytest.param("data=nowhere", marks=pytest.mark.torture)]
)
def test_an_error_is_one_sentence(mistake: str, prepared: Path, tmp_path: Path) -> None:
    """Each rank would print it, or the launcher a traceback."""
    code, printed = run([*FORKED, *words(prepared, tmp_path / "run", mistake)], tmp_path)
    assert code == errors.USER_ERROR
    assert printed.count("error: ") == 1, printed
    assert "Traceback" not in printed
    assert not (tmp_path / "run").exists()


def test_a_launch_of_no_process_is_refused(tmp_path: Path) -> None:
    """The command would succeed without a training."""
    code, printed = run([*FORKED[:-1], "0", "data=nowhere", "out=run"], tmp_path)
    assert (code, printed) == (errors.USER_ERROR, "error: --num_processes 0 is impossible: it must be at least 1\n")
