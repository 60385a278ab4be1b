"""A fit by an array of tasks, some of which are killed: it equals a fit in one process, and trains no copy twice."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fits
import numpy as np
import polars as pl
import pytest
from conftest import ROOT, Job, Login
from processes import command_of

from ensemble import predictions

NUM_ROWS, NUM_NEW, NUM_FOLDS = 2000, 20, 3
WORDS = ("target=y", "id=who", f"num_folds={NUM_FOLDS}", "members=[lightgbm,xgboost,catboost]", "num_draws=10", "threads=1")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table on which each copy is trained for some seconds."""
    generator = np.random.default_rng(0)
    numbers = generator.standard_normal((NUM_ROWS, 12))
    truth = numbers[:, :4].sum(axis=1) + numbers[:, 4] * numbers[:, 5] + generator.standard_normal(NUM_ROWS)
    frame = pl.DataFrame({f"x{number}": column for number, column in enumerate(numbers.T)})
    frame = frame.with_columns(
        who=pl.Series([f"p{row}" for row in range(NUM_ROWS)]),
        colour=pl.Series(generator.choice(["amber", "blue", "coral"], NUM_ROWS)),
        y=pl.when(pl.int_range(NUM_ROWS) < NUM_ROWS - NUM_NEW).then(pl.Series(truth)),
    )
    file = tmp_path_factory.mktemp("table") / "people.csv"
    frame.write_csv(file)
    return file


def python(*words: str | Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, *(str(word) for word in words)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended_well(process: "subprocess.Popen[str]") -> str:
    _, words = process.communicate(timeout=300)
    assert process.returncode == 0, words
    return words


def test_a_table(login: Login, table: Path, tmp_path: Path) -> None:
    """A cluster would give another ensemble than one machine, or a killed task would repeat all of its work."""
    out, local = tmp_path / "out", tmp_path / "local"
    path = f"{slow_scontrol(tmp_path / 'bin')}:{os.environ['PATH']}"
    jobs = login.submit_all(out, "train_single_gpu.slurm", f"source=[{table}]", *WORDS, PATH=path)
    login.cluster.slurm("scontrol", "hold", jobs["members"].id)  # this job deletes the stored copies
    tasks = [Job(login.cluster, f"{jobs['copies'].id}_{number}") for number in range(2)]
    first = [interrupted_after_a_copy(task, is_killed) for task, is_killed in zip(tasks, (True, False), strict=True)]
    with python("scripts/fit.py", f"source=[{table}]", *WORDS, f"out={local}", "time_limit=0") as alone:
        for task, (copy, files) in zip(tasks, first, strict=True):
            log = task.completed().log()
            assert task.facts()["Restarts"] == "1"
            assert log.count(f"trained: {copy}") == log.count(f"{copy} is trained already") == 1, log
            assert files == written(out, copy), "it was written anew"
        login.cluster.slurm("scontrol", "release", jobs["members"].id)
        for task, reason in zip(tasks, ("lost: .*", "preempted by a signal, saved"), strict=True):
            assert re.search(rf"^fit_copies \d+: {reason}: requeued$", task.log(), re.MULTILINE), task.log()
        trained = [copy for task in tasks for copy in re.findall(r"^trained: (copy .*)$", task.log(), re.MULTILINE)]
        assert len(trained) == len(set(trained)) == 3 * NUM_FOLDS
        assert "done: no neural member is planned" in jobs["neural"].completed().log()
        assert jobs["fit"].completed().log().count("is complete already") == 3
        ended_well(alone)
    same(out, local)
    words = (f"ensemble={out}/ensemble", f"source=[{table}]", f"out={tmp_path}/new")
    ended_well(python("scripts/ensemble_predictor.py", "predict", *words))
    assert len(pl.read_csv(tmp_path / "new/forecast.csv")) == NUM_ROWS


def slow_scontrol(folder: Path) -> Path:
    """A folder with a `scontrol` that answers two seconds late: by then Slurm has sent SIGTERM to what it requeues."""
    folder.mkdir()
    program = folder / "scontrol"
    program.write_text(f'#!/bin/bash\n{shutil.which("scontrol")} "$@" || exit\nsleep 2\n')
    program.chmod(0o755)
    return folder


def interrupted_after_a_copy(task: Job, is_killed: bool) -> tuple[str, dict[Path, tuple[int, int]]]:
    """Once a copy is trained, kill the process of a task, or send it a signal. Returns that copy and its files."""
    task.until(lambda: "\ntrained: copy" in task.log(), "train a copy")
    (copy,) = re.findall(r"^trained: (copy .*)$", task.log(), re.MULTILINE)[:1]
    if is_killed:
        process(task).kill()
    else:
        task.cluster.slurm("scancel", "--signal=USR1", "--batch", task.id)
    return copy, written(Path(copy.split(" of ")[1]).parents[1], copy)


def process(task: Job) -> Any:
    """The Python process of a task."""
    array, number = task.id.split("_")
    variables = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": number}
    for node in ("node1", "node2"):
        for candidate in task.cluster.processes(node):
            is_fit = "scripts/fit.py" in command_of(candidate)[1:2]
            if is_fit and variables.items() <= candidate.environ().items():
                return candidate
    raise AssertionError(f"task {task.id} runs nowhere")


def written(out: Path, copy: str) -> dict[Path, tuple[int, int]]:
    """The files of a stored copy, with inode and time."""
    words = re.fullmatch(r"copy (\d+) of (.*)", copy)
    assert words
    folder = Path(f"{words[2]}.copies") / f"{words[1]}.checkpoint"
    files = [file for file in folder.rglob("*") if file.name in ("copy.bin", "state.json")]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def same(out: Path, local: Path) -> None:
    """Both folders have the same files, with the same bits except where they contain folders or seconds."""
    names = [sorted(str(file.relative_to(folder)) for file in folder.rglob("*")) for folder in (out, local)]
    assert names[0] == names[1]
    result, expected = fits.bits(out), fits.bits(local)
    assert [name for name in result if result[name] != expected[name] and "predictions/" not in name] == []
    for file in (out / "predictions").iterdir():
        mine, other = predictions.read(file), predictions.read(local / "predictions" / file.name)
        assert mine.prediction.tobytes() == other.prediction.tobytes()
    described = [json.loads((folder / "ensemble/ensemble.json").read_text()) for folder in (out, local)]
    for content in described:
        for member in content["members"].values():
            del member["model"]  # the checksum of a folder that names seconds
    assert described[0] == described[1]
