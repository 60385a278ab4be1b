"""scripts/train_elastic.py continues with fewer ranks after a loss, and with more when it can; the batches stay the same.

make test       2 → 1 ranks, and 1 → 2
make torture    4 → 3 ranks at a batch of 1,536, 3 → 2, and 4 → 2 → 4 at 1,024
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import launcher
import psutil
import pytest
import torch
from benchmarks.pains import rows, sides
from benchmarks.pains.recipe.settings import NAME
from safetensors.torch import load_file

from ensemble.neural.division import divisors
from ensemble.neural.loader import BatchPlan

LONG = bool(os.environ.get("TORTURE_LONG"))
ELASTIC = str(launcher.ROOT / "scripts/train_elastic.py")
MULTI_CPU = str(launcher.ROOT / "accelerate_configs/multi_cpu.yaml")
PATH = f"{launcher.ROOT}:{launcher.ROOT / 'scripts'}"
STEPS_PER_EPOCH, CHECKPOINT_STEPS = 5, 20
TIMEOUT_S = 300


class Run:
    """A training of the recipe of `pains`, which records the rows of each step."""

    def __init__(self, folder: Path, batch_size: int, num_epochs: int):
        self.folder, self.out, self.record = folder, folder / "run", folder / "record"
        self.batch_size, self.num_epochs, self.num_steps = batch_size, num_epochs, num_epochs * STEPS_PER_EPOCH
        self.num_rows = batch_size * (STEPS_PER_EPOCH - 1) + batch_size // 2
        self.data = sides.prepared(folder, self.num_rows, max_tokens=3)
        self.environment = {"PAINS_RECORD": str(self.record), "PYTHONPATH": PATH}

    def words(self, out: Path) -> list[str]:
        values = {
            "data": self.data, "out": out, "batch_size": self.batch_size, "max_epochs": self.num_epochs,
            "checkpoint_steps": CHECKPOINT_STEPS, "keep_last": 1000, "patience": 1000, "evaluations_per_epoch": 1,
            "warmup_steps": 0, "trackers": "[]", "clip_norm": 0,
        }  # fmt: skip
        return ["--recipe", NAME, *(f"{name}={value}" for name, value in values.items())]

    @contextlib.contextmanager
    def supervised(self, *options: str | Path) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, ELASTIC, "--config_file", MULTI_CPU, *options, *self.words(self.out)]
        with launcher.started(command, self.folder, self.folder / "errors", **self.environment) as process:
            yield process

    def by_hand(self, checkpoint: Path, ranks: int, micro_batch_size: int) -> Path:
        """The weights of a run that is resumed by hand."""
        out = self.folder / "by_hand"
        start = [*launcher.ACCELERATE, *launcher.MULTI_CPU, "--num_processes", ranks, launcher.TRAIN]
        words = [*self.words(out), "--resume", checkpoint, f"micro_batch_size={micro_batch_size}"]
        code, errors = launcher.run([*start, *words], self.folder, PYTHONPATH=PATH)
        assert code == 0, errors
        return out / "final"

    def ranks(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        """The processes of train.py, by rank."""
        result = []
        for member in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if launcher.TRAIN in member.cmdline()[:3]:
                    result.append(member)
        return sorted(result, key=lambda rank: rank.environ().get("RANK", ""))

    def saved(self) -> int:
        names = [path.name for path in (self.out / "checkpoints").glob("step-*")]
        return int(max(names).removeprefix("step-")) if names else 0

    def wait(self, condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert process.poll() is None, (self.folder / "errors").read_text()
            assert time.monotonic() < deadline, (self.folder / "errors").read_text()
            time.sleep(0.005)

    def assert_same_batches(self) -> None:
        """Each step used the rows of a step of the plan, and all steps of the plan were taken."""
        plan = BatchPlan(self.num_rows, self.batch_size, 0, 1, 0, 0)
        expected = [frozenset(micro.rows.tolist()) for micro in plan.micro_batches(0, self.num_steps)]
        number_of = {batch: number for number, batch in enumerate(expected)}
        taken = [number_of.get(frozenset(step), -1) for step in rows.steps(self.record)]
        assert set(taken) == set(range(self.num_steps))


@pytest.mark.parametrize(
    ("ranks", "batch_size", "left"), [(4, 1536, 3), (3, 1536, 2), (4, 1024, 2)] if LONG else [(2, 1536, 1)]
)
def test_a_lost_rank_is_done_without(ranks: int, batch_size: int, left: int, tmp_path: Path) -> None:
    """The job would wait for a person, use other batches, or end with other weights than a run that is resumed by hand."""
    run = Run(tmp_path, batch_size, num_epochs=48)
    with run.supervised("--num_processes", str(ranks)) as process:
        run.wait(lambda: run.saved() >= CHECKPOINT_STEPS, process)
        run.ranks(process)[1].send_signal(signal.SIGKILL)
        run.wait(lambda: len(run.ranks(process)) == left, process)
        resumed_from = run.saved()
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "errors").read_text()
    errors = (tmp_path / "errors").read_text()
    assert f"continues with {left} ranks instead of {ranks}: {batch_size} = " in errors
    run.assert_same_batches()
    micro = divisors(batch_size // left, batch_size // ranks)[-1]
    assert micro <= batch_size // ranks, "a rank would need more memory than before"
    checkpoint = Path(shutil.copytree(run.out / "checkpoints" / f"step-{resumed_from:08d}", tmp_path / "checkpoint"))
    ours, other = (
        load_file(run_folder / "model.safetensors")
        for run_folder in (run.out / "final", run.by_hand(checkpoint, left, micro))
    )
    assert ours.keys() == other.keys()
    assert [name for name in other if not torch.equal(ours[name], other[name])] == []


@pytest.mark.parametrize(("few", "many", "batch_size"), [(2, 4, 1024)] if LONG else [(1, 2, 64)])
def test_ranks_that_come_back_are_used_from_the_next_checkpoint_on(
    few: int, many: int, batch_size: int, tmp_path: Path
) -> None:
    """A job would use few ranks for days after more became available, or repeat the steps since its last checkpoint."""
    run, capacity = Run(tmp_path, batch_size, num_epochs=90), tmp_path / "capacity"
    capacity.write_text(f"{few}\n")
    with run.supervised("--num_processes", str(many), "--capacity", capacity) as process:
        run.wait(lambda: run.saved() >= CHECKPOINT_STEPS, process)
        assert len(run.ranks(process)) == few
        capacity.write_text(f"{many}\n")
        run.wait(lambda: len(run.ranks(process)) == many, process)
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "errors").read_text()
    assert f"continues with {many} ranks instead of {few}" in (tmp_path / "errors").read_text()
    run.assert_same_batches()
    assert len(rows.steps(run.record)) == run.num_steps, "a step was taken twice, though the run saved before it grew"


def test_a_batch_size_may_come_from_the_data(prepared: Path, tmp_path: Path) -> None:
    """A recipe that chooses its batch size and learning rate by the number of rows would be refused with values of 0."""
    words = ("--recipe", "table", f"data={prepared}", f"out={tmp_path / 'run'}", "--num_processes", "7")
    command = [sys.executable, ELASTIC, "--config_file", MULTI_CPU, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: batch_size=64 must be a positive multiple of 7 ranks: the nearest one is 63")
