"""Trainings of trees that were killed at random moments resume with --resume auto, and end with the same bits.

    make torture    10 of each library, every other one twice, every other one of XGBoost with memory=low

`make test` skips them; test_resume.py has a short form.

The trainings run by scripts/train_trees.py. TORTURE_SEED=… repeats the moments of a failure.
"""

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import launcher
import numpy as np
import prepared_folders
import pyarrow as pa
import pytest
from tree_members import SCRIPT, TIMEOUT_S, model, saved_trees, words

from ensemble import folders
from ensemble.task import Task
from ensemble.trees.distributed import LIBRARIES

pytestmark = pytest.mark.torture
SEED = os.environ.get("TORTURE_SEED") or str(random.SystemRandom().randrange(10**6))
NUM_TREES = 400
LATEST = 300
"""The largest number of trees at which a training is killed; later it might end before."""
PAUSE_S = 0.03
"""The longest time between a checkpoint and the kill, which is in the next chunk, or while its checkpoint is written."""
SETTINGS = {
    "num_rounds": NUM_TREES, "early_stopping_rounds": NUM_TREES, "threads": 1, "chunk_rounds": 7, "checkpoint_s": 0.0,
}  # fmt: skip
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product")
NUM_ROWS = {"train": 4000, "validation": 2000}
NUM_FEATURES = 12


def command(library: str, data: Path, out: Path, *arguments: str) -> list[str]:
    settings = words(library=library, data=data, out=out, **SETTINGS)
    return [sys.executable, SCRIPT, *settings, *arguments, "--resume", "auto"]


def run(line: list[str], folder: Path) -> str:
    """Run to the end; returns standard error."""
    with launcher.started(line, folder) as process:
        _, output = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data with many trees until the best score, so that the kills are before the end of the training."""
    folder, generator, tables = tmp_path_factory.mktemp("task_data"), np.random.default_rng(0), {}
    names = [f"feature_{number}" for number in range(NUM_FEATURES)]
    floats, whole = [pa.field(name, pa.float32()) for name in names], [("hot", pa.bool_()), ("week", pa.int32())]
    schema = pa.schema([*floats, *whole, ("product", pa.int32()), ("row_id", pa.int64())])
    for split, num_rows in NUM_ROWS.items():
        features = generator.standard_normal((num_rows, NUM_FEATURES), dtype=np.float32)
        hot = features.sum(axis=1) + generator.standard_normal(num_rows) > 4
        number = np.arange(num_rows)
        tables[split] = pa.table([*features.T, hot, number // 100, number, number], schema=schema)
    prepared_folders.write(folder, tables, TASK, [{"name": name} for name in names])
    return folder


@pytest.fixture(scope="module", params=LIBRARIES)
def reference(request: pytest.FixtureRequest, task_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The member of an uninterrupted training without checkpoints."""
    out = tmp_path_factory.mktemp("reference") / request.param
    run(command(request.param, task_data, out, "checkpoint_s=1000"), out.parent)
    assert folders.read_json(out / "summary.json")["trees"] > LATEST, "choose data that take more trees to learn"
    return out


def kill(line: list[str], out: Path, num_trees: int, pause_s: float) -> int:
    """Run a training, and send SIGKILL `pause_s` after at least `num_trees` trees were saved; return the number saved."""
    with launcher.started(line, out.parent) as process:
        status = out.with_name(f"{out.name}.checkpoint") / "status"
        deadline = time.monotonic() + TIMEOUT_S
        while not status.exists() or saved_trees(out) < num_trees:
            assert process.poll() is None, f"the training ended before the kill: {process.communicate()[1]}"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(pause_s)
        before = saved_trees(out)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, "the training ended before the kill"
    return before


@pytest.mark.parametrize("trial", range(10))
def test_a_training_that_was_killed_ends_with_the_same_bits(
    trial: int, reference: Path, task_data: Path, tmp_path: Path
) -> None:
    """A kill at some moment would destroy a checkpoint, or the resumed training would end with another model."""
    library, out = reference.name, tmp_path / "out"
    generator = random.Random(f"{SEED} {library} {trial}")
    low = ["memory=low"] if library == "xgboost" and trial % 2 else []
    num_kills = 1 + trial % 2
    line, output = command(library, task_data, out, *low), [f"\nTORTURE_SEED={SEED} {library}, trial {trial}:"]
    for number in range(num_kills):
        first = max(saved_trees(out), LATEST * number // num_kills)
        moment = generator.randint(first, LATEST * (number + 1) // num_kills)
        saved = kill(line, out, moment, generator.uniform(0, PAUSE_S))
        left = sorted(path.name for path in out.with_name("out.checkpoint").glob(".*"))
        assert saved_trees(out) >= saved, "a valid checkpoint was lost"
        output.append(f"killed with {saved} trees saved, incomplete files: {left};")
    print(*output)
    saved = saved_trees(out)
    result = re.search(r"continuing after (\d+) trees", run(line, tmp_path))
    assert (int(result[1]) if result else 0) == saved, "the training did not resume from its last checkpoint"
    assert model(out) == model(reference)
    assert (out / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
