"""Runs that are killed, signalled or out of disk at random moments end with bitwise equal weights after --resume auto.

    make test       the short form: one run for each number of ranks, killed twice and signalled once
    make torture    the long form: 15 runs with a kill and 10 signals for each number of ranks, sharded too, and full disks

All runs use the real launcher and scripts/train.py; TORTURE_SEED=… repeats the random moments of a failed test.
"""

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launcher
import psutil
import pytest
import torch
from processes import command_of
from safetensors.torch import load_file

from ensemble import errors, folders, signals
from ensemble.neural import checkpoint

LONG = bool(os.environ.get("TORTURE_LONG"))
SEED = os.environ.get("TORTURE_SEED") or str(random.SystemRandom().randrange(10**6))
TIMEOUT_S = 180
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans of the launcher become children of this process, which gets their exit codes."""

CHECKPOINT_STEPS, KEEP_LAST = 3, 2
SETTINGS: dict[str, Any] = {
    "recipe.width": 32,
    "recipe.num_layers": 1,
    "recipe.num_reviews": 2,
    "learning_rate": 0.01,
    "batch_size": 128 if LONG else 96,
    "micro_batch_size": 32,
    "ema_decay": 0.9,
    "max_epochs": 3 if LONG else 1.2,
    "patience": 100,
    "checkpoint_steps": CHECKPOINT_STEPS,
    "keep_last": KEEP_LAST,
    "log_every": 1,
    "trackers": "[]",
}

KILLS = {"step": 0.4, "save": 0.03, "best": 0.03, "start": 0.4, "end": 0.05, "rank": 0.4}
"""When a run is killed (in a step, writing a checkpoint or best/, at the start, at the end; "rank": one rank, in a step),
and the maximum delay in seconds."""
SIGNALS: dict[str, tuple[signal.Signals, str, str]] = {
    "SIGTERM": (signal.SIGTERM, "launcher", ""),
    "SIGINT": (signal.SIGINT, "launcher", ""),
    "SIGUSR1": (signal.SIGUSR1, "launcher", ""),
    "SIGUSR1, forwarded": (signal.SIGUSR1, "launcher", "SIGTERM,SIGINT,SIGUSR1"),
    "SIGTERM to all": (signal.SIGTERM, "all", ""),
}
"""The signal, its receiver, and the signals that the launcher of several ranks forwards."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A training on `ranks` ranks into the folder `out`."""

    ranks: int
    data: Path
    out: Path
    changed: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_sharded: bool = False

    @property
    def command(self) -> list[str]:
        """The command that starts or resumes the run."""
        several = launcher.MULTI_CPU_SHARDED if self.is_sharded else launcher.MULTI_CPU
        yaml = launcher.SINGLE_CPU if self.ranks == 1 else [*several, "--num_processes", str(self.ranks)]
        values = {"data": self.data, "out": self.out, **SETTINGS, **self.changed}
        words = [f"{name}={value}" for name, value in values.items()]
        return [*launcher.ACCELERATE, *yaml, launcher.TRAIN, "--resume", "auto", *words]

    def finish(self) -> None:
        with launcher.started(self.command, self.out.parent) as process:
            output, errors_of_run = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors_of_run
        assert "damaged" not in output
        assert self.status() == "done"

    def status(self) -> str:
        return (self.out / "status").read_text().splitlines()[0]

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines."""
        file = self.out / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def steps_done(self) -> int:
        return max((line["step"] for line in self.metrics() if line["kind"] == "train"), default=0)

    def checkpoints(self) -> list[str]:
        folder = self.out / "checkpoints"
        return sorted(name for name in os.listdir(folder) if name.startswith("step-")) if folder.exists() else []

    def final_metrics(self) -> list[dict[str, Any]]:
        """The lines that a resume does not remove: an evaluation after the checkpoint is repeated."""
        if not self.saved_step():
            return []
        evaluated = folders.read_json(self.newest() / "state.json")["progress"]["evaluated_step"]
        last = {"train": self.saved_step(), "val": evaluated}
        return [line for line in self.metrics() if line["step"] <= last[line["kind"]]]

    def saved_step(self) -> int:
        return int(self.checkpoints()[-1].removeprefix("step-")) if self.checkpoints() else 0

    def newest(self) -> Path:
        return checkpoint.step_folder(self.out, self.saved_step())

    def identity(self, name: str) -> int:
        """The inode, which changes when the file or folder is replaced; 0 if there is none."""
        try:
            return (self.out / name).stat().st_ino
        except FileNotFoundError:
            return 0

    def incomplete(self) -> list[str]:
        """Temporary folders of a write, replacement or deletion, in progress or interrupted by a kill."""
        return sorted(path.name for path in [*self.out.glob(".*"), *(self.out / "checkpoints").glob(".*")])


@pytest.fixture(scope="module", autouse=True)
def adopt_orphans() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture(scope="module", params=["1", "2", "4", "2_sharded"] if LONG else ["3"], ids="{}_ranks".format)
def reference(request: pytest.FixtureRequest, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The uninterrupted run. The last bits of a sum depend on its order only with three or more ranks."""
    ranks, _, sharded = request.param.partition("_")
    run = Run(int(ranks), prepared, tmp_path_factory.mktemp("reference") / "run", is_sharded=bool(sharded))
    run.finish()
    return run


