"""Ranks that die, fail, hang or run out of memory, with the real launcher: the messages of the others, and the end."""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import launcher
import psutil
import pytest
import scripts_run

from ensemble import folders

TIMEOUT_S = 180


def two_ranks(script: str, folder: Path, *words: str, **environment: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A script on two ranks, which writes its errors to `folder`."""
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU, launcher.ROOT / script, *words]
    return launcher.started(command, folder, folder / "errors", ACCELERATE_USE_CPU="true", **environment)


def fail_together(script: str, folder: Path, *words: str) -> None:
    """The same in forked ranks, which must fail."""
    path = launcher.ROOT / script
    code, errors = scripts_run.launched(*launcher.MULTI_CPU, path, *words, folder=folder)
    (folder / "errors").write_text(errors)
    assert code == 1, errors


def messages(folder: Path) -> list[str]:
    """The messages of the ranks that lost another."""
    return [line for line in (folder / "errors").read_text().splitlines() if line.startswith("failed: ")]


@pytest.mark.parametrize(
    ("failure", "end"),
    [
        pytest.param(
            "kill",
            "died, last seen at step 37: the launcher prints its exit code (-9: often out of memory)",
            marks=pytest.mark.torture,
        ),
        ("raise", "failed at step 37: ValueError: a row is damaged"),
    ],
    ids=["kill", "raise"],
)
def test_a_rank_that_ends_is_named_and_the_job_ends(failure: str, end: str, tmp_path: Path) -> None:
    """The job would end in Gloo's traceback on the other rank, or wait for the time-out.

    A script that reads the status would restart a run that fails again, or give up one that lost a machine.
    """
    with two_ranks("tests/launch/failing_ranks.py", tmp_path, str(tmp_path), failure, "37") as process:
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = messages(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert sentence.endswith(f", pid {(tmp_path / 'pid').read_text()}) {end}")
    word, reason = (tmp_path / "status").read_text().splitlines()
    if failure == "raise":
        assert (word, reason) == ("failed", f"rank 1 of 2 (host {socket.gethostname()}): ValueError: a row is damaged")
    else:
        assert (word, f"failed: {reason}") == ("lost", sentence)
    collectives = json.loads((tmp_path / "collectives.rank0.json").read_text())
    assert collectives["entries"][-1]["profiling_name"] == "gloo:all_reduce"


@pytest.mark.torture
def test_a_rank_that_hangs_is_named_and_the_job_ends(tmp_path: Path) -> None:
    """The job would end after the time-out without the name of the rank and where it hangs."""
    with two_ranks("tests/launch/failing_ranks.py", tmp_path, str(tmp_path), "stop", "37") as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not messages(tmp_path):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # A stopped process does not handle SIGTERM, and the launcher would kill it half a minute later
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = messages(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert "has not responded since step 37, " in sentence
    assert sentence.endswith("(timeout_s=10): its process is stopped")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, " died, last seen at step "),
        pytest.param(signal.SIGSTOP, " has not responded since step ", marks=pytest.mark.torture),
    ],
    ids=["kill", "stop"],
)
def test_a_training_that_loses_a_rank_reports_it(number: signal.Signals, words: str, prepared: Path, tmp_path: Path) -> None:
    """The loop would not call `beat`, or end in a traceback of Gloo, or the status would stay `running`."""
    out = tmp_path / "run"
    tiny = ["recipe.width=8", "recipe.num_layers=1", "recipe.num_reviews=0", "batch_size=16", "log_every=1", "max_epochs=50"]
    arguments = [f"data={prepared}", f"out={out}", "timeout_s=10", "patience=1000", *tiny]
    with two_ranks("scripts/train.py", tmp_path, *arguments) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not (out / "train.log").exists() or len((out / "train.log").read_text().splitlines()) < 20:
            assert process.poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        (rank_1,) = [member for member in family if member.environ().get("RANK") == "1"]
        rank_1.send_signal(number)
        while not messages(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if number == signal.SIGSTOP:
            rank_1.kill()
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = messages(tmp_path)
    assert f"failed: rank 1 of 2 (host {socket.gethostname()}, pid {rank_1.pid}) " in sentence
    assert words in sentence
    assert (out / "status").read_text() == f"lost\n{sentence.removeprefix('failed: ')}\n"


def assert_printed(folder: Path, *sentences: str) -> None:
    """Check that the ranks printed these sentences once each, and that only the launcher printed a traceback.

    The last line of its traceback repeats a sentence.
    """
    errors = (folder / "errors").read_text()
    assert errors.count("error: ") == len(sentences), errors
    # The order of sentences and line ends is random: both ranks write to the same file
    assert all(errors.count(f"error: {sentence}\n") + errors.count(f"error: {sentence}error: ") for sentence in sentences), (
        errors
    )
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.splitlines()[-2].removeprefix("  traceback : ") in sentences, errors


@pytest.mark.parametrize(
    ("failure", "sentences"),
    [
        ("broken", ["rank 1 of 2 (host {host}): rows.arrow is missing", "rows.arrow is missing"]),
        ("other", ["the data of rank 1 differ from those of rank 0: give every node a copy of the same folder"]),
    ],
)
def test_ranks_with_different_data_end_together(failure: str, sentences: list[str], tmp_path: Path) -> None:
    """The other nodes would wait for a node with a damaged copy, or two nodes would train on different data."""
    fail_together("tests/launch/disagreeing_ranks.py", tmp_path, str(tmp_path / "run"), failure)
    assert_printed(tmp_path, *(sentence.format(host=socket.gethostname()) for sentence in sentences))
    assert not (tmp_path / "run").exists()


def test_a_micro_batch_that_does_not_divide_is_printed_once(prepared: Path, tmp_path: Path) -> None:
    """Each rank would print the same sentence."""
    arguments = [f"data={prepared}", f"out={tmp_path / 'run'}", "batch_size=16", "micro_batch_size=3"]
    fail_together("scripts/train.py", tmp_path, *arguments)
    nearest = "the nearest that does is micro_batch_size=2"
    assert_printed(tmp_path, f"micro_batch_size=3 × 2 ranks does not divide batch_size=16: {nearest}")
    assert not (tmp_path / "run").exists()


def test_ranks_wait_for_a_lock_for_less_than_their_time_limit(prepared: Path, tmp_path: Path) -> None:
    """The other ranks, which wait for rank 0, would end the launch in a traceback of Gloo after timeout_s."""
    out = tmp_path / "run"
    out.mkdir()
    words = [launcher.TRAIN, f"data={prepared}", f"out={out}", "timeout_s=8", "--resume", "auto"]
    with folders.locked(out, "training in"):
        code, errors = scripts_run.launched(*launcher.MULTI_CPU, *words, folder=tmp_path)
    assert code == 1
    assert f"error: another command is training in {out}: wait until it has ended" in errors, errors


def test_damaged_data_end_all_ranks(prepared_copy: Path, tmp_path: Path) -> None:
    """One rank verifies the data: the other one would wait, end in a traceback, or repeat the sentence."""
    file = max(prepared_copy.rglob("*.arrow"), key=lambda file: file.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    fail_together("scripts/train.py", tmp_path, f"data={prepared_copy}", f"out={tmp_path / 'run'}")
    sentence = f"{file} was changed after it was written: run the stage that wrote it again"
    assert_printed(tmp_path, sentence)
    assert not (tmp_path / "run").exists()


def test_ranks_halve_the_micro_batch_together(tmp_path: Path) -> None:
    """The rank without memory would end the run, or the ranks would use different micro-batches and hang."""
    # The worker limits its address space, so glibc must return unused memory
    glibc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    with two_ranks("tests/launch/short_of_memory.py", tmp_path, str(tmp_path), **glibc) as process:
        assert process.wait(TIMEOUT_S) == 0, (tmp_path / "errors").read_text()
    one, two = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one == two
    micro = one["micro_batch_size"]
    assert 1 < micro < 16384
    assert one["messages"] == [
        "out of memory on rank 1: 32768 = 16384 × 2 ranks × 1 accumulated "
        f"becomes 32768 = {micro} × 2 ranks × {16384 // micro} accumulated"
    ]
    assert not one["state_changed"]
