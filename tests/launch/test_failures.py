"""Ranks that die, fail, hang or run short of memory, through the real launcher: what the others say, and that it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [str(Path(sys.executable).with_name("accelerate")), "launch"]
MULTI_CPU = ["--config_file", str(ROOT / "accelerate_configs/multi_cpu.yaml")]
TIMEOUT_S = 180


@contextmanager
def two_ranks(script: str, folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A script on two ranks, which writes its errors to `folder`; whatever is still there at the end is killed."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    settings = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [*LAUNCH, *MULTI_CPU, str(ROOT / script), *words],
            cwd=folder,
            env={**inherited, **settings, **environment},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()
            process.wait()


def said(folder: Path) -> list[str]:
    """The sentences of the ranks that lost another."""
    return [line for line in (folder / "errors").read_text().splitlines() if line.startswith("failed: ")]


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        ("kill", "died, last seen at step 37: the launcher says with which exit code (-9: often out of memory)"),
        ("raise", "failed at step 37: ValueError: a row is damaged"),
    ],
    ids=["kill", "raise"],
)
def test_a_rank_that_ends_is_named_and_the_job_ends(failure: str, end: str, tmp_path: Path) -> None:
    """The job would end in Gloo's traceback of the rank that is sound, or wait for its time-out."""
    with two_ranks("tests/launch/failing_ranks.py", tmp_path, str(tmp_path), failure, "37") as process:
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = said(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert sentence.endswith(f", pid {(tmp_path / 'pid').read_text()}) {end}")
    collectives = json.loads((tmp_path / "collectives.rank0.json").read_text())
    assert collectives["entries"][-1]["profiling_name"] == "gloo:all_reduce"


def test_a_rank_that_hangs_is_named_and_the_job_ends(tmp_path: Path) -> None:
    """The job would end after its time-out without a word on which rank, and where it stopped."""
    with two_ranks("tests/launch/failing_ranks.py", tmp_path, str(tmp_path), "stop", "37") as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not said(tmp_path):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # A stopped process heeds no SIGTERM, and the launcher would kill it half a minute later
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = said(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert "has given no sign of life since step 37, " in sentence
    assert sentence.endswith("(timeout_s=10): its process is stopped")


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, " died, last seen at step "), (signal.SIGSTOP, " has given no sign of life since step ")],
    ids=["kill", "stop"],
)
def test_a_training_that_loses_a_rank_says_so(number: signal.Signals, words: str, prepared: Path, tmp_path: Path) -> None:
    """The loop would not tell its heart where it is, or end in a traceback of Gloo; or the folder would say that it runs."""
    out = tmp_path / "run"
    tiny = ["recipe.width=8", "recipe.num_layers=1", "recipe.num_reviews=0", "batch_size=16", "log_every=1", "max_epochs=50"]
    words_of_run = [f"data={prepared}", f"out={out}", "timeout_s=10", "patience=1000", *tiny]
    with two_ranks("scripts/train.py", tmp_path, *words_of_run) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not (out / "train.log").exists() or len((out / "train.log").read_text().splitlines()) < 20:
            assert process.poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        (rank_1,) = [member for member in family if member.environ().get("RANK") == "1"]
        rank_1.send_signal(number)
        while not said(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if number == signal.SIGSTOP:
            rank_1.kill()
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = said(tmp_path)
    assert f"failed: rank 1 of 2 (host {socket.gethostname()}, pid {rank_1.pid}) " in sentence
    assert words in sentence
    assert (out / "status").read_text() == "failed\n"


def test_ranks_halve_the_micro_batch_together(tmp_path: Path) -> None:
    """The rank that is short of memory would end the run, or the ranks would cut the batch differently and hang."""
    # glibc, too, reserves address space, which is what the worker limits: it must give back what it has no use for
    honest = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    with two_ranks("tests/launch/short_of_memory.py", tmp_path, str(tmp_path), **honest) as process:
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "errors").read_text()
    one, two = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one == two
    micro = one["micro_batch_size"]
    assert 1 < micro < 16384
    assert one["sentences"] == [
        "out of memory on rank 1: 32768 = 16384 × 2 ranks × 1 accumulated "
        f"becomes 32768 = {micro} × 2 ranks × {16384 // micro} accumulated"
    ]
    assert not one["left_a_trace"]