def random_generator(*trial: object) -> random.Random:
    """The generator of one trial; pytest shows the printed line if the test fails."""
    print(f"\nTORTURE_SEED={SEED} ", *trial)
    return random.Random(f"{SEED} {trial}")


@contextlib.contextmanager
def training(run: Run, step: int, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """The run and its ranks, once it has reached `step` and a new step; for step 0, once it has opened its folder."""
    step, old_config = step and max(step, run.steps_done() + 1), run.identity("config.json")
    with launcher.started(run.command, run.out.parent, **environment) as process:
        wait_for(lambda: run.identity("config.json") != old_config and run.steps_done() >= step, process, 0.005)
        children = psutil.Process(process.pid).children()
        ranks = [child for child in children if launcher.TRAIN in command_of(child)]
        yield process, sorted(ranks, key=lambda rank: rank.environ().get("RANK", ""))


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str], pause_s: float) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert process.poll() is None, f"it ended before the condition was true: {process.communicate()[1]}"
        assert time.monotonic() < deadline
        time.sleep(pause_s)


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]


def exit_codes(family: list[psutil.Process]) -> dict[int, int]:
    """Wait until all processes have ended; returns the exit codes of the orphans of the launcher."""
    deadline, codes = time.monotonic() + TIMEOUT_S, {}
    while running := [member for member in family if member.pid not in codes and member.is_running()]:
        assert time.monotonic() < deadline, f"orphans: {running}"
        for member in running:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(member.pid, os.WNOHANG)
                if pid:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return codes


def random_delay(most_s: float, generator: random.Random) -> float:
    """A random delay; 0 in the short form, whose runs could end before it."""
    return generator.uniform(0, most_s) if LONG else 0


