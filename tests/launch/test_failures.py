"""Ranks that die, fail, hang or run short of memory, through the real launcher: what the others say, and that it ends."""

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

TIMEOUT_S = 180


def two_ranks(script: str, folder: Path, *words: str, **environment: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A script on two ranks, which writes its errors to `folder`."""
    command = [*launcher.ACCELERATE, *launcher.MULTI_CPU, launcher.ROOT / script, *words]
    return launcher.started(command, folder, folder / "errors", ACCELERATE_USE_CPU="true", **environment)


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
    """The job would end in Gloo's traceback of the rank that is sound, or wait for its time-out.

    Or a script that reads the status would try again what fails, or give up what only lost a machine.
    """
    with two_ranks("tests/launch/failing_ranks.py", tmp_path, str(tmp_path), failure, "37") as process:
        assert process.wait(TIMEOUT_S) == 1
    (sentence,) = said(tmp_path)
    assert sentence.startswith("failed: rank 1 of 2 (host ")
    assert sentence.endswith(f", pid {(tmp_path / 'pid').read_text()}) {end}")
    word, reason = (tmp_path / "status").read_text().splitlines()
    if failure == "raise":
        assert (word, reason) == ("failed", f"rank 1 of 2 (host {socket.gethostname()}): ValueError: a row is damaged")
    else:
        assert (word, f"failed: {reason}") == ("lost", sentence)
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
    assert (out / "status").read_text() == f"lost\n{sentence.removeprefix('failed: ')}\n"


def assert_told(folder: Path, *sentences: str) -> None:
    """That the two ranks printed these sentences once each, and only the launcher, after them, ended in a traceback.

    The last line of its traceback gives a sentence again.
    """
    told = (folder / "errors").read_text()
    assert told.count("error: ") == len(sentences), told
    # Wherever the lines end: both ranks write to the same file
    assert all(told.count(f"error: {sentence}\n") + told.count(f"error: {sentence}error: ") for sentence in sentences), told
    assert told.count("Traceback (most recent call last)") == 1, told
    assert told.splitlines()[-2].removeprefix("  traceback : ") in sentences, told


@pytest.mark.parametrize(
    ("failure", "sentences"),
    [
        ("broken", ["rank 1 of 2 (host {host}): rows.arrow is missing", "rows.arrow is missing"]),
        ("other", ["the data of rank 1 is not that of rank 0: give every node a copy of the same folder"]),
    ],
)
def test_ranks_with_different_data_end_together(failure: str, sentences: list[str], tmp_path: Path) -> None:
    """A node's copy that is broken would leave the other nodes waiting, one that is another's be trained on unseen."""
    with two_ranks("tests/launch/disagreeing_ranks.py", tmp_path, str(tmp_path / "run"), failure) as process:
        assert process.wait(TIMEOUT_S) == 1
    assert_told(tmp_path, *(sentence.format(host=socket.gethostname()) for sentence in sentences))
    assert not (tmp_path / "run").exists()


def test_damaged_data_end_all_ranks(prepared_copy: Path, tmp_path: Path) -> None:
    """One rank reads every file of the data: the other would wait for it, end in a traceback, or repeat the sentence."""
    file = max(prepared_copy.rglob("*.arrow"), key=lambda file: file.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with two_ranks("scripts/train.py", tmp_path, f"data={prepared_copy}", f"out={tmp_path / 'run'}") as process:
        assert process.wait(TIMEOUT_S) == 1
    sentence = f"{file} was changed after it was written: run the stage that wrote it again"
    assert_told(tmp_path, sentence)
    assert not (tmp_path / "run").exists()


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
