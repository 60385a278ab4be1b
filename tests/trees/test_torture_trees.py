"""Trainings of trees that are killed at random moments go on with --resume auto to the same bits.

    make test       the short form: one training of each library is killed
    make torture    the long form: 10 of each, every other one twice, every other one of XGBoost with memory=low

Everything goes through scripts/train_trees.py; TORTURE_SEED=… draws the moments of a failure again.
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

from ensemble import folders
from ensemble.task import Task
from ensemble.trees.checkpoint import Checkpoints
from ensemble.trees.distributed import LIBRARIES

LONG = bool(os.environ.get("TORTURE_LONG"))
SEED = os.environ.get("TORTURE_SEED") or str(random.SystemRandom().randrange(10**6))
TIMEOUT_S = 180
NUM_TREES = 400
LATEST = 300
"""Trees after which none is killed any more: it might be done before."""
PAUSE_S = 0.03
"""The kill comes at most so much later than the checkpoint it waits for: in the next chunk, or while that is written."""
SETTINGS = {
    "num_rounds": NUM_TREES, "early_stopping_rounds": NUM_TREES, "threads": 1, "chunk_rounds": 7, "checkpoint_s": 0.0,
}  # fmt: skip
FILES = {"xgboost": "model.ubj", "lightgbm": "model.txt"}
TASK = Task(kind="binary", target="hot", metric="average_precision", group="week", cluster="product")
NUM_ROWS = {"train": 4000, "validation": 2000}
NUM_FEATURES = 12


def command(library: str, data: Path, out: Path, *words: str) -> list[str]:
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    line = [sys.executable, str(launcher.ROOT / "scripts/train_trees.py"), f"library={library}", f"data={data}"]
    return [*line, f"out={out}", *settings, *words, "--resume", "auto"]


def run(line: list[str], folder: Path) -> str:
    """Run to the end; returns standard error."""
    with launcher.started(line, folder) as process:
        _, output = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data that take many trees to learn: a member is cut where it is best, and kills must come before that."""
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
    """The member of a training that nothing happens to, and that writes no checkpoint."""
    out = tmp_path_factory.mktemp("reference") / request.param
    run(command(request.param, task_data, out, "checkpoint_s=1000"), out.parent)
    assert folders.read_json(out / "summary.json")["trees"] > LATEST, "choose data that take more trees to learn"
    return out


def saved_trees(out: Path) -> int:
    """Of the newest checkpoint; 0 if there is none."""
    return max((int(folder.name.removeprefix("trees-")) for folder in Checkpoints(out, "").all()), default=0)


def kill(line: list[str], out: Path, num_trees: int, pause_s: float) -> int:
    """SIGKILL, soon after so many trees were saved; for 0, soon after it began. Returns the trees saved before it."""
    with launcher.started(line, out.parent) as process:
        status = out.with_name(f"{out.name}.checkpoint") / "status"
        deadline = time.monotonic() + TIMEOUT_S
        while not status.exists() or saved_trees(out) < num_trees:
            assert process.poll() is None, f"it ended before the moment came: {process.communicate()[1]}"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(pause_s)
        before = saved_trees(out)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, "it was done already"
    return before


@pytest.mark.parametrize("trial", range(10 if LONG else 1))
def test_a_training_that_was_killed_ends_with_the_same_bits(
    trial: int, reference: Path, task_data: Path, tmp_path: Path
) -> None:
    """A kill at a moment that nobody thought of would cost a checkpoint, or give another model than without it."""
    library, out = reference.name, tmp_path / "out"
    generator = random.Random(f"{SEED} {library} {trial}")
    low = ["memory=low"] if LONG and library == "xgboost" and trial % 2 else []
    num_kills = 1 + (LONG and trial % 2)
    line, output = command(library, task_data, out, *low), [f"\nTORTURE_SEED={SEED} {library}, trial {trial}:"]
    for number in range(num_kills):
        first = max(saved_trees(out), LATEST * number // num_kills)
        moment = generator.randint(first, LATEST * (number + 1) // num_kills)
        saved = kill(line, out, moment, generator.uniform(0, PAUSE_S))
        left = sorted(path.name for path in out.with_name("out.checkpoint").glob(".*"))
        assert saved_trees(out) >= saved, "a sound checkpoint was lost"
        output.append(f"killed with {saved} trees saved, half done: {left};")
    print(*output)
    saved = saved_trees(out)
    result = re.search(r"continuing after (\d+) trees", run(line, tmp_path))
    assert (int(result[1]) if result else 0) == saved, "it did not go on from its last checkpoint"
    for name in (FILES[library], "metrics.jsonl"):
        assert (out / name).read_bytes() == (reference / name).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