def kill(run: Run, step: int, moment: str, generator: random.Random) -> None:
    """Send SIGKILL at `step` or soon after; no complete checkpoint may be lost except those to be deleted."""
    with training(run, 0 if moment == "start" else step) as (process, ranks):
        family, saved, best = family_of(process), run.checkpoints(), run.identity("best")
        conditions: dict[str, Callable[[], object]] = {
            "save": lambda: any((run.out / "checkpoints").glob(".*")) or run.checkpoints() != saved,
            "best": lambda: any(run.out.glob(".best.*")) or run.identity("best") != best,
            "end": lambda: any(run.out.glob(".final.*")) or run.identity("final"),
        }
        wait_for(conditions.get(moment, lambda: True), process, 0.0003)
        time.sleep(random_delay(KILLS[moment], generator))
        generator.shuffle(family)
        before, had_best = run.checkpoints(), run.identity("best")
        for member in [generator.choice(ranks)] if moment == "rank" else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.communicate(timeout=TIMEOUT_S)
        exit_codes(family)
    assert process.returncode
    after = run.checkpoints()
    assert set(sorted({*before, *after})[-KEEP_LAST:]) <= set(after), "a complete checkpoint was lost"
    assert len(after) >= min(KEEP_LAST, run.saved_step() // CHECKPOINT_STEPS), "a complete checkpoint was lost"
    assert run.saved_step() >= run.steps_done() - 2 * CHECKPOINT_STEPS, "more than the checkpoint being written was lost"
    for name in after:
        folders.verify(run.out / "checkpoints" / name)
    assert not had_best or [path for path in (run.out / "best", *run.out.glob(".best.old-*")) if folders.verify(path)]
    print(f"  killed: {moment}, at step {run.steps_done()}, saved {run.saved_step()}, incomplete {run.incomplete()}")


def ask_to_stop(run: Run, step: int, name: str, generator: random.Random) -> None:
    """Send a signal at `step` or soon after; the run must save its current step, and leave no process running."""
    number, receiver, forwarded = SIGNALS[name]
    environment = {"PET_SIGNALS_TO_HANDLE": forwarded} if forwarded else {}
    with training(run, step, **environment) as (process, ranks):
        family = family_of(process)
        time.sleep(random_delay(0.2, generator))
        reached = run.steps_done()
        for member in family if receiver == "all" else family[-1:]:
            member.send_signal(number)
        _, errors_of_run = process.communicate(timeout=TIMEOUT_S)
        codes = exit_codes(family)
    assert process.returncode
    assert run.status() == "preempted", errors_of_run
    assert reached <= run.saved_step() == run.steps_done(), errors_of_run
    folders.verify(run.newest())
    codes_of_ranks = [codes[rank.pid] for rank in ranks if rank.pid in codes]
    assert set(codes_of_ranks) <= {errors.PREEMPTED}, errors_of_run
    print(f"  {name} at step {run.saved_step()}: launcher {process.returncode}, orphaned ranks {codes_of_ranks}")


def assert_same(run: Run, reference: Run) -> None:
    """Bitwise equal: weights, optimizer, average, random states, progress, and the metrics of each step."""
    assert run.checkpoints() == reference.checkpoints()
    files = ["best/model.safetensors", "final/model.safetensors"]
    files += [str(file.relative_to(reference.out)) for file in reference.newest().glob("*.safetensors")]
    assert len(files) == (5 if reference.is_sharded else 4)
    for file in files:
        actual, expected = (load_file(each.out / file) for each in (run, reference))
        assert actual.keys() == expected.keys()
        different = [name for name in expected if not torch.equal(actual[name], expected[name])]
        assert not different, file
    clock = {"seconds": 0, "evaluation_seconds": 0}
    progress = [folders.read_json(each.newest() / "state.json")["progress"] | clock for each in (run, reference)]
    assert progress[0] == progress[1]
    timing = {"time_s", "samples_per_s", "data_wait"}
    metrics = [[{name: line[name] for name in line.keys() - timing} for line in each.metrics()] for each in (run, reference)]
    assert metrics[0] == metrics[1]
    assert run.incomplete() == []


def trials(ranks: int) -> list[list[str]]:
    """For each run, the kills and signals that interrupt it, in order."""
    kinds = [kind for kind in KILLS if kind != "rank" or ranks > 1]
    if not LONG:
        return [[random.Random(SEED).choice(list(SIGNALS)), "save", *(["step"] if ranks == 1 else [])]]
    killed = [["save", kind] if kind == "start" else [kind] for kind in itertools.islice(itertools.cycle(kinds), 15)]
    return [*killed, list(SIGNALS), list(SIGNALS)[::-1]]


@pytest.mark.parametrize("trial", range(17 if LONG else 1))
def test_an_interrupted_run_ends_with_the_same_bits(trial: int, reference: Run, tmp_path: Path) -> None:
    """A kill would lose a complete checkpoint, a signal a step, or the run would continue from another state."""
    interruptions = trials(reference.ranks)[trial]
    generator = random_generator(f"{reference.ranks} ranks, trial {trial}:", interruptions)
    changed = {"num_workers": 1} if LONG and trial in (1, 16) else {}
    run = dataclasses.replace(reference, out=tmp_path / "run", changed=changed)
    last_step = reference.steps_done()
    scores = [(line["step"], line["average_precision"]) for line in reference.metrics() if line["kind"] == "val"]
    better = [step for number, (step, score) in enumerate(scores) if score > max([-1, *(s for _, s in scores[:number])])]
    before: list[dict[str, Any]] = []
    for number, interruption in enumerate(interruptions):
        step = max(1, int(2 / 3 * last_step * (number + generator.random()) / len(interruptions)))
        if interruption in SIGNALS:
            ask_to_stop(run, step, interruption, generator)
        else:
            kill(
                run,
                {"best": generator.choice(better) - 1, "end": last_step - 1}.get(interruption, step),
                interruption,
                generator,
            )
        assert run.metrics()[: len(before)] == before, "it started from scratch"
        before = run.final_metrics()
    moved = tmp_path / "data"  # as if each job copied the data to a local disk
    moved.symlink_to(run.data)
    dataclasses.replace(run, data=moved).finish()
    assert run.metrics()[: len(before)] == before, "it started from scratch"
    assert_same(run, reference)


@pytest.mark.torture
def test_a_killed_run_resumes_on_another_number_of_ranks(prepared: Path, tmp_path: Path) -> None:
    """A run could not continue on another machine, or rows would be used twice or never. The order of sums differs."""
    generator = random_generator("other ranks")
    two = Run(2, prepared, tmp_path / "two", {"recipe.dropout": 0})
    two.finish()
    moved = dataclasses.replace(two, out=tmp_path / "moved")
    kill(moved, generator.randint(5, 40), "step", generator)
    resumed_at = moved.saved_step()
    before = [line for line in moved.metrics() if line["step"] <= resumed_at]
    dataclasses.replace(moved, ranks=1).finish()
    assert moved.metrics()[: len(before)] == before, "it started from scratch"
    actual, expected = (load_file(each.out / "final/model.safetensors") for each in (moved, two))
    actual_flat, expected_flat = (
        torch.cat([weights[name].double().flatten() for name in expected]) for weights in (actual, expected)
    )
    error = float(torch.linalg.norm(actual_flat - expected_flat) / torch.linalg.norm(expected_flat))
    print(f"  resumed from step {resumed_at} on one rank: relative error {error:.2g}")
    assert error <= 1e-5
    ranks = [folders.read_json(each.out / "summary.json")["ranks"] for each in (moved, two)]
    assert ranks == [1, 2], "it did not change the number of ranks"
    losses = [[line["loss"] for line in each.metrics() if line["kind"] == "train"] for each in (moved, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.torture
def test_a_second_signal_ends_a_run_that_cannot_finish_its_step(prepared: Path, tmp_path: Path) -> None:
    """A run whose ranks wait for each other could only be ended by SIGKILL, or its last checkpoint would be lost."""
    run = Run(2, prepared, tmp_path / "run")
    with training(run, 5) as (process, ranks):
        family = family_of(process)
        wait_for(run.checkpoints, process, 0.005)
        ranks[1].suspend()
        time.sleep(1)
        before = run.checkpoints()
        ranks[0].send_signal(signal.SIGUSR1)
        time.sleep(signals.ECHO_S / 2)
        ranks[0].send_signal(signal.SIGUSR1)
        time.sleep(signals.ECHO_S / 2 + 1)
        assert ranks[0].status() != psutil.STATUS_ZOMBIE
        ranks[0].send_signal(signal.SIGUSR1)
        with contextlib.suppress(psutil.NoSuchProcess):
            wait_for(lambda: not ranks[0].is_running() or ranks[0].status() == psutil.STATUS_ZOMBIE, process, 0.01)
        ranks[1].resume()
        _, errors_of_run = process.communicate(timeout=TIMEOUT_S)
        exit_codes(family)
    assert f"exitcode  : {128 + signal.SIGUSR1}" in errors_of_run, errors_of_run
    assert run.checkpoints() == before
    folders.verify(run.newest())


@pytest.mark.torture
@pytest.mark.parametrize("room", [0, 2 << 20], ids=["not_even_for_logs", "not_for_a_checkpoint"])
def test_a_full_disk_keeps_the_last_checkpoint(room: int, reference: Run, small_disk: Path) -> None:
    """A full disk would damage the existing checkpoint, or hide the cause behind tracebacks."""
    run = dataclasses.replace(reference, out=small_disk / "run")
    ballast = small_disk / "ballast"
    with training(run, 5) as (process, _):
        wait_for(run.checkpoints, process, 0.001)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(1 << 16))
        if room:
            os.truncate(ballast, ballast.stat().st_size - room)
        family = family_of(process)
        _, errors_of_run = process.communicate(timeout=TIMEOUT_S)
        exit_codes(family)
    assert process.returncode
    sentences = [line for line in errors_of_run.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, errors_of_run
    assert "room" in sentences[0]
    assert "Traceback" not in errors_of_run.split("error: ")[0]
    folders.verify(run.newest())
    ballast.unlink()
    run.finish()
    assert_same(run, reference)
